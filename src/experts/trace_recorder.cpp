#include "experts/trace_recorder.h"

#include <utility>

namespace colibri {

std::int64_t TraceRecorder::computed() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - resumed_).count();
}

void TraceRecorder::flush() {
  if (std::exchange(finished_, false)) sink_(step_);
}

void TraceRecorder::begin_step(StepPhase phase, std::int64_t rows) {
  flush();
  step_.phase = phase;
  step_.rows = rows;
  step_.tail_ns = 0;
  step_.accesses.clear();
  predicted_layer_ = -1;
  in_layer_ = false;
  source_.begin_step(phase, rows);
  resumed_ = Clock::now();
}

void TraceRecorder::close_layer() {
  if (!in_layer_) return;
  LayerAccess& access = step_.accesses.back();
  access.expert_ns = expert_ns_ / static_cast<std::int64_t>(access.needed.size());
  in_layer_ = false;
}

void TraceRecorder::end_step() {
  step_.tail_ns = computed();
  close_layer();
  source_.end_step();
  finished_ = true;
}

void TraceRecorder::logits_computed(std::chrono::nanoseconds taken) {
  step_.tail_ns += taken.count();
  source_.logits_computed(taken);
}

void TraceRecorder::predict(std::int64_t layer, std::span<const std::int32_t> ids) {
  const std::int64_t elapsed = computed();
  predicted_layer_ = layer;
  predicted_.assign(ids.begin(), ids.end());
  if (source_.wants_predictions()) source_.predict(layer, ids);
  resumed_ = Clock::now() - std::chrono::nanoseconds(elapsed);
}

Result<void> TraceRecorder::request(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows) {
  const std::int64_t before = computed();
  close_layer();
  LayerAccess access;
  access.layer = layer;
  access.before_ns = before;
  access.needed.assign(ids.begin(), ids.end());
  access.rows.assign(rows.begin(), rows.end());
  if (predicted_layer_ == layer) access.predicted = predicted_;
  step_.accesses.push_back(std::move(access));
  expert_ns_ = 0;
  in_layer_ = first_wait_ = true;
  auto result = source_.request(layer, ids, rows);
  resumed_ = Clock::now();
  return result;
}

Result<std::optional<ExpertSource::Ready>> TraceRecorder::next(bool wait) {
  const std::int64_t elapsed = computed();
  if (std::exchange(first_wait_, false)) {
    step_.accesses.back().shared_ns = elapsed;
  } else {
    expert_ns_ += elapsed;
  }
  auto ready = source_.next(wait);
  resumed_ = Clock::now();
  return ready;
}

}  // namespace colibri

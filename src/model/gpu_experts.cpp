// Experts that come and go: what a streamed layer hands over after its router's choice is known.
#include <algorithm>
#include <cstring>

#include "model/gpu_layers.h"
#include "numerics/elementary.h"
#include "numerics/selection.h"

namespace colibri {

using gpu::Address;
using gpu::Fault;

// The router's choice is known: asks for its experts, and tells which ones the next layer will probably want.
Result<void> GpuLayers::request_experts(const Step& step, const LayerJob& layer, bool predict) {
  const auto distinct = [&](Address chosen, std::vector<std::int32_t>& ids, std::vector<std::int32_t>& rows) {
    const auto* choice = work_.host<std::int32_t>(chosen);
    std::vector<std::int32_t> place(static_cast<std::size_t>(config_.experts), -1);
    ids.clear();
    rows.clear();
    for (std::int64_t i = 0; i < step.rows.count() * config_.experts_per_token; ++i) {
      std::int32_t& at = place[static_cast<std::size_t>(choice[i])];
      if (at < 0) {
        at = static_cast<std::int32_t>(ids.size());
        ids.push_back(choice[i]);
        rows.push_back(0);
      }
      ++rows[static_cast<std::size_t>(at)];
    }
  };
  if (routing_ != nullptr) choose_by_model(step, layer);
  distinct(encoder_->buffers().chosen, ids_, id_rows_);
  COLIBRI_CHECK(experts_->request(layer.index, ids_, id_rows_));
  if (!predict) return {};
  std::vector<std::int32_t> ids, rows;
  distinct(encoder_->buffers().predicted, ids, rows);
  experts_->predict(layer.index + 1, ids);
  return {};
}

// A synthetic model's experts are a function of the position; its router's scores still weigh them.
void GpuLayers::choose_by_model(const Step& step, const LayerJob& layer) {
  const gpu::LayerBuffers& b = encoder_->buffers();
  const numerics::RouterRule rule{config_.experts_per_token, config_.norm_topk_prob, config_.routed_scaling_factor};
  std::vector<float> scores(static_cast<std::size_t>(config_.experts)), weights;
  std::vector<std::int32_t> ids;
  for (std::int64_t r = 0; r < step.rows.count(); ++r) {
    const std::int64_t position = step.rows.rows[static_cast<std::size_t>(r)].position, first = r * config_.experts_per_token;
    const auto* logits = work_.host<float>(b.logits) + r * config_.experts;
    std::transform(logits, logits + config_.experts, scores.begin(), numerics::sigmoid);
    routing_->choose(position, layer.index, ids);
    numerics::router_weights(scores, rule, ids, weights);
    std::copy(ids.begin(), ids.end(), work_.host<std::int32_t>(b.chosen) + first);
    std::copy(weights.begin(), weights.end(), work_.host<float>(b.weights) + first);
    routing_->predict(position, layer.index + 1, ids);
    std::copy(ids.begin(), ids.end(), work_.host<std::int32_t>(b.predicted) + first);
  }
}

void GpuLayers::clear_table(Address table) {
  std::memset(work_.host<std::byte>(table), 0, static_cast<std::size_t>(config_.experts) * sizeof(gpu::ExpertEntry));
}

void GpuLayers::add_expert(const ExpertSource::Ready& ready, Address table, gpu::Encoder& encoder) {
  held_.push_back(ready.index);
  auto entry = expert_entry(ready.weights);
  if (entry)
    work_.host<gpu::ExpertEntry>(table)[ids_[ready.index]] = *entry;
  else
    encoder.fail_with(Fault::kResidency, std::move(entry).error());
}

// Those that are there are handed over before the disk is waited for, the others together when the last has arrived; only
// where the cache cannot hold them all at once do they come in waves.
Result<GpuLayers::Progress> GpuLayers::run_experts(const Step& step, std::size_t job, bool predict) {
  const LayerJob& layer = step.jobs[job];
  const gpu::LayerView& view = views_[static_cast<std::size_t>(layer.index)];
  const std::int64_t rows = step.rows.count();
  release_held();
  COLIBRI_CHECK(request_experts(step, layer, predict));
  PhaseClock clock;
  clear_table(ready_table_);
  clear_table(late_table_);
  std::size_t missing = ids_.size(), in_table = 0;
  gpu::Encoder first(kernels_, counters_.encoded);
  for (;; --missing, ++in_table) {
    COLIBRI_TRY(ready, experts_->next(false));
    if (!ready) break;
    add_expert(*ready, ready_table_, first);
  }
  encoder_->group(first, view, rows);
  if (in_table > 0) encoder_->experts(first, view, rows, ready_table_);
  if (missing == 0) encoder_->sparse_end(first, view, rows, state(step, job + 1), damage(job));
  clock.add_to(counters_.setup_seconds);
  if (!hand_over(first, job, Pending::Part::kExperts, missing == 0)) return fail_and_redo(step, job, first);

  while (missing > 0) {
    gpu::Encoder late(kernels_, counters_.encoded);
    for (in_table = 0; missing > 0 && experts_->can_wait(); --missing, ++in_table) {
      if (step.keep_going && !step.keep_going()) return Progress{job, false, true};
      PhaseClock wait;
      auto ready = experts_->next(true);
      if (step.times != nullptr) wait.add_to(step.times->expert_wait);
      if (!ready) return pass(std::move(ready).error());
      add_expert(**ready, late_table_, late);
    }
    clock.restart();
    if (in_table > 0) encoder_->experts(late, view, rows, late_table_);
    if (missing == 0) encoder_->sparse_end(late, view, rows, state(step, job + 1), damage(job));
    clock.add_to(counters_.setup_seconds);
    if (in_table > 0 && !hand_over(late, job, Pending::Part::kExperts, missing == 0)) return fail_and_redo(step, job, late);
    if (missing == 0) break;
    COLIBRI_TRY(settled, settle(step, 0, job));  // the cache is full of what this layer uses
    if (settled.redone || settled.stopped) return settled;
    release_held();
    clear_table(late_table_);
  }
  return Progress{job + 1, false, false};
}

// The step is given up: nothing may be in flight or held.
void GpuLayers::drop() {
  for (Pending& p : pending_) p.work.wait();
  pending_.clear();
  release_held();
}

void GpuLayers::release_held() {
  for (const std::size_t index : held_) experts_->release(index);
  held_.clear();
}

void GpuLayers::read_selection(const Step& step, std::size_t slot, std::size_t rows, Selection& out) {
  out.clear(rows);
  if (slot == 0) return;
  const gpu::SelectionTable table = selection(step, slot);
  const auto* counts = work_.host<std::uint32_t>(table.counts);
  const auto* chosen = work_.host<std::int32_t>(table.chosen);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto* first = chosen + static_cast<std::int64_t>(r) * table.top_k;
    out.positions[r].assign(first, first + counts[r]);
  }
}

void GpuLayers::write_selection(const Step& step, std::size_t slot, const Selection& in) {
  const gpu::SelectionTable table = selection(step, slot);
  auto* counts = work_.host<std::uint32_t>(table.counts);
  auto* chosen = work_.host<std::int32_t>(table.chosen);
  for (std::size_t r = 0; r < in.positions.size(); ++r) {
    counts[r] = static_cast<std::uint32_t>(in.positions[r].size());
    std::copy(in.positions[r].begin(), in.positions[r].end(), chosen + static_cast<std::int64_t>(r) * table.top_k);
  }
}

}  // namespace colibri

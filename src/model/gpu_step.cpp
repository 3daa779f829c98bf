// One step of rows through the layers on the GPU, and what the CPU does where that fails.
#include <algorithm>
#include <cassert>

#include "gpu/rowwise.h"
#include "model/gpu_layers.h"

namespace colibri {
namespace {

using gpu::Address;
using gpu::Fault;

std::uint64_t bytes_of(std::int64_t floats) { return static_cast<std::uint64_t>(floats) * sizeof(float); }

}  // namespace

// Slot 0 selects nothing.
gpu::SelectionTable GpuLayers::selection(const Step& step, std::size_t slot) const {
  if (slot == 0) return {};
  const auto first = static_cast<Address>((slot - 1) * step.rows.rows.size());
  return {chosen_ + first * bytes_of(config_.indexer.top_k), counts_ + first * sizeof(std::uint32_t), config_.indexer.top_k};
}

Address GpuLayers::state(const Step& step, std::size_t job) const {
  return states_ + static_cast<Address>(job % ring_) * bytes_of(step.rows.count() * config_.hidden_size);
}

gpu::StepTable GpuLayers::table(const Step& step, std::int64_t layer) const {
  return {rows_ + static_cast<Address>(layer * max_rows_) * sizeof(gpu::RowArgs), step.rows.count(), longest_, cosine_, sine_};
}

bool GpuLayers::begin(const Step& step) {
  PhaseClock clock;
  head_ready_ = 0;
  const std::int64_t rows = step.rows.count(), half = config_.mla.qk_rope_head_dim / 2;
  ring_ = static_cast<std::size_t>(std::min(state_rows_ / rows, static_cast<std::int64_t>(step.jobs.size()) + 1));
  longest_ = 0;
  for (const ContiguousRows& of_one : step.rows.sequences) longest_ = std::max(longest_, of_one.end());
  std::copy(step.rows.cosine, step.rows.cosine + rows * half, work_.host<float>(cosine_));
  std::copy(step.rows.sine, step.rows.sine + rows * half, work_.host<float>(sine_));
  bool reachable = true;
  for (const LayerJob& job : step.jobs) {
    auto* args = work_.host<gpu::RowArgs>(table(step, job.index).rows);
    for (const ContiguousRows& of_one : step.rows.sequences) {
      KvCache& cache = of_one.cache();
      const Address entries = device_.address(cache.row(job.index, 0));
      const Address keys = cache.indexed(job.index) ? device_.address(cache.index_key(job.index, 0)) : 0;
      reachable = reachable && entries != 0;
      args = gpu::write_rows({entries, keys, of_one.first(), of_one.count()}, args);
    }
  }
  // Every layer with an indexer takes the next slot.
  selection_of_.clear();
  std::size_t slot = 0, taken = 0;
  for (const LayerJob& job : step.jobs) {
    if (job.weights->attention.indexer) slot = 1 + taken++ % ring_;
    selection_of_.push_back(slot);
  }
  std::copy(step.x, step.x + rows * config_.hidden_size, work_.host<float>(state(step, 0)));
  clock.add_to(counters_.scatter_seconds);
  return reachable;
}

Result<StepEnd> GpuLayers::run(const Step& step) {
  reachable_ = begin(step);
  if (!reachable_) faults_.failed(Fault::kResidency, "a sequence's KV cache is not registered with the GPU");
  for (std::size_t job = 0;;) {
    const bool all_submitted = job == step.jobs.size();
    if (all_submitted) submit_head(step);
    auto progress = all_submitted ? settle(step, 0, job) : submit(step, job);
    if (!progress || progress->stopped) {
      drop();
      if (!progress) return pass(std::move(progress).error());
      return StepEnd::kStopped;
    }
    if (all_submitted && !progress->redone) break;
    job = progress->next;
  }
  release_held();
  PhaseClock clock;
  const auto* last = work_.host<float>(state(step, step.jobs.size()));
  std::copy(last, last + step.rows.count() * config_.hidden_size, step.x);
  clock.add_to(counters_.scatter_seconds);
  return StepEnd::kDone;
}

// The logits of a few rows behind the last layer, so that a token costs one wait.
void GpuLayers::submit_head(const Step& step) {
  const std::int64_t rows = step.rows.count(), d = config_.hidden_size;
  if (!step.with_head || rows > kHeadRows || !on() || !reachable_) return;
  PhaseClock clock;
  gpu::Encoder e(kernels_, counters_.encoded);
  gpu::rms_norm(e, {state(step, step.jobs.size()), rows, d, d}, final_norm_, config_.rms_norm_eps, head_in_, d);
  e.barrier();
  gpu::product(e, options_.products, weights_.head, {head_in_, rows, d, d}, head_out_, config_.vocab_size);
  clock.add_to(counters_.setup_seconds);
  if (!hand_over(e, step.jobs.size(), Pending::Part::kHead, true)) faults_.failed(e.fault(), e.error()->message);
}

Result<GpuLayers::Progress> GpuLayers::submit(const Step& step, std::size_t job) {
  const LayerJob& layer = step.jobs[job];
  if (step.keep_going && !step.keep_going()) return Progress{job, false, true};
  const bool here = on() && reachable_ && supported_[static_cast<std::size_t>(layer.index)];
  // The state this layer writes must not be an input of one that may still fail.
  COLIBRI_TRY(settled, settle(step, here && !step.observe ? ring_ - 2 : 0, job));
  if (settled.next != job || settled.stopped) return settled;
  if (step.observe) step.observe(layer.index, work_.host<float>(state(step, job)));
  if (!here) return redo(step, job);

  PhaseClock clock;
  const gpu::LayerView& view = views_[static_cast<std::size_t>(layer.index)];
  const Address x = state(step, job), x_out = state(step, job + 1), damage = this->damage(job);
  const std::int64_t rows = step.rows.count();
  *work_.host<std::uint32_t>(damage) = 0;
  gpu::Encoder e(kernels_, counters_.encoded);
  encoder_->attention(e, view, table(step, layer.index), selection(step, selection_of_[job]), x, damage);
  encoder_->router(e, view, rows, damage);
  if (view.sparse && !resident_) {
    encoder_->mlp(e, view, rows);
    const bool predict = layer.next_sparse != nullptr && experts_->wants_predictions();
    if (predict) encoder_->prediction(e, views_[static_cast<std::size_t>(layer.index) + 1], rows, ignored_);
    clock.add_to(counters_.setup_seconds);
    if (!hand_over(e, job, Pending::Part::kAttention, false)) return fail_and_redo(step, job, e);
    COLIBRI_TRY(chosen, settle(step, 0, job));
    if (chosen.redone || chosen.stopped) return chosen;
    return run_experts(step, job, predict);
  }
  if (view.sparse) {
    encoder_->group(e, view, rows);
    encoder_->mlp(e, view, rows);
    encoder_->experts(e, view, rows, view.experts);
    encoder_->sparse_end(e, view, rows, x_out, damage);
  } else {
    encoder_->mlp(e, view, rows);
    encoder_->dense_end(e, rows, x_out, damage);
  }
  clock.add_to(counters_.setup_seconds);
  if (!hand_over(e, job, Pending::Part::kLayer, true)) return fail_and_redo(step, job, e);
  return Progress{job + 1, false, false};
}

bool GpuLayers::hand_over(gpu::Encoder& encoder, std::size_t job, Pending::Part part, bool last) {
  auto work = encoder.commit();
  if (!work) return false;
  pending_.push_back({part, last, job, std::move(*work), {}});
  return true;
}

// Encoding failed: what came before is finished first, for the CPU needs its outputs.
Result<GpuLayers::Progress> GpuLayers::fail_and_redo(const Step& step, std::size_t job, const gpu::Encoder& encoder) {
  COLIBRI_TRY(settled, settle(step, 0, job));
  if (settled.next != job || settled.stopped) return settled;
  faults_.failed(encoder.fault(), encoder.error()->message);
  return redo(step, job);
}

Result<GpuLayers::Progress> GpuLayers::settle(const Step& step, std::size_t keep, std::size_t next) {
  if (pending_.size() <= keep) return Progress{next, false, false};
  // One wait, for the last that must be done: those before it are done then.
  PhaseClock clock;
  double waited = 0;
  ++counters_.encoded.waits;
  pending_[pending_.size() - keep - 1].work.wait();
  clock.add_to(waited);
  counters_.wall_seconds += waited;
  if (step.times != nullptr) step.times->gpu += waited;
  double to_come = 0;  // on the GPU, of what is done by now
  for (std::size_t i = 0; i + keep < pending_.size(); ++i) to_come += pending_[i].work.wait().gpu_seconds;
  while (pending_.size() > keep) {
    Pending first = std::move(pending_.front());
    pending_.pop_front();
    const gpu::Completion done = first.work.wait();
    to_come -= done.gpu_seconds;
    counters_.kernel_seconds += done.gpu_seconds;
    const bool head = first.part == Pending::Part::kHead;
    if (done.fault == Fault::kNone && (head || *work_.host<std::uint32_t>(damage(first.job)) == 0)) {
      count(step, first, done, to_come);
      continue;
    }
    if (done.fault != Fault::kNone) faults_.failed(done.fault, done.message);
    if (head) continue;  // whoever asks for logits computes them
    // What was handed over after it computed on what it left behind.
    for (Pending& p : pending_) p.work.wait();
    pending_.clear();
    auto redone = redo(step, first.job);
    // The same inputs give finite numbers here, so the GPU is to blame.
    if (done.fault == Fault::kNone && redone && !redone->stopped)
      faults_.failed(Fault::kError, "a number was not finite that is finite on the CPU");
    return redone;
  }
  return Progress{next, false, false};
}

// later: seconds that the GPU worked on since.
void GpuLayers::count(const Step& step, Pending& pending, const gpu::Completion& done, double later) {
  using Part = Pending::Part;
  if (pending.part == Part::kHead) {
    head_ready_ = step.rows.count();
    return faults_.succeeded();
  }
  if (pending.part == Part::kAttention) counters_.attention_kernel_seconds += done.gpu_seconds;
  if (pending.part == Part::kExperts) {
    counters_.expert_kernel_seconds += done.gpu_seconds;
    double wall = 0;
    pending.since.add_to(wall);
    counters_.expert_wall_seconds += std::max(wall - later, done.gpu_seconds);
  } else {
    ++counters_.attention_launches;
  }
  if (!pending.last) return;
  ++counters_.blocks;
  faults_.succeeded();
  if (step.jobs[pending.job].weights->sparse)
    counters_.experts += static_cast<std::uint64_t>(step.rows.count() * config_.experts_per_token);
}

Result<GpuLayers::Progress> GpuLayers::redo(const Step& step, std::size_t job) {
  assert(pending_.empty());
  release_held();
  const std::size_t rows = step.rows.rows.size();
  const auto* in = work_.host<float>(state(step, job));
  auto* out = work_.host<float>(state(step, job + 1));
  std::copy(in, in + step.rows.count() * config_.hidden_size, out);
  Selection selection;
  read_selection(step, selection_of_[job], rows, selection);
  COLIBRI_TRY(end, step.redo(step.jobs[job], selection, out));
  if (end == StepEnd::kStopped) return Progress{job, true, true};
  if (step.jobs[job].weights->attention.indexer) write_selection(step, selection_of_[job], selection);
  ++counters_.redone;
  return Progress{job + 1, true, false};
}

bool GpuLayers::logits(const float* hidden, std::int64_t first, std::int64_t count, float* out) {
  const std::int64_t d = config_.hidden_size, vocab = config_.vocab_size;
  if (first + count <= head_ready_) {
    PhaseClock clock;
    const auto* ready = work_.host<float>(head_out_) + first * vocab;
    std::copy(ready, ready + count * vocab, out);
    clock.add_to(counters_.scatter_seconds);
    return true;
  }
  head_ready_ = 0;
  for (std::int64_t done = 0; done < count; done += kHeadRows) {
    if (!on()) return false;
    const std::int64_t rows = std::min(kHeadRows, count - done);
    PhaseClock clock;
    std::copy(hidden + done * d, hidden + (done + rows) * d, work_.host<float>(head_in_));
    clock.add_to(counters_.scatter_seconds);
    gpu::Encoder e(kernels_, counters_.encoded);
    gpu::product(e, options_.products, weights_.head, {head_in_, rows, d, d}, head_out_, vocab);
    auto work = e.commit();
    clock.add_to(counters_.setup_seconds);
    if (!work) {
      faults_.failed(e.fault(), e.error()->message);
      return false;
    }
    ++counters_.encoded.waits;
    const gpu::Completion end = work->wait();
    clock.add_to(counters_.wall_seconds);
    counters_.kernel_seconds += end.gpu_seconds;
    if (end.fault != Fault::kNone) {
      faults_.failed(end.fault, end.message);
      return false;
    }
    const auto* logits = work_.host<float>(head_out_);
    std::copy(logits, logits + rows * vocab, out + done * vocab);
    clock.add_to(counters_.scatter_seconds);
  }
  return true;
}

}  // namespace colibri

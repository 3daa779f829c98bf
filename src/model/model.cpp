#include "model/model.h"

#include <algorithm>

#include "base/fp_mode.h"
#include "model/damage.h"
#include "numerics/finite.h"

namespace colibri {
namespace {

std::int64_t widest_input(const ModelConfig& c) {
  return std::max({2 * c.hidden_size, c.heads * c.mla.v_head_dim, c.mla.q_lora_rank, c.mla.cache_dim(), c.intermediate_size,
                   c.moe_intermediate_size * std::max<std::int64_t>(c.shared_experts, 1), c.indexer.head_dim});
}

AlignedArray<float> floats(std::int64_t count) { return AlignedArray<float>(static_cast<std::size_t>(count)); }

}  // namespace

Model::Model(const ModelConfig& config, const ModelWeights& weights, const Kernels& kernels, ThreadTeam& team,
             const ModelLimits& limits)
    : config_(config),
      weights_(weights),
      limits_(limits),
      ops_(kernels, team, widest_input(config)),
      attention_(ops_, config, weights, limits.max_rows, limits.max_context),
      feed_forward_(ops_, config, weights, limits.max_rows),
      rotary_(config.rope_theta, config.mla.qk_rope_head_dim),
      cosine_(floats(limits.max_rows * config.mla.qk_rope_head_dim / 2)),
      sine_(floats(limits.max_rows * config.mla.qk_rope_head_dim / 2)),
      x_(floats(limits.max_rows * config.hidden_size)),
      hidden_(floats(limits.max_rows * config.hidden_size)),
      packed_(floats(PackedRows::floats(limits.max_rows, 2 * config.hidden_size))),
      joined_(floats(limits.max_rows * 2 * config.hidden_size)) {}

Model::~Model() = default;

void Model::use_experts(ExpertSource& experts) {
  experts_ = &experts;
  feed_forward_.use_experts(experts);
}

std::vector<bool> Model::indexed_layers() const {
  std::vector<bool> indexed;
  for (const LayerWeights& layer : weights_.layers) indexed.push_back(layer.attention.indexer.has_value());
  if (weights_.mtp) indexed.push_back(weights_.mtp->layer.attention.indexer.has_value());
  return indexed;
}

std::uint64_t Model::scratch_bytes() const {
  std::uint64_t count = 0;
  for (const auto* a : {&cosine_, &sine_, &x_, &hidden_, &packed_, &joined_}) count += a->size();
  return count * sizeof(float) + ops_.scratch_bytes() + attention_.scratch_bytes() + feed_forward_.scratch_bytes();
}

const LayerWeights* Model::next_sparse(std::size_t layer) const {
  return layer + 1 < weights_.layers.size() && weights_.layers[layer + 1].sparse ? &weights_.layers[layer + 1] : nullptr;
}

KvCache Model::make_cache() {
  KvCache cache(config_, indexed_layers(), limits_.max_context);
  if (gpu_) (void)gpu_->adopt(cache);  // a cache that the GPU cannot use is one fault after another, and then the CPU's
  return cache;
}

Result<void> Model::use_gpu(gpu::Device& device, ModelWeights& weights, const GpuOptions& options) {
  COLIBRI_TRY(layers, GpuLayers::create(device, config_, weights, limits_.max_rows, limits_.max_context, options));
  if (routing_ != nullptr) layers->use_routing(*routing_);
  COLIBRI_CHECK(layers->use_experts(*experts_));
  gpu_ = std::move(layers);
  return {};
}

void Model::use_routing(const RoutingModel& routing) {
  routing_ = &routing;
  feed_forward_.use_routing(routing);
}

std::span<const float> Model::hidden() const {
  return hidden_.span().first(static_cast<std::size_t>(rows_ * config_.hidden_size));
}

Result<void> Model::begin(std::span<const std::int32_t> ids, const AnyRows& rows) {
  const std::int64_t count = rows.count();
  if (count > limits_.max_rows || static_cast<std::int64_t>(ids.size()) != count)
    return fail("a step of {} rows and {} tokens: expected 1 to {} of each", count, ids.size(), limits_.max_rows);
  for (const std::int32_t id : ids)
    if (id < 0 || id >= config_.vocab_size)
      return fail("token id {} is outside the model's vocabulary of {}", id, config_.vocab_size);
  const std::int64_t half = config_.mla.qk_rope_head_dim / 2;
  row_list_.clear();
  for (const ContiguousRows& of_one : rows.sequences())
    for (std::int64_t position = of_one.first(); position < of_one.end(); ++position) {
      const auto r = static_cast<std::int64_t>(row_list_.size());
      rotary_.angles(position, cosine_.data() + r * half, sine_.data() + r * half);
      row_list_.push_back({&of_one.cache(), position});
    }
  rows_ = count;
  step_ = {rows.sequences(), row_list_, cosine_.data(), sine_.data()};
  selection_.clear(row_list_.size());
  return {};
}

void Model::embed(std::span<const std::int32_t> ids, float* out) const {
  for (std::size_t r = 0; r < ids.size(); ++r)
    dequantize_row(weights_.embedding, ids[r], out + static_cast<std::int64_t>(r) * config_.hidden_size);
}

Error Model::damage(std::string where, std::initializer_list<const Matrix*> matrices) const {
  return find_damage(weights_, {std::move(where), matrices, 0, {}}, ops_.team());
}

Result<StepEnd> Model::forward(StepPhase phase, std::span<const std::int32_t> ids, const AnyRows& rows,
                               const LayerObserver& observe, const KeepGoing& keep_going) {
  FlushDenormals flush;
  PhaseClock clock;
  COLIBRI_CHECK(begin(ids, rows));
  embed(ids, x_.data());
  if (!numerics::all_finite(x_.data(), rows_ * config_.hidden_size)) return pass(damage("the embedding", {&weights_.embedding}));
  experts_->begin_step(phase, rows_);
  clock.add_to(times_.other);
  auto end = run_layers(phase, observe, keep_going);
  if (!end || *end == StepEnd::kStopped) {
    experts_->abandon_step();
    return end;
  }
  clock.restart();
  ops_.rms_norm(x_.data(), weights_.final_norm.data(), config_.rms_norm_eps, hidden_.data(), rows_, config_.hidden_size);
  experts_->end_step();
  clock.add_to(times_.head);
  return StepEnd::kDone;
}

Result<StepEnd> Model::run_layers(StepPhase phase, const LayerObserver& observe, const KeepGoing& keep_going) {
  std::vector<LayerJob> jobs;
  for (std::size_t i = 0; i < weights_.layers.size(); ++i)
    jobs.push_back({&weights_.layers[i], static_cast<std::int64_t>(i), next_sparse(i)});
  if (on_gpu()) return run_on_gpu(phase, jobs, observe, keep_going);
  for (const LayerJob& job : jobs) {
    if (job.index > 0 && keep_going && !keep_going()) return StepEnd::kStopped;
    if (observe) observe(job.index, x_.data());
    COLIBRI_TRY(end, run_layer(job, selection_, x_.data(), keep_going));
    if (end == StepEnd::kStopped) return end;
  }
  return StepEnd::kDone;
}

Result<StepEnd> Model::run_layer(const LayerJob& job, Selection& selection, float* x, const KeepGoing& keep_going) {
  PhaseClock clock;
  COLIBRI_CHECK(attention_.run(*job.weights, job.index, step_, selection, x));
  clock.add_to(times_.attention);
  return feed_forward_.run(*job.weights, job.index, step_.rows, x, job.next_sparse, times_, keep_going);
}

Result<StepEnd> Model::run_on_gpu(StepPhase phase, std::span<const LayerJob> jobs, const LayerObserver& observe,
                                  const KeepGoing& keep_going) {
  GpuLayers::Step step;
  step.rows = step_;
  step.jobs = jobs;
  step.x = x_.data();
  step.with_head = phase == StepPhase::kDecode;
  step.redo = [&](const LayerJob& job, Selection& selection, float* x) { return run_layer(job, selection, x, keep_going); };
  step.observe = observe;
  step.keep_going = keep_going;
  step.times = &times_;
  return gpu_->run(step);
}

Result<void> Model::logits(std::int64_t first, std::int64_t count, float* out) {
  FlushDenormals flush;
  PhaseClock clock;
  const std::int64_t d = config_.hidden_size, vocab = config_.vocab_size;
  if (!on_gpu() || !gpu_->logits(hidden_.data() + first * d, first, count, out))
    ops_.multiply({{weights_.head, ops_.pack(hidden_.data() + first * d, d, count, d, packed_.data()), out, vocab}});
  if (!numerics::all_finite(out, count * vocab)) return pass(damage("the logits", {&weights_.head}));
  experts_->logits_computed(clock.add_to(times_.head));
  return {};
}

Result<void> Model::mtp_forward(StepPhase phase, std::span<const std::int32_t> next_ids, std::span<const float> hidden,
                                const AnyRows& rows) {
  FlushDenormals flush;
  COLIBRI_CHECK(begin(next_ids, rows));
  const MtpWeights& mtp = *weights_.mtp;
  const std::int64_t d = config_.hidden_size;
  const Kernels& k = ops_.kernels();
  embed(next_ids, x_.data());
  for (std::int64_t r = 0; r < rows_; ++r) {  // [ embedding ; hidden ], each normed
    k.rms_norm(x_.data() + r * d, mtp.embedding_norm.data(), config_.rms_norm_eps, joined_.data() + 2 * r * d, d);
    k.rms_norm(hidden.data() + r * d, mtp.hidden_norm.data(), config_.rms_norm_eps, joined_.data() + (2 * r + 1) * d, d);
  }
  ops_.multiply({{mtp.eh_proj, ops_.pack(joined_.data(), 2 * d, rows_, 2 * d, packed_.data()), x_.data(), d}});
  if (!numerics::all_finite(x_.data(), rows_ * d))
    return pass(damage("the MTP layer's input", {&weights_.embedding, &mtp.eh_proj}));
  const auto index = static_cast<std::int64_t>(weights_.layers.size());
  experts_->begin_step(phase, rows_);
  const LayerJob job{&mtp.layer, index, nullptr};
  auto done = on_gpu() ? run_on_gpu(StepPhase::kPrefill, {&job, 1}, {}, {}) : run_layer(job, selection_, x_.data(), {});
  if (!done) {
    experts_->abandon_step();
    return pass(std::move(done).error());
  }
  experts_->end_step();
  ops_.rms_norm(x_.data(), mtp.head_norm.data(), config_.rms_norm_eps, hidden_.data(), rows_, d);
  return {};
}

}  // namespace colibri

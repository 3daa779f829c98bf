// The graph: embedding, layers, final norm, head, and the MTP layer beside it.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "format/checkpoint.h"
#include "format/config.h"
#include "model/feed_forward.h"
#include "model/gpu_layers.h"
#include "model/mla_attention.h"
#include "model/ops.h"
#include "model/step.h"
#include "model/weights.h"
#include "numerics/rotary.h"

namespace colibri {

struct ModelLimits {
  std::int64_t max_rows = 128;      // rows of one step: the prefill chunk
  std::int64_t max_context = 4096;  // positions of one sequence
};

class Model {
 public:
  // weights, kernels and team are owned by the caller and must outlive this.
  Model(const ModelConfig& config, const ModelWeights& weights, const Kernels& kernels, ThreadTeam& team,
        const ModelLimits& limits);
  ~Model();

  // Where routed experts come from; needed before the first step, and must outlive this.
  void use_experts(ExpertSource& experts);
  // A synthetic model's routing in place of its routers' choice; before use_gpu. Must outlive this.
  void use_routing(const RoutingModel& routing);
  // Lets a GPU compute the layers and the head, with the same bits; after use_experts, before the first cache is made. What
  // fails there is computed here. `device` must outlive this and every cache. Fails when the device cannot take the model.
  Result<void> use_gpu(gpu::Device& device, ModelWeights& weights, const GpuOptions& options);
  const GpuLayers* gpu() const { return gpu_.get(); }

  const ModelConfig& config() const { return config_; }
  const ModelLimits& limits() const { return limits_; }
  bool has_mtp() const { return weights_.mtp.has_value(); }
  // A new, empty sequence of at most max_context positions.
  KvCache make_cache();
  // Per cache layer (the MTP layer last): does it keep indexer keys?
  std::vector<bool> indexed_layers() const;
  // Memory for activations, all allocated by the constructor (and touched only as steps need it).
  std::uint64_t scratch_bytes() const;
  // Summed over every step since construction.
  const PhaseTimes& times() const { return times_; }

  // Called with the residual rows [rows, hidden] before layer i (0 is the embedding).
  using LayerObserver = std::function<void(std::int64_t layer, const float* x)>;

  // Runs one token per row through all layers; 1 to max_rows rows. Afterwards hidden() holds their states. Each sequence's
  // earlier positions must have been written. keep_going is asked at least twice a layer. Errors and a stop leave hidden()
  // and the rows' cache entries unspecified and everything before them intact.
  Result<StepEnd> forward(StepPhase phase, std::span<const std::int32_t> ids, const AnyRows& rows,
                          const LayerObserver& observe = {}, const KeepGoing& keep_going = {});
  // After the final norm: [rows, hidden] of the last forward.
  std::span<const float> hidden() const;

  // logits[r] = head * hidden row (first + r) of the last forward or mtp_forward; vocab_size floats a row. Fails when one is not
  // finite.
  Result<void> logits(std::int64_t first, std::int64_t count, float* out);

  // The MTP layer: row t combines hidden state hidden[t] (after the final norm, [rows, hidden]) of position t with the
  // embedding of the token at t + 1, and its logits then predict t + 2. Replaces hidden(); needs has_mtp().
  Result<void> mtp_forward(StepPhase phase, std::span<const std::int32_t> next_ids, std::span<const float> hidden,
                           const AnyRows& rows);

 private:
  Result<void> begin(std::span<const std::int32_t> ids, const AnyRows& rows);
  Result<StepEnd> run_layers(StepPhase phase, const LayerObserver& observe, const KeepGoing& keep_going);
  Result<StepEnd> run_on_gpu(StepPhase phase, std::span<const LayerJob> jobs, const LayerObserver& observe,
                             const KeepGoing& keep_going);
  Result<StepEnd> run_layer(const LayerJob& job, Selection& selection, float* x, const KeepGoing& keep_going);
  bool on_gpu() const { return gpu_ && gpu_->on(); }
  const LayerWeights* next_sparse(std::size_t layer) const;
  void embed(std::span<const std::int32_t> ids, float* out) const;
  Error damage(std::string where, std::initializer_list<const Matrix*> matrices) const;

  ModelConfig config_;
  const ModelWeights& weights_;
  ModelLimits limits_;
  Ops ops_;
  MlaAttention attention_;
  ExpertSource* experts_ = nullptr;
  const RoutingModel* routing_ = nullptr;
  FeedForward feed_forward_;
  std::unique_ptr<GpuLayers> gpu_;
  numerics::RotaryTable rotary_;
  Selection selection_;
  std::vector<Row> row_list_;  // of the step
  StepRows step_;
  std::int64_t rows_ = 0;
  PhaseTimes times_;
  AlignedArray<float> cosine_, sine_, x_, hidden_, packed_, joined_;
};

}  // namespace colibri

// The second half of a layer: a dense SwiGLU, or router, shared and routed experts (rules C8 and C10 of docs/numerics.md).
#pragma once

#include "base/result.h"
#include "experts/routing_model.h"
#include "format/config.h"
#include "model/ops.h"
#include "model/phase_times.h"
#include "model/step.h"
#include "model/weights.h"
#include "numerics/selection.h"

namespace colibri {

class FeedForward {
 public:
  // weights: those that layers come from, for messages.
  FeedForward(Ops& ops, const ModelConfig& config, const ModelWeights& weights, std::int64_t max_rows);

  // Needed before a sparse layer runs. The source must outlive this.
  void use_experts(ExpertSource& experts) { experts_ = &experts; }
  // For synthetic models: which experts are chosen and predicted comes from here, by position, in place of the routers, whose
  // scores still weigh the chosen ones. Must outlive this.
  void use_routing(const RoutingModel& routing) { routing_ = &routing; }

  // x: the residual rows [rows, hidden]; the layer's output is added. next: the layer after this one, whose experts are
  // predicted when the source reads ahead; null when there is none or it is dense. keep_going is asked at the start and
  // while experts are waited for. Fails when a number is not finite, or an expert cannot be read.
  Result<StepEnd> run(const LayerWeights& layer, std::int64_t index, std::span<const Row> step, float* x,
                      const LayerWeights* next, PhaseTimes& times, const KeepGoing& keep_going = {});
  std::uint64_t scratch_bytes() const;

 private:
  // The rows that chose one expert: consecutive slots of the expert buffers.
  struct Group {
    std::int32_t expert = 0;
    std::int64_t first_slot = 0, slots = 0;
  };
  // The experts of one row from its router's logits, which become scores; false when one of these is not a number.
  bool choose(const LayerWeights& layer, std::int64_t index, const Row& row, float* scores, std::vector<std::int32_t>& ids,
              std::vector<float>& weights) const;
  Result<void> route(const LayerWeights& layer, std::int64_t index, std::span<const Row> step);
  void group_by_expert(std::int64_t rows);
  void predict_next(const LayerWeights& next, std::int64_t index, std::span<const Row> step, const float* x);
  Result<StepEnd> run_experts(std::int64_t rows, PhaseTimes& times, PhaseClock& clock, const KeepGoing& keep_going);
  void compute(std::span<const ExpertSource::Ready> batch, std::int64_t rows);
  void activate(std::int64_t rows, std::int64_t cols);

  Error damage(const LayerWeights& layer, std::int64_t index, std::span<const std::int32_t> experts) const;

  Ops& ops_;
  const ModelWeights& model_weights_;
  ExpertSource* experts_ = nullptr;
  const RoutingModel* routing_ = nullptr;
  std::int64_t hidden_, intermediate_, expert_count_, per_token_;
  float eps_;
  numerics::RouterRule rule_;
  AlignedArray<float> normed_, packed_, gate_, up_, packed_act_, out_, router_, predicted_;
  // One slot per (row, rank): inputs, activations and outputs of the experts.
  AlignedArray<float> gathered_, packed_in_, expert_gate_, expert_up_, packed_expert_act_, expert_out_;
  std::vector<std::int32_t> chosen_;    // [rows][per_token_] expert ids in rank order
  std::vector<float> weights_;          // the same shape
  std::vector<std::int64_t> slot_of_;   // [rows][per_token_]
  std::vector<std::int64_t> slot_row_;  // [slots]
  std::vector<Group> groups_;
  std::vector<std::int32_t> ids_, id_rows_;
  PackedRows input_;
};

}  // namespace colibri

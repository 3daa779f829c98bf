// The layers on a GPU. A layer is one command buffer as long as its experts are in memory; where they are streamed, attention
// and router, the experts that are there, and the ones that arrive are one each. Every layer writes a new residual state, so
// one that failed is computed again by the CPU from its inputs, with the same bits.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "experts/routing_model.h"
#include "format/config.h"
#include "gpu/fault_log.h"
#include "gpu/layer.h"
#include "gpu/placer.h"
#include "gpu/registered.h"
#include "model/phase_times.h"
#include "model/step.h"
#include "model/weights.h"

namespace colibri {

struct GpuOptions {
  gpu::ProductPlan products;
};

// Counted since construction.
struct GpuCounters {
  std::uint64_t blocks = 0;              // layers computed on the GPU
  std::uint64_t redone = 0;              // layers that the CPU computed in its place
  std::uint64_t experts = 0;             // experts applied on the GPU, per row
  std::uint64_t attention_launches = 0;  // layers whose attention ran on the GPU
  double setup_seconds = 0;              // encoding
  double wall_seconds = 0;               // waiting for the GPU
  double kernel_seconds = 0;             // all command buffers, as the GPU says
  double attention_kernel_seconds = 0;   // of those that hold attention and router alone
  double expert_kernel_seconds = 0;      // of those that hold experts alone
  double expert_wall_seconds = 0;        // from handing those over to their end
  double scatter_seconds = 0;            // copying states in and out
  double compile_seconds = 0;            // kernels, at their first use
  gpu::EncoderCounts encoded;

  GpuCounters since(const GpuCounters& before) const;
};

// One layer of a step.
struct LayerJob {
  const LayerWeights* weights = nullptr;
  std::int64_t index = 0;                     // among the cache's layers
  const LayerWeights* next_sparse = nullptr;  // the layer after it, when that is sparse
};

class GpuLayers {
 public:
  static constexpr std::int64_t kHeadRows = 4;  // rows of logits at a time

  // All references must outlive this. Fails when the device cannot take the weights or the memory for activations.
  static Result<std::unique_ptr<GpuLayers>> create(gpu::Device& device, const ModelConfig& config, ModelWeights& weights,
                                                   std::int64_t max_rows, std::int64_t max_context, const GpuOptions& options);
  // Before the first step: registers the memory of experts, and makes their tables when they stay in it.
  Result<void> use_experts(ExpertSource& experts);
  void use_routing(const RoutingModel& routing) { routing_ = &routing; }
  // Registers a cache for as long as it lives.
  Result<void> adopt(KvCache& cache);

  // Memory that create() takes.
  static std::uint64_t memory_bytes(const ModelConfig& config, std::int64_t max_rows, std::int64_t max_context);

  bool on() const { return faults_.on(); }
  const gpu::FaultLog& faults() const { return faults_; }
  GpuCounters counters() const;
  const gpu::Device& device() const { return device_; }
  // Layers that the CPU computes because of their weights, with the reason.
  const std::vector<std::string>& notices() const { return notices_; }

  // What the CPU does in the GPU's place: one layer on x [rows, hidden], in place, with this selection, read or replaced.
  using Redo = std::function<Result<StepEnd>(const LayerJob& job, Selection& selection, float* x)>;
  using Observe = std::function<void(std::int64_t layer, const float* x)>;
  struct Step {
    StepRows rows;
    std::span<const LayerJob> jobs;
    float* x = nullptr;      // [rows, hidden], replaced by the state after the last layer
    bool with_head = false;  // logits of the rows follow without another wait, where they are few
    Redo redo;
    Observe observe;
    KeepGoing keep_going;
    PhaseTimes* times = nullptr;
  };
  Result<StepEnd> run(const Step& step);

  // logits [count, vocab] of rows [first, first + count) of the last step, whose states after the final norm are `hidden`
  // [count, hidden]; false: not done, the CPU must.
  bool logits(const float* hidden, std::int64_t first, std::int64_t count, float* out);

 private:
  // Work handed over and not waited for.
  struct Pending {
    enum class Part : std::uint8_t { kLayer, kAttention, kExperts, kHead } part = Part::kLayer;
    bool last = true;  // of its layer
    std::size_t job = 0;
    gpu::Submission work;
    PhaseClock since;
  };
  struct Progress {
    std::size_t next = 0;  // the job to submit
    bool redone = false;   // the CPU computed the one before it
    bool stopped = false;
  };

  GpuLayers(gpu::Device& device, const ModelConfig& config, ModelWeights& weights, std::int64_t max_rows,
            std::int64_t max_context, const GpuOptions& options);
  Result<void> lay_out();
  gpu::Address copy_constant(const AlignedArray<float>& values, gpu::Placer& constants);
  gpu::LayerView view(const LayerWeights& layer, gpu::Placer& constants);
  void check_formats(std::size_t layer);
  Result<gpu::ExpertEntry> expert_entry(const ExpertWeights& weights);

  // Copies in what the step needs; false when its rows are not in memory that the device can use.
  bool begin(const Step& step);
  gpu::StepTable table(const Step& step, std::int64_t layer) const;
  gpu::SelectionTable selection(const Step& step, std::size_t slot) const;
  gpu::Address state(const Step& step, std::size_t job) const;
  gpu::Address damage(std::size_t job) const { return damage_ + job * sizeof(std::uint32_t); }

  Result<Progress> submit(const Step& step, std::size_t job);
  void submit_head(const Step& step);
  void count(const Step& step, Pending& pending, const gpu::Completion& done, double later);
  Result<Progress> run_experts(const Step& step, std::size_t job, bool predict);
  Result<void> request_experts(const Step& step, const LayerJob& layer, bool predict);
  void choose_by_model(const Step& step, const LayerJob& layer);
  void add_expert(const ExpertSource::Ready& ready, gpu::Address table, gpu::Encoder& encoder);
  void clear_table(gpu::Address table);
  bool hand_over(gpu::Encoder& encoder, std::size_t job, Pending::Part part, bool last);
  Result<Progress> fail_and_redo(const Step& step, std::size_t job, const gpu::Encoder& encoder);
  // Waits until at most `keep` are pending. What failed is made good by the CPU, and everything after it is submitted again.
  Result<Progress> settle(const Step& step, std::size_t keep, std::size_t next);
  Result<Progress> redo(const Step& step, std::size_t job);
  void drop();
  void release_held();
  void read_selection(const Step& step, std::size_t slot, std::size_t rows, Selection& out);
  void write_selection(const Step& step, std::size_t slot, const Selection& in);

  gpu::Device& device_;
  const ModelConfig& config_;
  ModelWeights& weights_;
  GpuOptions options_;
  std::int64_t max_rows_, max_context_;
  gpu::LayerShape shape_;
  gpu::KernelSet kernels_;
  gpu::FaultLog faults_;
  GpuCounters counters_;
  std::vector<std::string> notices_;

  gpu::Registration weight_memory_;
  std::vector<gpu::Registration> expert_memory_;
  gpu::DeviceBlock constants_, work_, tables_;
  std::vector<gpu::LayerView> views_;  // the MTP layer last
  std::vector<bool> supported_;
  std::optional<gpu::LayerEncoder> encoder_;

  // Parts of work_.
  gpu::Address states_ = 0, rows_ = 0, cosine_ = 0, sine_ = 0, chosen_ = 0, counts_ = 0, damage_ = 0, ignored_ = 0, head_in_ = 0,
               head_out_ = 0, final_norm_ = 0, ready_table_ = 0, late_table_ = 0;

  std::int64_t state_rows_ = 0;  // residual rows that there is room for at states_

  ExpertSource* experts_ = nullptr;
  bool resident_ = false;  // every expert stays in memory: layers need no answer from the CPU
  const RoutingModel* routing_ = nullptr;

  // Of the step in progress.
  bool reachable_ = false;                 // begin() said so
  std::int64_t longest_ = 0;               // positions that its furthest row sees
  std::size_t ring_ = 0;                   // residual states that are kept
  std::vector<std::size_t> selection_of_;  // per job: the selection it reads or writes
  std::deque<Pending> pending_;
  std::vector<std::size_t> held_;  // experts handed out, in use by pending work
  std::vector<std::int32_t> ids_, id_rows_;
  std::int64_t head_ready_ = 0;  // rows of the last step whose logits are in head_out_
};

}  // namespace colibri

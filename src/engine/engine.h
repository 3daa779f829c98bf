// A model opened for use: weights in memory, the team of threads, the graph. Sessions run on it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/thread_team.h"
#include "engine/gpu_choice.h"
#include "engine/memory_plan.h"
#include "engine/speed_forecast.h"
#include "experts/disk_probe.h"
#include "experts/streaming_experts.h"
#include "experts/trace_recorder.h"
#include "experts/trace_writer.h"
#include "model/model.h"

namespace colibri {

struct EngineOptions {
  std::filesystem::path model;     // a model directory
  int threads = 0;                 // 0: every CPU this process may use
  std::int64_t context = 0;        // positions; 0: the model's own limit, at most kDefaultContext
  std::int64_t prefill_chunk = 0;  // rows of one prefill step; 0: kDefaultPrefillChunk. Never changes a bit of the output
  std::string isa;                 // "scalar", "avx2", "avx512", "neon"; empty: the best this CPU has
  std::uint64_t ram = 0;           // memory budget in bytes; 0: what the machine can spare
  std::int64_t expert_slots = 0;   // experts held in memory at most; 0: as many as the budget allows
  DiskWishes disk;                 // how experts that do not fit are read, as far as that is fixed
  bool verify = false;      // compare the checksums of packed experts as they are read; then even those that fit are streamed
  bool probe_disk = false;  // the rest as a measurement finds it, remembered in .coli_ssd beside the model; else by default
  std::string cache_policy = "default";
  std::filesystem::path usage;    // which experts earlier runs used (experts/usage_history.h): read at start; empty: no history
  double usage_decay = 1;         // what its counts are multiplied with, 0 to 1
  bool pin_hottest = true;        // keep its hottest experts in memory
  std::filesystem::path trace;    // where to record the routing (experts/trace.h); empty: nowhere
  bool stand_in_experts = false;  // measure computing alone: experts/stand_in_experts.h. The text is wrong
  bool prefetch = true;           // read experts that the next layer will probably need
  bool block_waits = false;       // threads block at once instead of spinning briefly (COLI_NO_OMP_TUNE=1); always with a GPU
  GpuChoice gpu = GpuChoice::kOff;
  // What the system says about memory while experts are streamed (base/memory_sample.h); empty: what it really says
  MemorySamples memory_samples;
  std::int64_t gpu_tile_from = 0;  // rows from which a GPU's tiled products are used (COLI_METAL_GEMM_MIN); 0: its default
};
inline constexpr std::int64_t kDefaultContext = 8192;
inline constexpr std::int64_t kDefaultPrefillChunk = 128;

// What open() would do.
struct EnginePlan {
  MemoryPlan memory;
  std::optional<DiskChoice> disk;  // how experts are read; none when all are in memory or there are none
  std::int64_t pins = 0;           // experts that the history keeps in memory, at most
  SpeedForecast forecast;
  std::vector<std::string> notices;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);
  // Without reading the weights; the disk may be measured.
  static Result<EnginePlan> plan(const EngineOptions& options);

  const ModelConfig& config() const { return config_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const ModelWeights& weights() const { return *weights_; }
  Model& model() { return *model_; }
  ThreadTeam& team() { return team_; }
  int threads() const { return team_.size(); }
  std::string_view kernels_name() const { return kernels_.name; }
  std::int64_t context() const { return model_->limits().max_context; }
  const MemoryPlan& memory() const { return memory_; }
  bool streams() const { return memory_.slabs.slots > 0 && (!memory_.all_resident || verify_); }
  // The streaming source, or null when every expert is in memory.
  const StreamingExperts* streaming() const { return streaming_; }
  // A synthetic model's routing, null for real models: then the text means nothing either way.
  const RoutingModel* routing() const { return routing_ ? &*routing_ : nullptr; }
  // The GPU that computes the layers; null: the CPU does.
  const gpu::Device* device() const { return device_.get(); }
  bool verifies() const { return verify_; }
  // Are the routed experts in the packed layout, with checksums?
  bool packed() const;
  // Experts that stand in for others: the text is wrong.
  bool stand_ins() const { return stand_ins_; }
  double load_seconds() const { return load_seconds_; }
  // What went wrong with the files beside the model, without harm to the answer.
  const std::vector<std::string>& notices() const { return notices_; }
  // Writes what this engine's runs added to the usage history, if there is one. Does nothing where the folder cannot be
  // written, and leaves a file alone that was refused at start.
  Result<void> save_usage() const;
  // Ends the trace; an error means that the file is not complete.
  Result<void> finish_trace();

 private:
  static Result<std::unique_ptr<Engine>> prepare(const EngineOptions& options);
  Result<void> open_routing(const std::filesystem::path& dir);
  Result<void> plan_experts(const EngineOptions& options);
  Result<MemoryPlan> fit(const EngineOptions& options, const ReaderOptions& reader) const;
  DiskChoice probe_disk(const EngineOptions& options) const;
  void load_usage(const EngineOptions& options);
  std::vector<ExpertKey> pins(const EngineOptions& options) const;
  SpeedForecast forecast() const;
  Result<void> open_experts(const EngineOptions& options);
  Result<void> open_trace(const std::filesystem::path& path);
  Result<void> open_gpu(const EngineOptions& options);
  Engine(ChosenGpu gpu, ModelConfig config, Checkpoint checkpoint, const Kernels& kernels, int threads, WaitMode wait)
      : device_(std::move(gpu.device)),
        config_(std::move(config)),
        checkpoint_(std::move(checkpoint)),
        kernels_(kernels),
        team_(threads, wait) {
    if (!gpu.notice.empty()) notices_.push_back(std::move(gpu.notice));
  }

  std::unique_ptr<gpu::Device> device_;  // goes last: everything registered with it is gone by then
  ModelConfig config_;
  Checkpoint checkpoint_;
  const Kernels& kernels_;
  ThreadTeam team_;
  std::unique_ptr<ModelWeights> weights_;
  MemoryPlan memory_;
  DiskChoice disk_;
  std::optional<UsageHistory> usage_;
  std::filesystem::path usage_path_;
  std::uint64_t usage_at_start_ = 0;
  std::vector<std::string> notices_;
  std::optional<RoutingModel> routing_;
  std::unique_ptr<ExpertSource> experts_;
  const StreamingExperts* streaming_ = nullptr;
  std::optional<TraceWriter> trace_;
  std::unique_ptr<TraceRecorder> recorder_;
  std::optional<Model> model_;
  bool verify_ = false, stand_ins_ = false;
  double load_seconds_ = 0;
};

}  // namespace colibri

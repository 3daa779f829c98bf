// A model opened for use: weights in memory, the team of threads, the graph. Sessions run on it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/thread_team.h"
#include "experts/resident_experts.h"
#include "model/model.h"

namespace colibri {

struct EngineOptions {
  std::filesystem::path model;     // a model directory
  int threads = 0;                 // 0: every CPU this process may use
  std::int64_t context = 0;        // positions; 0: the model's own limit, at most kDefaultContext
  std::int64_t prefill_chunk = 0;  // rows of one prefill step; 0: kDefaultPrefillChunk. Never changes a bit of the output
  std::string isa;                 // "scalar", "avx2", "avx512", "neon"; empty: the best this CPU has
  bool block_waits = false;        // threads block at once instead of spinning briefly (COLI_NO_OMP_TUNE=1)
};
inline constexpr std::int64_t kDefaultContext = 8192;
inline constexpr std::int64_t kDefaultPrefillChunk = 128;

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);

  const ModelConfig& config() const { return config_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const ModelWeights& weights() const { return *weights_; }
  Model& model() { return *model_; }
  ThreadTeam& team() { return team_; }
  int threads() const { return team_.size(); }
  std::string_view kernels_name() const { return kernels_.name; }
  std::int64_t context() const { return model_->limits().max_context; }
  std::uint64_t expert_bytes() const { return experts_->bytes(); }
  double load_seconds() const { return load_seconds_; }

 private:
  Engine(ModelConfig config, Checkpoint checkpoint, const Kernels& kernels, int threads, WaitMode wait)
      : config_(std::move(config)), checkpoint_(std::move(checkpoint)), kernels_(kernels), team_(threads, wait) {}

  ModelConfig config_;
  Checkpoint checkpoint_;
  const Kernels& kernels_;
  ThreadTeam team_;
  std::unique_ptr<ModelWeights> weights_;
  std::optional<ResidentExperts> experts_;
  std::optional<Model> model_;
  double load_seconds_ = 0;
};

}  // namespace colibri

#include "engine/engine.h"

#include <algorithm>
#include <chrono>

namespace colibri {
namespace {

constexpr int kMaxThreads = 256;
constexpr std::int64_t kMaxPrefillChunk = 4096;

Result<const Kernels*> choose_kernels(const std::string& isa) {
  if (isa.empty()) return &best_kernels();
  if (const Kernels* k = find_kernels(isa)) return k;
  std::string names;
  for (const Kernels* k : available_kernels()) names += fmt::format("{}{}", names.empty() ? "" : ", ", k->name);
  return fail("instruction set '{}' is not available on this CPU; available: {}", isa, names);
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (options.threads < 0 || options.threads > kMaxThreads)
    return fail("{} threads: expected 1 to {}, or 0 for every CPU", options.threads, kMaxThreads);
  if (options.prefill_chunk < 0 || options.prefill_chunk > kMaxPrefillChunk)
    return fail("a prefill chunk of {} rows: expected 1 to {}", options.prefill_chunk, kMaxPrefillChunk);
  COLIBRI_TRY(kernels, choose_kernels(options.isa));
  COLIBRI_TRY(config, ModelConfig::load(options.model));
  if (options.context < 0 || options.context > config.max_positions)
    return fail("a context of {} positions: {} allows 1 to {}", options.context, options.model.string(), config.max_positions);
  COLIBRI_TRY(checkpoint, Checkpoint::open(options.model));

  const int threads = options.threads > 0 ? options.threads : available_cpus();
  std::unique_ptr<Engine> engine(new Engine(std::move(config), std::move(checkpoint), *kernels, threads,
                                            options.block_waits ? WaitMode::kBlock : WaitMode::kAdaptive));
  COLIBRI_TRY(weights, ModelWeights::plan(engine->checkpoint_, engine->config_));
  engine->weights_ = std::move(weights);
  COLIBRI_CHECK(engine->weights_->read(engine->checkpoint_, engine->team_));
  COLIBRI_TRY(experts, ResidentExperts::load(engine->checkpoint_, engine->weights_->experts, engine->team_));
  engine->experts_.emplace(std::move(experts));
  ModelLimits limits;
  limits.max_context = options.context > 0 ? options.context : std::min(engine->config_.max_positions, kDefaultContext);
  limits.max_rows = std::min(options.prefill_chunk > 0 ? options.prefill_chunk : kDefaultPrefillChunk, limits.max_context);
  engine->model_.emplace(engine->config_, *engine->weights_, *engine->experts_, engine->kernels_, engine->team_, limits);
  engine->load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return engine;
}

}  // namespace colibri

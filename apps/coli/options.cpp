#include "options.h"

#include <cstdlib>
#include <random>
#include <string_view>

#include "locate.h"

namespace colibri {

bool environment_flag(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

CLI::Validator between(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return {};
        return fmt::format("'{}' is not a number from {} to {}", text, low, high);
      },
      fmt::format("[{} - {}]", low, high));
}

void EngineFlags::declare(CLI::App& app, bool model_flag) {
  if (model_flag) app.add_option("-m,--model", model, "Model directory; default: the demo model")->envname("COLI_MODEL");
  app.add_option("--threads", threads, "Threads; 0 for every CPU this process may use")->check(between(0, 256));
  app.add_option("--ctx", context, "Longest conversation in tokens; 0 for the model's limit, at most 8192")
      ->check(between(0, 1 << 30));
  app.add_option("--prefill-chunk", prefill_chunk, "Prompt tokens computed together; never changes the result")
      ->check(between(0, 4096));
  app.add_option("--isa", isa, "Instruction set: scalar, avx2, avx512 or neon; default: the best here. Never changes the result");
}

Result<EngineOptions> EngineFlags::engine_options() const {
  COLIBRI_TRY(dir, find_model(model));
  EngineOptions options;
  options.model = dir;
  options.threads = threads;
  options.context = context;
  options.prefill_chunk = prefill_chunk;
  options.isa = isa;
  options.block_waits = environment_flag("COLI_NO_OMP_TUNE");
  return options;
}

void SamplingFlags::declare(CLI::App& app) {
  app.add_option("--temp", temperature, "Temperature; 0 always takes the best token")
      ->check(between(0, 100))
      ->capture_default_str();
  app.add_option("--top-p", top_p, "Keep the best tokens that together have this probability; 1 keeps all")
      ->check(between(0, 1))
      ->capture_default_str();
  app.add_option("--top-k", top_k, "Keep this many of the best tokens; 0 keeps all")->check(between(0, 1 << 30));
  app.add_option("--seed", seed, "Seed; the same seed gives the same text on every machine. Default: a fresh one, printed");
}

numerics::SamplingRule SamplingFlags::rule() const {
  numerics::SamplingRule rule;
  rule.temperature = temperature;
  rule.top_p = top_p;
  rule.top_k = top_k;
  // 32 bits are enough and easy to type.
  rule.seed = seed ? *seed : std::random_device{}();
  return rule;
}

}  // namespace colibri

#include "options.h"

#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string_view>

#include "locate.h"

namespace colibri {

bool environment_flag(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

bool environment_off(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "0";
}

void EngineFlags::declare(CommandLine& line, bool model_flag) {
  if (model_flag) line.option("-m,--model", model, "Model directory; default: the demo model").from_environment("COLI_MODEL");
  line.option("--threads", threads, "Threads; 0 for every CPU this process may use").whole(0, 256);
  line.option("--ctx", context, "Longest conversation in tokens; 0 for the model's limit, at most 8192").whole(0, 1 << 30);
  line.option("--prefill-chunk", prefill_chunk,
              fmt::format("Prompt tokens computed together; default: {}. Never changes the result", kDefaultPrefillChunk))
      .whole(0, 4096);
  line.option("--ram", ram_gb,
              "Memory budget in GB; experts beyond it are read from disk as needed. 0: what the machine can spare")
      .between(0, 1e6);
  line.option("--cache-experts", cache_experts, "Hold at most this many experts in memory; 0: as many as the budget allows")
      .whole(0, 1 << 30);
  line.option("--cache-policy", cache_policy, "Which experts stay in memory: default, lru, lfu ... Never changes the result");
  line.flag("--no-prefetch", no_prefetch, "Do not read ahead what the next layer will probably need");
  line.flag("--verify", verify, "Compare the checksum of every expert that is read (packed models, see coli convert --pack)");
  line.flag("--stand-in-experts", stand_in_experts,
            "Measure computing alone: experts in memory stand in for all, nothing is read, the text is wrong");
  line.option("--direct", direct,
              "Read experts past the page cache: on, off, or auto, what a short measurement of the disk finds faster")
      .one_of({"auto", "on", "off"})
      .shows_default();
  line.option(
          "--gpu", gpu,
          "metal, auto (a real GPU where there is one) or off, the default unless COLI_METAL=1. Elsewhere than on a Mac, metal "
          "is a software device for tests. Never changes the result")
      .one_of({"metal", "auto", "off"});
  line.flag("--no-usage", no_usage,
            "Neither read nor keep the history of used experts (.coli_usage), which pins the hottest in memory");
  line.option("--isa", isa, "Instruction set: scalar, avx2, avx512 or neon; default: the best here. Never changes the result");
}

namespace {

// PIPE, PIPE_WORKERS and DIRECT, as users of the existing engine know them. What is not set stays open.
Result<void> read_reader_environment(DiskWishes& wishes) {
  if (const char* value = std::getenv("PIPE_WORKERS"); value != nullptr && *value != '\0') {
    const auto workers = parse_whole(value);
    if (!workers || *workers < 1 || *workers > 64)
      return fail("PIPE_WORKERS={}: expected the number of reads in flight, 1 to 64", value);
    wishes.in_flight = static_cast<int>(*workers);
  }
  if (environment_off("PIPE")) wishes.in_flight = 0;
  if (const char* value = std::getenv("DIRECT"); value != nullptr && *value != '\0') wishes.direct = environment_flag("DIRECT");
  return {};
}

// --gpu, COLI_METAL and COLI_METAL_GEMM_MIN.
Result<void> read_gpu_wishes(const std::string& flag, EngineOptions& options) {
  if (flag == "auto") options.gpu = GpuChoice::kAuto;
  if (flag == "metal" || (flag.empty() && environment_flag("COLI_METAL"))) options.gpu = GpuChoice::kMetal;
  if (const char* value = std::getenv("COLI_METAL_GEMM_MIN"); value != nullptr && *value != '\0') {
    const auto rows = parse_whole(value);
    if (!rows || *rows < 1 || *rows > 4096)
      return fail("COLI_METAL_GEMM_MIN={}: expected the rows from which tiled products are used, 1 to 4096", value);
    options.gpu_tile_from = static_cast<std::int64_t>(*rows);
  }
  return {};
}

// COLI_USAGE, COLI_USAGE_DECAY and AUTOPIN.
Result<void> read_usage_environment(EngineOptions& options) {
  const char* const path = std::getenv("COLI_USAGE");
  options.usage = path != nullptr && *path != '\0' ? std::filesystem::path(path) : options.model / ".coli_usage";
  options.pin_hottest = !environment_off("AUTOPIN");
  if (const char* value = std::getenv("COLI_USAGE_DECAY"); value != nullptr && *value != '\0') {
    const auto decay = parse_number(value);
    if (!decay || !(*decay >= 0 && *decay <= 1))
      return fail("COLI_USAGE_DECAY={}: expected what old counts are multiplied with, 0 to 1", value);
    options.usage_decay = *decay;
  }
  return {};
}

}  // namespace

Result<EngineOptions> EngineFlags::engine_options() const {
  COLIBRI_TRY(dir, find_model(model));
  EngineOptions options;
  options.model = dir;
  options.threads = threads;
  options.context = context;
  options.prefill_chunk = prefill_chunk;
  options.isa = isa;
  options.ram = static_cast<std::uint64_t>(ram_gb * 1e9);
  options.expert_slots = cache_experts;
  options.cache_policy = cache_policy;
  options.prefetch = !no_prefetch;
  options.stand_in_experts = stand_in_experts;
  options.verify = verify;
  COLIBRI_CHECK(read_reader_environment(options.disk));
  if (direct != "auto") options.disk.direct = direct == "on";
  options.probe_disk = true;
  if (!no_usage) COLIBRI_CHECK(read_usage_environment(options));
  COLIBRI_CHECK(read_gpu_wishes(gpu, options));
  options.block_waits = environment_flag("COLI_NO_OMP_TUNE");
  return options;
}

void SamplingFlags::declare(CommandLine& line) {
  line.option("--temp", temperature, "Temperature; 0 always takes the best token").between(0, 100).shows_default();
  line.option("--top-p", top_p, "Keep the best tokens that together have this probability; 1 keeps all")
      .between(0, 1)
      .shows_default();
  line.option("--top-k", top_k, "Keep this many of the best tokens; 0, the default, keeps all").whole(0, 1 << 30);
  line.option("--seed", seed, "Seed; the same seed gives the same text on every machine. Default: a fresh one, printed")
      .whole(0, std::numeric_limits<std::uint64_t>::max());
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

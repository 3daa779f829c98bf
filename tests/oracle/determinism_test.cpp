// One hash for whole runs, whatever the threads, the prefill chunk and the instruction set.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "engine/generate.h"
#include "format/safetensors.h"

namespace colibri {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = COLIBRI_SOURCE_DIR;

struct RunResult {
  std::uint64_t hash = 0;
  std::vector<std::int32_t> ids;
  bool operator==(const RunResult&) const = default;
};

RunResult run(const fs::path& model, std::span<const std::int32_t> prompt, const std::string& isa, int threads,
              std::int64_t chunk, std::int64_t tokens, bool block = false) {
  EngineOptions options;
  options.model = model;
  options.isa = isa;
  options.threads = threads;
  options.prefill_chunk = chunk;
  options.block_waits = block;
  auto engine = Engine::open(options);
  if (!engine) throw std::runtime_error(engine.error().message);
  Session session(**engine);
  GenerateOptions generation;
  generation.sampling = {0.8f, 0.95f, 40, 7};
  generation.max_tokens = tokens;
  RunResult result;
  auto stats = generate(session, prompt, generation, [&](std::int32_t id) {
    result.ids.push_back(id);
    return true;
  });
  if (!stats) throw std::runtime_error(stats.error().message);
  result.hash = stats->logits_hash;
  return result;
}

std::vector<std::int32_t> ids_of(const fs::path& dir, const std::string& name) {
  auto tensors = read_safetensors(dir / "expected.safetensors");
  if (!tensors) throw std::runtime_error(tensors.error().message);
  return tensors->at(name).ints();
}

void expect_one_hash(const fs::path& model, std::span<const std::int32_t> prompt, std::int64_t tokens) {
  const auto whole = static_cast<std::int64_t>(prompt.size());
  const RunResult reference = run(model, prompt, "scalar", 1, whole, tokens);
  EXPECT_EQ(reference.ids.size(), static_cast<std::size_t>(tokens));
  for (const Kernels* kernels : available_kernels()) {
    const std::string isa(kernels->name);
    for (const int threads : {1, 2, 3, 8})
      EXPECT_EQ(run(model, prompt, isa, threads, 64, tokens), reference) << isa << ", threads " << threads;
    for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{7}, std::int64_t{64}, whole})
      EXPECT_EQ(run(model, prompt, isa, 2, chunk, tokens), reference) << isa << ", chunk " << chunk;
  }
  EXPECT_EQ(run(model, prompt, std::string(best_kernels().name), 2, 64, tokens, true), reference) << "blocking waits";
}

TEST(Determinism, SmallModelPastTheIndexersTopK) {
  const fs::path dir = kRoot / "tests/oracle/cases/glm-dsa-tiny-g64";
  expect_one_hash(dir, ids_of(dir, "input_ids"), 24);
}

TEST(Determinism, OddSizes) {
  const fs::path dir = kRoot / "tests/oracle/cases/glm-odd-dims";
  expect_one_hash(dir, ids_of(dir, "input_ids"), 24);
}

TEST(Determinism, DemoModelLongPrompt) {
  const fs::path dir = kRoot / "models/demo";
  const std::vector<std::int32_t> ids = ids_of(dir, "ids.long");
  expect_one_hash(dir, std::span(ids).first(200), 8);
}

TEST(Determinism, HashSeesTheSeedThroughTheText) {
  const fs::path dir = kRoot / "tests/oracle/cases/glm-odd-dims";
  const std::vector<std::int32_t> ids = ids_of(dir, "input_ids");
  const RunResult a = run(dir, std::span(ids).first(5), "scalar", 1, 64, 6),
                  b = run(dir, std::span(ids).first(6), "scalar", 1, 64, 6);
  EXPECT_NE(a.hash, b.hash);
}

}  // namespace
}  // namespace colibri

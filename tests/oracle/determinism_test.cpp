// One hash for whole runs, whatever the threads, the prefill chunk and the instruction set.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "whole_runs.h"

namespace colibri {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::prompt_of;
const fs::path kRoot = COLIBRI_SOURCE_DIR;

Outcome run_with(const fs::path& model, std::span<const std::int32_t> prompt, const std::string& isa, int threads,
                 std::int64_t chunk, std::int64_t tokens, bool block = false) {
  EngineOptions options;
  options.model = model;
  options.isa = isa;
  options.threads = threads;
  options.prefill_chunk = chunk;
  options.block_waits = block;
  auto engine = Engine::open(options);
  if (!engine) throw std::runtime_error(engine.error().message);
  return test::run(**engine, prompt, tokens, {0.8f, 0.95f, 40, 7});
}

void expect_one_hash(const fs::path& model, std::span<const std::int32_t> prompt, std::int64_t tokens) {
  const auto whole = static_cast<std::int64_t>(prompt.size());
  const Outcome reference = run_with(model, prompt, "scalar", 1, whole, tokens);
  EXPECT_EQ(reference.ids.size(), static_cast<std::size_t>(tokens));
  for (const Kernels* kernels : available_kernels()) {
    const std::string isa(kernels->name);
    for (const int threads : {1, 2, 3, 8})
      EXPECT_EQ(run_with(model, prompt, isa, threads, 64, tokens), reference) << isa << ", threads " << threads;
    for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{7}, std::int64_t{64}, whole})
      EXPECT_EQ(run_with(model, prompt, isa, 2, chunk, tokens), reference) << isa << ", chunk " << chunk;
  }
  EXPECT_EQ(run_with(model, prompt, std::string(best_kernels().name), 2, 64, tokens, true), reference) << "blocking waits";
}

TEST(Determinism, SmallModelPastTheIndexersTopK) {
  const fs::path dir = kRoot / "tests/oracle/cases/glm-dsa-tiny-g64";
  expect_one_hash(dir, prompt_of(dir, "input_ids"), 24);
}

TEST(Determinism, OddSizes) {
  const fs::path dir = kRoot / "tests/oracle/cases/glm-odd-dims";
  expect_one_hash(dir, prompt_of(dir, "input_ids"), 24);
}

TEST(Determinism, DemoModelLongPrompt) {
  const fs::path dir = kRoot / "models/demo";
  const std::vector<std::int32_t> ids = prompt_of(dir, "ids.long");
  expect_one_hash(dir, std::span(ids).first(200), 8);
}

TEST(Determinism, HashSeesTheSeedThroughTheText) {
  const fs::path dir = kRoot / "tests/oracle/cases/glm-odd-dims";
  const std::vector<std::int32_t> ids = prompt_of(dir, "input_ids");
  const Outcome a = run_with(dir, std::span(ids).first(5), "scalar", 1, 64, 6),
                b = run_with(dir, std::span(ids).first(6), "scalar", 1, 64, 6);
  EXPECT_NE(a.hash, b.hash);
}

}  // namespace
}  // namespace colibri

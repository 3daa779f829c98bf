// Runs of whole models, for tests that compare what different settings make of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "format/safetensors.h"

namespace colibri::test {

// What must not depend on a setting.
struct Outcome {
  std::uint64_t hash = 0;  // of every logit vector sampled from
  std::vector<std::int32_t> ids;
  bool operator==(const Outcome&) const = default;
};

inline Outcome run(Engine& engine, std::span<const std::int32_t> prompt, std::int64_t tokens,
                   const numerics::SamplingRule& sampling = {}) {
  Session session(engine);
  GenerateOptions generation;
  generation.sampling = sampling;
  generation.max_tokens = tokens;
  Outcome outcome;
  auto stats = generate(session, prompt, generation, [&](std::int32_t id) {
    outcome.ids.push_back(id);
    return true;
  });
  if (!stats) throw std::runtime_error(stats.error().message);
  outcome.hash = stats->logits_hash;
  return outcome;
}

// The first tokens of an array of ids beside a model's reference values.
inline std::vector<std::int32_t> prompt_of(const std::filesystem::path& dir, const std::string& name,
                                           std::size_t tokens = ~std::size_t{0}) {
  auto tensors = read_safetensors(dir / "expected.safetensors");
  if (!tensors) throw std::runtime_error(tensors.error().message);
  std::vector<std::int32_t> ids = tensors->at(name).ints();
  ids.resize(std::min(ids.size(), tokens));
  return ids;
}

}  // namespace colibri::test

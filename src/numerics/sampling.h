// Rule C13 of docs/numerics.md: the same seed gives the same text on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace colibri::numerics {

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

struct SamplingRule {
  float temperature = 0.0f;  // 0: the best token, no randomness
  float top_p = 1.0f;        // 1: no cut
  std::int64_t top_k = 0;    // 0: no cut
  std::uint64_t seed = 0;
};

// The token for position n (the position it will take in the sequence); -1 when a logit is NaN.
std::int32_t sample(std::span<const float> logits, const SamplingRule& rule, std::uint64_t position);

}  // namespace colibri::numerics

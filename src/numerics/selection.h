// Rules C7 and C10 of docs/numerics.md: choosing experts, positions and tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace colibri::numerics {

// The k best of values in order of (value, then lower index). false when a value is NaN.
// chosen: min(k, values.size()) indices.
bool top_k(std::span<const float> values, std::int64_t k, std::vector<std::int32_t>& chosen);

// The index of the largest value, the lowest of equals; -1 when a value is NaN or there is none.
std::int64_t argmax(std::span<const float> values);

struct RouterRule {
  std::int64_t experts_per_token = 0;
  bool renormalise = true;
  float factor = 1.0f;
};
// Weights of the experts `ids`, in rank order, from the sigmoids of all logits.
void router_weights(std::span<const float> scores, const RouterRule& rule, std::span<const std::int32_t> ids,
                    std::vector<float>& weights);
// Sigmoid router: scores are the sigmoids of the logits, bias is added for the choice only. ids and weights in rank
// order. false when a score is NaN.
bool route_sigmoid(std::span<const float> scores, std::span<const float> bias, const RouterRule& rule,
                   std::vector<std::int32_t>& ids, std::vector<float>& weights);

}  // namespace colibri::numerics

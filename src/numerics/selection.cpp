#include "numerics/selection.h"

#include <algorithm>
#include <numeric>

namespace colibri::numerics {

bool top_k(std::span<const float> values, std::int64_t k, std::vector<std::int32_t>& chosen) {
  chosen.resize(values.size());
  std::iota(chosen.begin(), chosen.end(), 0);
  for (const float v : values)
    if (v != v) return false;
  const auto better = [values](std::int32_t a, std::int32_t b) {
    const float va = values[static_cast<std::size_t>(a)], vb = values[static_cast<std::size_t>(b)];
    return va > vb || (va == vb && a < b);
  };
  const auto count = std::min<std::int64_t>(k, static_cast<std::int64_t>(values.size()));
  if (count < static_cast<std::int64_t>(values.size()))
    std::nth_element(chosen.begin(), chosen.begin() + count, chosen.end(), better);
  chosen.resize(static_cast<std::size_t>(count));
  std::sort(chosen.begin(), chosen.end(), better);
  return true;
}

std::int64_t argmax(std::span<const float> values) {
  std::int64_t best = -1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != values[i]) return -1;
    if (best < 0 || values[i] > values[static_cast<std::size_t>(best)]) best = static_cast<std::int64_t>(i);
  }
  return best;
}

void router_weights(std::span<const float> scores, const RouterRule& rule, std::span<const std::int32_t> ids,
                    std::vector<float>& weights) {
  float sum = 0.0f;
  for (const std::int32_t id : ids) sum = sum + scores[static_cast<std::size_t>(id)];
  sum = sum + 1e-20f;
  weights.resize(ids.size());
  for (std::size_t r = 0; r < ids.size(); ++r) {
    const float s = scores[static_cast<std::size_t>(ids[r])];
    weights[r] = (rule.renormalise ? s / sum : s) * rule.factor;
  }
}

bool route_sigmoid(std::span<const float> scores, std::span<const float> bias, const RouterRule& rule,
                   std::vector<std::int32_t>& ids, std::vector<float>& weights) {
  std::vector<float> choice(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) choice[i] = scores[i] + bias[i];
  if (!top_k(choice, rule.experts_per_token, ids)) return false;
  router_weights(scores, rule, ids, weights);
  return true;
}

}  // namespace colibri::numerics

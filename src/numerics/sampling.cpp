#include "numerics/sampling.h"

#include <algorithm>
#include <vector>

#include "numerics/elementary.h"
#include "numerics/selection.h"

namespace colibri::numerics {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0], p1 = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return c;
}

std::int32_t sample(std::span<const float> logits, const SamplingRule& rule, std::uint64_t position) {
  if (rule.temperature <= 0.0f) return static_cast<std::int32_t>(argmax(logits));
  std::vector<std::int32_t> order;
  const auto count = static_cast<std::int64_t>(logits.size());
  if (!top_k(logits, rule.top_k > 0 ? rule.top_k : count, order) || order.empty()) return -1;
  const float best = logits[static_cast<std::size_t>(order[0])];
  std::vector<float> running(order.size());  // running[i]: sum of the first i + 1 weights
  float sum = 0.0f;
  for (std::size_t i = 0; i < order.size(); ++i) {
    sum = sum + exp((logits[static_cast<std::size_t>(order[i])] - best) / rule.temperature);
    running[i] = sum;
  }
  std::size_t kept = running.size();
  if (rule.top_p < 1.0f) {  // the shortest beginning that reaches top_p of the whole
    const float wanted = rule.top_p * sum;
    kept = static_cast<std::size_t>(std::lower_bound(running.begin(), running.end(), wanted) - running.begin()) + 1;
    kept = std::min(kept, running.size());
  }
  const auto bits = philox4x32({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0},
                               {static_cast<std::uint32_t>(rule.seed), static_cast<std::uint32_t>(rule.seed >> 32)});
  const float u = static_cast<float>(bits[0] >> 8) * 0x1p-24f;
  const float target = u * running[kept - 1];
  const auto chosen = std::upper_bound(running.begin(), running.begin() + static_cast<std::ptrdiff_t>(kept), target);
  const auto index = std::min(static_cast<std::size_t>(chosen - running.begin()), kept - 1);
  return order[index];
}

}  // namespace colibri::numerics

// Rule C6 and C11 of docs/numerics.md: the pieces of attention that are sums in a fixed order.
#pragma once

#include <cstdint>

namespace colibri::numerics {

inline constexpr std::int64_t kSumGroup = 2048;  // visible entries whose sums are formed together
inline constexpr std::int64_t kSumChunk = 64;    // entries of one fma chain within a group

// out[c] = sum over i of p[i] * v[i * v_stride + c] for one group of at most kSumGroup entries.
void weighted_sum(const float* p, const float* v, std::int64_t v_stride, std::int64_t entries, std::int64_t cols, float* out);

// The scale of a head's scores: 1 / sqrt(head dimension), computed in double and rounded once.
float inverse_sqrt(std::int64_t dims);

}  // namespace colibri::numerics

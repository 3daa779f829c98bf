// Rule C5 of docs/numerics.md.
#pragma once

#include <cstdint>

namespace colibri::numerics {

// eps of the norms of the query and key-value latents, and of the indexer's keys: whatever the config says.
inline constexpr float kLatentNormEps = 1e-6f;

// y = (x * r) * weight with r = 1 / sqrt(dot(x, x) / n + eps). x and y may be the same.
void rms_norm(const float* x, const float* weight, float eps, float* y, std::int64_t n);
// y = fma(c * r, weight, bias), c = x - mean.
void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, std::int64_t n);

// 1 / sqrt(sum_of_squares / n + eps), each operation rounded: what both norms multiply by.
float inverse_rms(float sum_of_squares, std::int64_t n, float eps);

// The C2 dot of two plain arrays (unit scale), and of one with ones.
float dot_plain(const float* a, const float* b, std::int64_t n);
float sum_plain(const float* a, std::int64_t n);

}  // namespace colibri::numerics

#include "numerics/elementary.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace colibri::numerics {

float exp(float x) {
  if (x != x) return x;
  if (x < -64.0f) return 0.0f;
  if (x > 64.0f) x = 64.0f;
  const float t = std::fma(x, 1.44269504f, 12582912.0f);  // x / ln 2, rounded to an integer in the low mantissa bits
  const float n = t - 12582912.0f;
  float r = std::fma(n, -0.693145752f, x);  // ln 2 in two pieces
  r = std::fma(n, -1.42860677e-6f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r * r, r);
  p = p + 1.0f;
  const auto exponent = static_cast<std::uint32_t>(static_cast<std::int32_t>(n)) << 23;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + exponent);
}

float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

float silu(float x) { return x * sigmoid(x); }

}  // namespace colibri::numerics

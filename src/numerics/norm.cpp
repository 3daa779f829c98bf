#include "numerics/norm.h"

#include <cmath>

#include "numerics/dot.h"

namespace colibri::numerics {
namespace {

// Rule C2 with unit scale over values given by index, so that arrays need no padding.
template <class Left, class Right>
float dot_of(Left left, Right right, std::int64_t n) {
  float acc[16] = {};
  for (std::int64_t block = 0; 32 * block < n; ++block) {
    for (std::int64_t half = 0; half < 2; ++half) {
      float p = 0.0f;
      for (std::int64_t i = 32 * block + half; i < 32 * block + 32; i += 2)
        p = std::fma(i < n ? left(i) : 0.0f, i < n ? right(i) : 0.0f, p);
      float& lane = acc[2 * (block % 8) + half];
      lane = std::fma(1.0f, p, lane);
    }
  }
  return tree16(acc);
}

}  // namespace

float dot_plain(const float* a, const float* b, std::int64_t n) {
  return dot_of([a](std::int64_t i) { return a[i]; }, [b](std::int64_t i) { return b[i]; }, n);
}

float sum_plain(const float* a, std::int64_t n) {
  return dot_of([](std::int64_t) { return 1.0f; }, [a](std::int64_t i) { return a[i]; }, n);
}

float inverse_rms(float sum_of_squares, std::int64_t n, float eps) {
  return 1.0f / std::sqrt(sum_of_squares / static_cast<float>(n) + eps);
}

void rms_norm(const float* x, const float* weight, float eps, float* y, std::int64_t n) {
  const float r = inverse_rms(dot_plain(x, x, n), n, eps);
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] * r) * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, std::int64_t n) {
  const float mean = sum_plain(x, n) / static_cast<float>(n);
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] - mean;
  const float r = inverse_rms(dot_plain(y, y, n), n, eps);
  for (std::int64_t i = 0; i < n; ++i) y[i] = std::fma(y[i] * r, weight[i], bias[i]);
}

}  // namespace colibri::numerics

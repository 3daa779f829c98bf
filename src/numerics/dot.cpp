#include "numerics/dot.h"

#include <algorithm>
#include <cmath>

// A fused multiply-add is one instruction or a library call; both round once. Where the CPU has the instruction, the
// reference may use it, so that whole models can be checked against it in reasonable time.
#if defined(__x86_64__) && defined(__linux__) && !defined(__clang__)
#define COLIBRI_WITH_FMA __attribute__((target_clones("fma", "default")))
#else
#define COLIBRI_WITH_FMA
#endif

namespace colibri::numerics {

float tree16(float a[16]) {
  for (int n = 8; n >= 1; n /= 2)
    for (int i = 0; i < n; ++i) a[i] = a[i] + a[i + n];
  return a[0];
}

COLIBRI_WITH_FMA float dot(const float* w, const float* scale, const float* x, std::int64_t k) {
  float acc[16] = {};
  for (std::int64_t block = 0; 32 * block < k; ++block) {
    const std::int64_t first = 32 * block, last = std::min(first + 32, k);
    for (std::int64_t half = 0; half < 2; ++half) {
      float p = 0.0f;
      for (std::int64_t i = first + half; i < first + 32; i += 2) p = std::fma(w[i], i < last ? x[i] : 0.0f, p);
      float& lane = acc[2 * (block % 8) + half];
      lane = std::fma(scale ? scale[block] : 1.0f, p, lane);
    }
  }
  return tree16(acc);
}

COLIBRI_WITH_FMA void add_transposed_chunk(const float* w, std::int64_t w_stride, const float* xs, std::int64_t xs_stride,
                                           std::int64_t xs_step, std::int64_t rows, std::int64_t cols, float* total) {
  for (std::int64_t j = 0; j < cols; ++j) {
    float p = 0.0f;
    for (std::int64_t d = 0; d < rows; ++d) p = std::fma(w[d * w_stride + j], xs[d * xs_stride + j * xs_step], p);
    total[j] = total[j] + p;
  }
}

}  // namespace colibri::numerics

#include "numerics/attention.h"

#include <algorithm>
#include <cmath>

namespace colibri::numerics {

void weighted_sum(const float* p, const float* v, std::int64_t v_stride, std::int64_t entries, std::int64_t cols, float* out) {
  for (std::int64_t c = 0; c < cols; ++c) {
    float total = 0.0f;
    for (std::int64_t first = 0; first < entries; first += kSumChunk) {
      float s = 0.0f;
      for (std::int64_t i = first; i < std::min(first + kSumChunk, entries); ++i) s = std::fma(p[i], v[i * v_stride + c], s);
      total = total + s;
    }
    out[c] = total;
  }
}

float inverse_sqrt(std::int64_t dims) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims))); }

}  // namespace colibri::numerics

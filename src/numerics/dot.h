// Rules C2 and C2t of docs/numerics.md: the two products every layer is made of.
#pragma once

#include <cstdint>

namespace colibri::numerics {

// C2. w: round_up(k, 32) floats, zeros past k; scale: one per block of 32, or null for 1; x: k floats.
float dot(const float* w, const float* scale, const float* x, std::int64_t k);

// The fixed tree over the 16 accumulators. Leaves a in an unspecified state.
float tree16(float a[16]);

// C2t for one chunk of at most 32 rows: total[j] += sum over d of fma(w[d * w_stride + j], xs[d * xs_stride + j * xs_step], .)
// where xs is x_d * scale, rounded once by the caller; xs_step is 0 when one scale serves the whole row, else 1.
void add_transposed_chunk(const float* w, std::int64_t w_stride, const float* xs, std::int64_t xs_stride, std::int64_t xs_step,
                          std::int64_t rows, std::int64_t cols, float* total);

}  // namespace colibri::numerics

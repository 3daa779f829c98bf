// Rules C2t and C6 over any vector type: sums over stored rows, one per column. See products.inl.h.
#pragma once

#include "cpu/products.inl.h"

namespace colibri::cpu {
namespace {

inline constexpr std::int64_t kTransposedChunk = 32;
inline constexpr std::int64_t kTransposedPanel = 32;                 // rows of x at a time
inline constexpr std::int64_t kWideStride = kSuperblock + 16;        // so that 32 rows do not share cache sets
inline constexpr std::int64_t kInputStride = kTransposedChunk * 16;  // scaled inputs of one row of x

struct TransposedScratch {
  float* weights;      // [chunk] kWideStride
  float* inputs;       // [panel][chunk][16]: x_d * scale by lane
  float* high_inputs;  // the same for the second half of each block, when scales change there
  float* totals;       // [panel][256], PackedRows order
  std::byte* staged;
  // `offset` puts weights and inputs in different halves of their cache lines (kWeightOffset).
  TransposedScratch(const KernelScratch& s, std::int64_t offset)
      : weights(reinterpret_cast<float*>(s.data)),
        inputs(weights + kTransposedChunk * kWideStride + offset),
        high_inputs(inputs + kTransposedPanel * kInputStride),
        totals(high_inputs + kTransposedPanel * kInputStride + 16 - offset),
        staged(reinterpret_cast<std::byte*>(totals + kTransposedPanel * kSuperblock)) {}
};

// kSteps of the 16 steps for kRows rows of x over one chunk of weight rows.
template <class V, int kSteps, int kRows>
void transposed_tile(std::int64_t chunk, const float* w, const float* inputs, float* totals) {
  for (int part = 0; part < 16; part += V::kWidth) {
    typename V::F p[kSteps][kRows];
    fma_chains<V, kSteps, kRows, false>(chunk, w + part, 16, kWideStride, inputs + part, kInputStride, 16, p);
    COLIBRI_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      COLIBRI_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float* t = totals + r * kSuperblock + 16 * i + part;
        V::store(t, V::add(V::load(t), p[i][r]));
      }
    }
  }
}

template <class V, int kSteps, int kRows>
void transposed_rows(std::int64_t chunk, const TransposedScratch& scratch, bool halves, std::int64_t r) {
  for (int i = 0; i < 16; i += kSteps)
    transposed_tile<V, kSteps, kRows>(chunk, scratch.weights + 16 * i,
                                      (halves && i >= 8 ? scratch.high_inputs : scratch.inputs) + r * kInputStride,
                                      scratch.totals + r * kSuperblock + 16 * i);
}

template <class V>
void transposed_panel(const WeightReader<V>& reader, const TransposedScratch& scratch, std::int64_t s, const float* x,
                      std::int64_t x_stride, std::int64_t rows, float* y, std::int64_t y_stride) {
  alignas(64) float scales[16];
  const float* half_scales = reader.half_scales;
  const Matrix& w = reader.w;
  const bool halves = reader.layout.kind == ScaleKind::kHalfBlocks;
  for (std::int64_t i = 0; i < rows * kSuperblock; i += V::kWidth) V::store(scratch.totals + i, V::zero());
  for (std::int64_t d = 0; d < w.rows; d += kTransposedChunk) {
    const std::int64_t chunk = smaller(kTransposedChunk, w.rows - d);
    for (std::int64_t i = 0; i < chunk; ++i) {
      reader.read(d + i, s, scratch.weights + i * kWideStride, scales);
      for (std::int64_t r = 0; r < rows; ++r) {
        const typename V::F value = V::set1(x[r * x_stride + d + i]);
        float* inputs = scratch.inputs + r * kInputStride + 16 * i;
        float* high = scratch.high_inputs + r * kInputStride + 16 * i;
        for (int lane = 0; lane < 16; lane += V::kWidth) {
          V::store(inputs + lane, V::mul(value, V::load((halves ? half_scales : scales) + lane)));
          if (halves) V::store(high + lane, V::mul(value, V::load(half_scales + 16 + lane)));
        }
      }
    }
    std::int64_t r = 0;
    for (; r + 3 <= rows; r += 3) transposed_rows<V, 4, 3>(chunk, scratch, halves, r);
    for (; r + 2 <= rows; r += 2) transposed_rows<V, 4, 2>(chunk, scratch, halves, r);
    for (; r < rows; ++r) transposed_rows<V, 8, 1>(chunk, scratch, halves, r);
  }
  const std::int64_t columns = smaller(kSuperblock, w.cols - s * kSuperblock);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < columns; ++k)
      y[r * y_stride + s * kSuperblock + k] = scratch.totals[r * kSuperblock + k % 32 / 2 * 16 + k % 2 * 8 + k / 32];
}

template <class V>
void transposed_matmul(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t rows, float* y, std::int64_t y_stride,
                       const KernelScratch& scratch_bytes) {
  const SuperblockLayout layout = superblock_layout(w);
  if (layout.kind == ScaleKind::kOther) return kScalarKernels.transposed_matmul(w, x, x_stride, rows, y, y_stride, scratch_bytes);
  const TransposedScratch scratch(scratch_bytes, V::kWeightOffset);
  alignas(64) float half_scales[32];
  const WeightReader<V> reader(w, layout, scratch.staged, half_scales);
  for (std::int64_t s = 0; s < layout.count; ++s)
    for (std::int64_t r = 0; r < rows; r += kTransposedPanel)
      transposed_panel(reader, scratch, s, x + r * x_stride, x_stride, smaller(kTransposedPanel, rows - r), y + r * y_stride,
                       y_stride);
}

// C6: kColumns vectors of columns for kHeads heads over one chunk of entries.
template <class V, int kColumns, int kHeads>
void sum_tile(const float* p, std::int64_t p_stride, const float* v, std::int64_t v_stride, std::int64_t entries, float* out,
              std::int64_t out_stride) {
  typename V::F s[kColumns][kHeads];
  fma_chains<V, kColumns, kHeads, true>(entries, v, V::kWidth, v_stride, p, p_stride, 1, s);
  COLIBRI_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    COLIBRI_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      float* o = out + h * out_stride + c * V::kWidth;
      V::store(o, V::add(V::load(o), s[c][h]));
    }
  }
}

template <class V, int kColumns>
void sum_heads(const float* p, std::int64_t p_stride, std::int64_t heads, const float* v, std::int64_t v_stride,
               std::int64_t entries, float* out, std::int64_t out_stride) {
  for (; heads >= 4; heads -= 4, p += 4 * p_stride, out += 4 * out_stride)
    sum_tile<V, kColumns, 4>(p, p_stride, v, v_stride, entries, out, out_stride);
  for (; heads >= 1; heads -= 1, p += p_stride, out += out_stride)
    sum_tile<V, kColumns, 1>(p, p_stride, v, v_stride, entries, out, out_stride);
}

template <class V>
void weighted_sum(const float* p, std::int64_t p_stride, std::int64_t heads, const float* v, std::int64_t v_stride,
                  std::int64_t entries, std::int64_t cols, float* out, std::int64_t out_stride) {
  constexpr std::int64_t kChunk = 64, kWide = 3 * V::kWidth;
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t c = 0; c < cols; ++c) out[h * out_stride + c] = 0.0f;
  for (std::int64_t i = 0; i < entries; i += kChunk) {
    const std::int64_t chunk = smaller(kChunk, entries - i);
    const float* rows = v + i * v_stride;
    std::int64_t c = 0;
    for (; c + kWide <= cols; c += kWide) sum_heads<V, 3>(p + i, p_stride, heads, rows + c, v_stride, chunk, out + c, out_stride);
    for (; c + V::kWidth <= cols; c += V::kWidth)
      sum_heads<V, 1>(p + i, p_stride, heads, rows + c, v_stride, chunk, out + c, out_stride);
    for (; c < cols; ++c)
      for (std::int64_t h = 0; h < heads; ++h) {
        float s = 0.0f;
        for (std::int64_t e = 0; e < chunk; ++e) s = __builtin_fmaf(p[h * p_stride + i + e], rows[e * v_stride + c], s);
        out[h * out_stride + c] = out[h * out_stride + c] + s;
      }
  }
}

}  // namespace
}  // namespace colibri::cpu

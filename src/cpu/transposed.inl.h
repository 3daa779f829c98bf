// Rules C2t and C6 over any vector type: sums over stored rows, one per column. See products.inl.h.
#pragma once

#include "cpu/products.inl.h"

namespace colibri::cpu {
namespace {

// Sums over rows of v for several heads: kColumns vectors of columns, kHeads heads, one chunk of rows added to `out`.
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

// `strips` times kHeads heads over `vectors` vectors of columns. A narrow part of v stays in cache for all heads.
template <class V, int kHeads, int kColumns = V::kTileOutputs[kHeads]>
void sum_strips(std::int64_t strips, std::int64_t vectors, const float* p, std::int64_t p_stride, const float* v,
                std::int64_t v_stride, std::int64_t entries, float* out, std::int64_t out_stride) {
  for (; vectors >= kColumns; vectors -= kColumns, v += kColumns * V::kWidth, out += kColumns * V::kWidth)
    for (std::int64_t i = 0; i < strips; ++i)
      sum_tile<V, kColumns, kHeads>(p + i * kHeads * p_stride, p_stride, v, v_stride, entries, out + i * kHeads * out_stride,
                                    out_stride);
  if constexpr (kColumns > 1)
    if (vectors > 0) sum_strips<V, kHeads, kColumns - 1>(strips, vectors, p, p_stride, v, v_stride, entries, out, out_stride);
}

template <class V, int kHeads = V::kTileRows>
void sum_block(std::int64_t heads, std::int64_t vectors, const float* p, std::int64_t p_stride, const float* v,
               std::int64_t v_stride, std::int64_t entries, float* out, std::int64_t out_stride) {
  const std::int64_t strips = heads / kHeads, done = strips * kHeads;
  if (strips > 0) sum_strips<V, kHeads>(strips, vectors, p, p_stride, v, v_stride, entries, out, out_stride);
  if constexpr (kHeads > 1)
    if (heads > done)
      sum_block<V, kHeads - 1>(heads - done, vectors, p + done * p_stride, p_stride, v, v_stride, entries,
                               out + done * out_stride, out_stride);
}

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

// All 16 steps for a few rows of x, whose inputs stay in cache while the weights pass.
template <class V>
void transposed_block(std::int64_t chunk, std::int64_t rows, const TransposedScratch& scratch, bool halves, std::int64_t first) {
  for (int i = 0; i < 16; i += 4) {
    const float* w = scratch.weights + 16 * i;
    const float* inputs = (halves && i >= 8 ? scratch.high_inputs : scratch.inputs) + first * kInputStride;
    float* totals = scratch.totals + first * kSuperblock + 16 * i;
    std::int64_t r = 0;
    for (; r + 3 <= rows; r += 3) transposed_tile<V, 4, 3>(chunk, w, inputs + r * kInputStride, totals + r * kSuperblock);
    for (; r + 2 <= rows; r += 2) transposed_tile<V, 4, 2>(chunk, w, inputs + r * kInputStride, totals + r * kSuperblock);
    for (; r < rows; ++r) transposed_tile<V, 4, 1>(chunk, w, inputs + r * kInputStride, totals + r * kSuperblock);
  }
}

// One scale serves the whole row, so a row's input is one number for all columns.
template <class V>
void transposed_chunk_by_row(const WeightReader<V>& reader, const TransposedScratch& scratch, std::int64_t s, std::int64_t d,
                             std::int64_t chunk, const float* x, std::int64_t x_stride, std::int64_t rows) {
  alignas(64) float scales[16];
  for (std::int64_t i = 0; i < chunk; ++i) {
    reader.read(d + i, s, scratch.weights + i * kWideStride, scales);
    for (std::int64_t r = 0; r < rows; ++r) scratch.inputs[r * kTransposedChunk + i] = x[r * x_stride + d + i] * scales[0];
  }
  sum_block<V>(rows, kSuperblock / V::kWidth, scratch.inputs, kTransposedChunk, scratch.weights, kWideStride, chunk,
               scratch.totals, kSuperblock);
}

template <class V>
void transposed_chunk_by_lane(const WeightReader<V>& reader, const TransposedScratch& scratch, std::int64_t s, std::int64_t d,
                              std::int64_t chunk, const float* x, std::int64_t x_stride, std::int64_t rows) {
  alignas(64) float scales[16];
  const bool halves = reader.layout.kind == ScaleKind::kHalfBlocks;
  for (std::int64_t i = 0; i < chunk; ++i) {
    reader.read(d + i, s, scratch.weights + i * kWideStride, scales);
    const float* low = halves ? reader.half_scales : scales;
    for (std::int64_t r = 0; r < rows; ++r) {
      const typename V::F value = V::set1(x[r * x_stride + d + i]);
      const std::int64_t at = r * kInputStride + 16 * i;
      for (int lane = 0; lane < 16; lane += V::kWidth) {
        V::store(scratch.inputs + at + lane, V::mul(value, V::load(low + lane)));
        if (halves) V::store(scratch.high_inputs + at + lane, V::mul(value, V::load(reader.half_scales + 16 + lane)));
      }
    }
  }
  constexpr std::int64_t kBlock = 6;  // 12 KiB of inputs
  for (std::int64_t r = 0; r < rows; r += kBlock) transposed_block<V>(chunk, smaller(kBlock, rows - r), scratch, halves, r);
}

template <class V>
void transposed_panel(const WeightReader<V>& reader, const TransposedScratch& scratch, std::int64_t s, const float* x,
                      std::int64_t x_stride, std::int64_t rows, float* y, std::int64_t y_stride) {
  const Matrix& w = reader.w;
  const bool by_row = reader.layout.kind == ScaleKind::kUnit || reader.layout.kind == ScaleKind::kRow;
  for (std::int64_t i = 0; i < rows * kSuperblock; i += V::kWidth) V::store(scratch.totals + i, V::zero());
  for (std::int64_t d = 0; d < w.rows; d += kTransposedChunk) {
    const std::int64_t chunk = smaller(kTransposedChunk, w.rows - d);
    if (by_row)
      transposed_chunk_by_row(reader, scratch, s, d, chunk, x, x_stride, rows);
    else
      transposed_chunk_by_lane(reader, scratch, s, d, chunk, x, x_stride, rows);
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

template <class V>
void weighted_sum(const float* p, std::int64_t p_stride, std::int64_t heads, const float* v, std::int64_t v_stride,
                  std::int64_t entries, std::int64_t cols, float* out, std::int64_t out_stride) {
  constexpr std::int64_t kChunk = 64;
  const std::int64_t vectors = cols / V::kWidth;
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t c = 0; c < cols; ++c) out[h * out_stride + c] = 0.0f;
  for (std::int64_t i = 0; i < entries; i += kChunk) {
    const std::int64_t chunk = smaller(kChunk, entries - i);
    const float* rows = v + i * v_stride;
    sum_block<V>(heads, vectors, p + i, p_stride, rows, v_stride, chunk, out, out_stride);
    for (std::int64_t c = vectors * V::kWidth; c < cols; ++c)
      for (std::int64_t h = 0; h < heads; ++h) {
        float s = 0.0f;
        for (std::int64_t e = 0; e < chunk; ++e) s = __builtin_fmaf(p[h * p_stride + i + e], rows[e * v_stride + c], s);
        out[h * out_stride + c] = out[h * out_stride + c] + s;
      }
  }
}

}  // namespace
}  // namespace colibri::cpu

// The products of rule C2 over any vector type. Included once by each instruction set's file; `Vector` has
//   F, kWidth (4, 8 or 16 floats), load, store, zero, set1, add, mul, fma(a, b, c) = a * b + c, tree(16 accumulators),
//   kWeightStride and kWeightOffset: where widened rows stand in scratch, in floats; kTileRows and kTileOutputs[rows]:
//   register tiles that fit its register file, kOutputBlock: weight rows widened at a time when there are several rows of x,
//   widen(format): the function that widens a superblock to PackedRows order, kDecodeOutputs: rows of int4 weights that
//   decode_int4 takes together, 0 for none; for it decode_row (x as int4_chains wants it, null when that is impossible),
//   int4_chains (asks for the codes of a later step on its way), spread4 (scales of groups of 64), to_decode_order and
//   from_decode_order.
#pragma once

#include "cpu/kernels.h"
#include "cpu/prefetch.h"
#include "cpu/superblock.h"
#include "cpu/tables.h"

namespace colibri::cpu {
namespace {

constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t larger(std::int64_t a, std::int64_t b) { return a < b ? b : a; }

// Register tile: p[o][r] = chain of fma(w, x, p) over `steps`, from +0. All strides in floats.
template <class V, int kOutputs, int kRows, bool kBroadcastX>
inline void fma_chains(std::int64_t steps, const float* w, std::int64_t w_output, std::int64_t w_step, const float* x,
                       std::int64_t x_row, std::int64_t x_step, typename V::F (&p)[kOutputs][kRows]) {
  COLIBRI_UNROLL
  for (int o = 0; o < kOutputs; ++o) {
    COLIBRI_UNROLL
    for (int r = 0; r < kRows; ++r) p[o][r] = V::zero();
  }
  // The shorter side stays in registers during a step, the other passes by once.
  for (std::int64_t i = 0; i < steps; ++i) {
    const float* xi = x + i * x_step;
    const float* wi = w + i * w_step;
    const auto x_at = [&](int r) { return kBroadcastX ? V::set1(xi[r * x_row]) : V::load(xi + r * x_row); };
    if constexpr (kRows <= kOutputs) {
      typename V::F xs[kRows];
      COLIBRI_UNROLL
      for (int r = 0; r < kRows; ++r) xs[r] = x_at(r);
      COLIBRI_UNROLL
      for (int o = 0; o < kOutputs; ++o) {
        const typename V::F ws = V::load(wi + o * w_output);
        COLIBRI_UNROLL
        for (int r = 0; r < kRows; ++r) p[o][r] = V::fma(ws, xs[r], p[o][r]);
      }
    } else {
      typename V::F ws[kOutputs];
      COLIBRI_UNROLL
      for (int o = 0; o < kOutputs; ++o) ws[o] = V::load(wi + o * w_output);
      COLIBRI_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const typename V::F xs = x_at(r);
        COLIBRI_UNROLL
        for (int o = 0; o < kOutputs; ++o) p[o][r] = V::fma(ws[o], xs, p[o][r]);
      }
    }
  }
}

// One superblock of kOutputs widened weight rows with kRows rows of x. acc: [kOutputs][kRows][16].
template <class V, int kOutputs, int kRows>
void product_tile(const float* w, const float* scales, const float* x, float* acc) {
  for (int part = 0; part < 16; part += V::kWidth) {
    typename V::F p[kOutputs][kRows];
    fma_chains<V, kOutputs, kRows, false>(16, w + part, V::kWeightStride, 16, x + part, kSuperblock, 16, p);
    COLIBRI_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      const typename V::F scale = V::load(scales + 16 * o + part);
      COLIBRI_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float* a = acc + 16 * (o * kRows + r) + part;
        V::store(a, V::fma(scale, p[o][r], V::load(a)));
      }
    }
  }
}

// All outputs of a block with kRows rows of x, in tiles as large as the registers hold. acc: [outputs][kRows][16], so
// that every tile's sums are one piece of memory and the pieces follow each other. next: the rows of x that come after
// these; the tiles ask for their share of as many, since all of x is more than the first-level cache holds.
template <class V, int kRows, int kOutputs = V::kTileOutputs[kRows]>
void product_column(std::int64_t outputs, const float* w, const float* scales, const float* x, Address next, float* acc) {
  while (outputs >= kOutputs) {
    if constexpr (kRows == V::kTileRows) {
      constexpr std::int64_t kShare = 4 * kRows * kSuperblock * kOutputs / V::kOutputBlock;
      prefetch_range(next, kShare, next + kShare);
      next += kShare;
    }
    product_tile<V, kOutputs, kRows>(w, scales, x, acc);
    w += kOutputs * V::kWeightStride;
    scales += kOutputs * 16;
    acc += kOutputs * kRows * 16;
    outputs -= kOutputs;
  }
  if constexpr (kOutputs > 1)
    if (outputs > 0) product_column<V, kRows, kOutputs - 1>(outputs, w, scales, x, next, acc);
}

// The same for any number of rows: strips of kTileRows, then one of the rest.
template <class V, int kRows = V::kTileRows>
void product_block(std::int64_t rows, std::int64_t outputs, const float* w, const float* scales, const float* x, float* acc) {
  while (rows >= kRows) {
    const float* next = x + kRows * kSuperblock;
    product_column<V, kRows>(outputs, w, scales, x, address_of(next), acc);
    x = next;
    acc += kRows * outputs * 16;
    rows -= kRows;
  }
  if constexpr (kRows > 1)
    if (rows > 0) product_block<V, kRows - 1>(rows, outputs, w, scales, x, acc);
}

// The results of a block, from sums laid out as product_block leaves them.
template <class V>
void finish_block(std::int64_t rows, std::int64_t outputs, const float* acc, float* y, std::int64_t y_stride) {
  for (std::int64_t r = 0; r < rows;) {
    const std::int64_t strip = smaller(V::kTileRows, rows - r);
    for (std::int64_t o = 0; o < outputs; ++o)
      for (std::int64_t i = 0; i < strip; ++i, acc += 16) y[(r + i) * y_stride + o] = V::tree(acc);
    r += strip;
  }
}

template <int kSpan>
inline void spread_scales(const float* scales, float* out) {
  for (int g = 0; g < 8; ++g) out[g] = out[8 + g] = scales[g / kSpan];
}

// A row of weights, a superblock at a time.
template <class V>
struct WeightReader {
  const Matrix& w;
  const SuperblockLayout layout;
  void (*const widen)(const std::byte* source, float* out);
  std::byte* const staged;   // kStagedBytes
  float* const half_scales;  // 32, of the superblock read last when the kind is kHalfBlocks
  WeightReader(const Matrix& matrix, const SuperblockLayout& l, std::byte* staged_bytes, float* halves)
      : w(matrix), layout(l), widen(V::widen(matrix.format)), staged(staged_bytes), half_scales(halves) {}

  // Weights and block scales of superblock s of row o; groups that are no multiple of 32 are left to the caller.
  void read(std::int64_t o, std::int64_t s, float* weights, float* scales) const {
    const std::byte* source = w.data + o * w.row_bytes + s * layout.bytes;
    if (s >= layout.full) {
      stage_tail(w, o, staged);
      source = staged;
    }
    widen(source, weights);
    read_scales(o, s, scales);
  }

  void read_scales(std::int64_t o, std::int64_t s, float* out) const {
    constexpr float kOne[1] = {1.0f};
    const bool unit = layout.kind == ScaleKind::kUnit || layout.kind == ScaleKind::kHalfBlocks;
    const float* row = unit ? kOne : w.format == WeightFormat::kF8Block128 ? scales_of_row(w, o) : w.scales + o * w.scale_stride;
    if (layout.kind == ScaleKind::kHalfBlocks) stage_half_scales(layout, w.cols, w.scales + o * w.scale_stride, s, half_scales);
    if (s >= layout.full) return stage_scales(layout, row, s, out);
    if (layout.kind != ScaleKind::kBlocks) return spread_scales<8>(row, out);
    switch (layout.span) {
      case 1: return spread_scales<1>(row + 8 * s, out);
      case 2: return spread_scales<2>(row + 4 * s, out);
      case 4: return spread_scales<4>(row + 2 * s, out);
      case 8: return spread_scales<8>(row + s, out);
      default: return stage_scales(layout, row, s, out);
    }
  }

  // C2 for a group that is no multiple of 32: the weight is q * scale, rounded, and the block scale 1.
  void apply_half_scales(float* weights) const {
    for (int i = 0; i < 16; ++i)
      for (int part = 0; part < 16; part += V::kWidth) {
        float* step = weights + 16 * i + part;
        V::store(step, V::mul(V::load(step), V::load(half_scales + i / 8 * 16 + part)));
      }
  }
};

// What a thread's scratch holds during a product.
struct ProductScratch {
  float* weights;
  float* scales;
  float* half_scales;
  float* acc;
  std::byte* staged;
  float* row;  // the row of x as decode_int4 wants it
  explicit ProductScratch(const KernelScratch& s)
      : weights(reinterpret_cast<float*>(s.data)),
        scales(weights + (kLargestOutputBlock + 1) * (kSuperblock + 16)),
        half_scales(scales + kLargestOutputBlock * 16),
        acc(half_scales + 32),
        staged(reinterpret_cast<std::byte*>(acc + kLargestOutputBlock * kRowPanel * 16)),
        row(reinterpret_cast<float*>(staged + kStagedBytes)) {}
};

// How far ahead of the weights being read those to come are asked for in decode, in bytes: they are read once, rows side by
// side, so while a block of rows is read the next one is asked for, in the order of memory. Blocks of short rows ask for those
// after it: nearer comes too late (docs/measurements.md).
inline constexpr std::int64_t kLeastAhead = 4 * 1024;
constexpr std::int64_t bytes_ahead(std::int64_t block_bytes) { return larger(kLeastAhead, block_bytes); }

// One row of x times int4 weights, kDecodeOutputs rows at a time; returns the first output that is left. Lanes stand in an
// order that V likes; they are put right for the tree.
template <class V>
std::int64_t decode_int4(const WeightReader<V>& reader, const ProductScratch& scratch, std::int64_t first, std::int64_t last,
                         const float* x, float* y) {
  constexpr int kParts = 16 / V::kWidth, kOutputs = V::kDecodeOutputs;
  const SuperblockLayout& layout = reader.layout;
  const Matrix& w = reader.w;
  const float* row_x = V::decode_row(x, layout.count, scratch.row);
  if (row_x == nullptr) return first;
  const bool by_row = layout.kind == ScaleKind::kRow, by_64 = layout.kind == ScaleKind::kBlocks && layout.span == 2;
  const std::int64_t step_bytes = kOutputs * layout.bytes, scale_bytes = by_64 ? 16 * kOutputs : 0;
  const std::int64_t far = bytes_ahead(kOutputs * w.row_bytes);
  const Address last_step = address_of(w.data + last * w.row_bytes) - step_bytes;
  const Address scales_end = address_of(w.scales + last * w.scale_stride);
  std::byte* staged = reinterpret_cast<std::byte*>(scratch.weights);
  for (; first + kOutputs <= last; first += kOutputs) {
    const std::byte* codes[kOutputs];
    const float* scales[kOutputs];
    typename V::F acc[kOutputs][kParts];
    COLIBRI_UNROLL
    for (int n = 0; n < kOutputs; ++n) {
      codes[n] = w.data + (first + n) * w.row_bytes;
      scales[n] = w.scales + (first + n) * w.scale_stride;
      COLIBRI_UNROLL
      for (int h = 0; h < kParts; ++h) acc[n][h] = V::zero();
    }
    Address ahead = address_of(codes[0]) + far;
    Address scales_ahead = address_of(scales[0]) + far / 8;  // a group of 64: 32 bytes of codes, 4 of scale
    // Superblock s of all rows; scale_of(n, h): the block scales of row n, part h, in the decode order.
    const auto add = [&](std::int64_t s, auto&& scale_of) {
      prefetch_range(scales_ahead, scale_bytes, scales_end);
      scales_ahead += scale_bytes;
      typename V::F p[kOutputs][kParts];
      V::int4_chains(codes, row_x + s * kSuperblock, ahead < last_step ? ahead : last_step, p);
      ahead += step_bytes;
      COLIBRI_UNROLL
      for (int n = 0; n < kOutputs; ++n) {
        COLIBRI_UNROLL
        for (int h = 0; h < kParts; ++h) acc[n][h] = V::fma(scale_of(n, h), p[n][h], acc[n][h]);
        codes[n] += layout.bytes;
      }
    };
    std::int64_t s = 0;
    if (by_64)
      for (; s < layout.full; ++s) add(s, [&](int n, int) { return V::spread4(scales[n] + 4 * s); });
    else if (by_row)
      for (; s < layout.full; ++s) add(s, [&](int n, int) { return V::set1(*scales[n]); });
    for (; s < layout.count; ++s) {
      if (s >= layout.full) {
        for (int n = 0; n < kOutputs; ++n) {
          codes[n] = staged + n * kStagedBytes;
          stage_tail(w, first + n, staged + n * kStagedBytes);
        }
      }
      add(s, [&](int n, int h) {
        if (h == 0) reader.read_scales(first + n, s, scratch.scales);
        return V::to_decode_order(V::load(scratch.scales + h * V::kWidth));
      });
    }
    for (int n = 0; n < kOutputs; ++n) {
      for (int h = 0; h < kParts; ++h) V::store(scratch.acc + h * V::kWidth, V::from_decode_order(acc[n][h]));
      y[first + n] = V::tree(scratch.acc);
    }
  }
  return first;
}

template <class V>
void matmul_panel(const WeightReader<V>& reader, const ProductScratch& scratch, std::int64_t first, std::int64_t last,
                  const float* x, std::int64_t x_rows, std::int64_t rows, float* y, std::int64_t y_stride) {
  static_assert(V::kOutputBlock <= kLargestOutputBlock && V::kWeightStride <= kSuperblock + 16, "ProductScratch has room");
  const SuperblockLayout& layout = reader.layout;
  const Matrix& w = reader.w;
  if constexpr (V::kDecodeOutputs > 0) {
    const bool int4 = w.format == WeightFormat::kInt4Row || w.format == WeightFormat::kInt4Grouped;
    if (x_rows == 1 && int4 && layout.kind != ScaleKind::kHalfBlocks) first = decode_int4(reader, scratch, first, last, x, y);
  }
  const bool decode = rows == 1;
  const std::int64_t block = decode ? 8 : V::kOutputBlock;
  const Address end = address_of(w.data + last * w.row_bytes);
  for (std::int64_t o = first; o < last; o += block) {
    const std::int64_t outputs = smaller(block, last - o);
    for (std::int64_t i = 0; i < outputs * rows * 16; i += V::kWidth) V::store(scratch.acc + i, V::zero());
    Address stream = address_of(w.data + o * w.row_bytes) + bytes_ahead(block * w.row_bytes);
    for (std::int64_t s = 0; s < layout.count; ++s) {
      for (std::int64_t i = 0; i < outputs; ++i) {
        float* weights = scratch.weights + V::kWeightOffset + i * V::kWeightStride;
        // With many rows of x there is time enough to ask for the superblock that comes next.
        prefetch_range(decode ? stream : address_of(w.data + (o + i) * w.row_bytes + (s + 1) * layout.bytes), layout.bytes, end);
        stream += layout.bytes;
        reader.read(o + i, s, weights, scratch.scales + 16 * i);
        if (layout.kind == ScaleKind::kHalfBlocks) reader.apply_half_scales(weights);
      }
      product_block<V>(rows, outputs, scratch.weights + V::kWeightOffset, scratch.scales, x + s * x_rows * kSuperblock,
                       scratch.acc);
    }
    finish_block<V>(rows, outputs, scratch.acc, y + o, y_stride);
  }
}

template <class V>
void matmul(const Matrix& w, std::int64_t first, std::int64_t last, const PackedRows& x, float* y, std::int64_t y_stride,
            const KernelScratch& scratch_bytes) {
  const SuperblockLayout layout = superblock_layout(w);
  if (layout.kind == ScaleKind::kOther) return kScalarKernels.matmul(w, first, last, x, y, y_stride, scratch_bytes);
  const ProductScratch scratch(scratch_bytes);
  const WeightReader<V> reader(w, layout, scratch.staged, scratch.half_scales);
  for (std::int64_t r = 0; r < x.rows; r += kRowPanel)
    matmul_panel(reader, scratch, first, last, x.data + r * kSuperblock, x.rows, smaller(kRowPanel, x.rows - r), y + r * y_stride,
                 y_stride);
}

template <class V>
void pack_rows(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols, float* out) {
  alignas(64) std::byte staged[kStagedBytes];
  const Matrix view = f32_matrix(x, rows, cols, stride);
  const auto widen = V::widen(WeightFormat::kF32);
  for (std::int64_t s = 0; s * kSuperblock < cols; ++s)
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::byte* source = view.data + r * view.row_bytes + 4 * s * kSuperblock;
      if ((s + 1) * kSuperblock > cols) {
        stage_tail(view, r, staged);
        source = staged;
      }
      widen(source, out + (s * rows + r) * kSuperblock);
    }
}

template <class V>
float dot(const float* a, const float* b, std::int64_t n) {
  alignas(64) float left[kSuperblock], right[kSuperblock], acc[16], scales[16];
  const Matrix va = f32_matrix(a, 1, n, n), vb = f32_matrix(b, 1, n, n);
  const SuperblockLayout layout = superblock_layout(va);
  alignas(64) std::byte staged[kStagedBytes];
  const WeightReader<V> read_a(va, layout, staged, scales), read_b(vb, layout, staged, scales);
  for (int i = 0; i < 16; i += V::kWidth) V::store(acc + i, V::zero());
  for (std::int64_t s = 0; s < layout.count; ++s) {
    read_a.read(0, s, left, scales);
    read_b.read(0, s, right, scales);
    product_tile<V, 1, 1>(left, scales, right, acc);
  }
  return V::tree(acc);
}

}  // namespace
}  // namespace colibri::cpu

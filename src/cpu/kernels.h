// The CPU kernels behind one table per instruction set, all bit-identical (docs/numerics.md). The graph in
// src/model calls only these; threads are the caller's business: every kernel works on the range it is given.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "format/matrix.h"

namespace colibri {

// Activation rows in the order the products walk them. K is cut in superblocks of 256 columns (8 blocks of 32, the
// last one padded with zeros); float (s, r, i, h, g) is x[r][256 s + 32 g + 2 i + h], that is at
// ((s * rows + r) * 16 + i) * 16 + 8 h + g. So step i of a superblock is 16 consecutive floats, one per accumulator
// of rule C2 (lane 2g + h stands at 8h + g), for every ISA.
struct PackedRows {
  const float* data = nullptr;  // 64-byte aligned
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  static std::int64_t floats(std::int64_t rows, std::int64_t cols) { return (cols + 255) / 256 * 256 * rows; }
};

// Scratch a thread hands to matmul and transposed_matmul. bytes: at least kernel_scratch_bytes(cols).
struct KernelScratch {
  std::byte* data = nullptr;  // 64-byte aligned
  std::int64_t bytes = 0;
};
std::int64_t kernel_scratch_bytes(std::int64_t cols);

struct Kernels {
  std::string_view name;  // "scalar", "avx2", "avx512", "neon"

  // out = x rows in PackedRows order; x: rows of `cols` floats, `stride` apart.
  void (*pack_rows)(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols, float* out);

  // C2: y[r * y_stride + o] = dot(row o of w, row r of x) for o in [first, last). w.cols == x.cols.
  // Decode (1 row), drafts (2..4), prefill (many): same bits.
  void (*matmul)(const Matrix& w, std::int64_t first, std::int64_t last, const PackedRows& x, float* y, std::int64_t y_stride,
                 const KernelScratch& scratch);

  // C2t: y[r * y_stride + j] = sum over rows d of w of x[r * x_stride + d] * w[d][j], for all columns j.
  void (*transposed_matmul)(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t rows, float* y,
                            std::int64_t y_stride, const KernelScratch& scratch);

  // C2 with unit weights and scale: dot(a, b) of n floats.
  float (*dot)(const float* a, const float* b, std::int64_t n);

  // C6, one group of at most 2,048 entries: out[h * out_stride + c] = sum over i of p[h * p_stride + i] * v[i * v_stride + c]
  // in chunks of 64 entries. The caller adds groups.
  void (*weighted_sum)(const float* p, std::int64_t p_stride, std::int64_t heads, const float* v, std::int64_t v_stride,
                       std::int64_t entries, std::int64_t cols, float* out, std::int64_t out_stride);

  // Elementwise, each operation rounded as its rule says.
  float (*max)(const float* x, std::int64_t n);                                                  // n >= 1; NaN is skipped
  void (*scale)(float* x, float factor, std::int64_t n);                                         // x = x * factor
  void (*exp_minus)(float* x, float m, std::int64_t n);                                          // C4: x = exp(x - m)
  void (*sigmoid)(const float* x, float* y, std::int64_t n);                                     // C4
  void (*swiglu)(const float* gate, const float* up, float* out, std::int64_t n);                // C8: silu(gate) * up
  void (*add)(const float* a, const float* b, float* out, std::int64_t n);                       // out = a + b
  void (*accumulate)(const float* y, float weight, float* out, std::int64_t n);                  // C8: out = fma(weight, y, out)
  void (*rms_norm)(const float* x, const float* weight, float eps, float* out, std::int64_t n);  // C5
  // C11 for one head: score = fma(w, max(dots * scale, 0), score).
  void (*indexer_accumulate)(const float* dots, float scale, float w, float* score, std::int64_t n);
};

// Tables usable on this machine, the fastest first, the scalar reference last.
const std::vector<const Kernels*>& available_kernels();
const Kernels& best_kernels();
const Kernels* find_kernels(std::string_view name);  // nullptr when unknown or not usable here

}  // namespace colibri

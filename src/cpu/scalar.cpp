// The kernel table in plain C++: the definition in src/numerics and format/matrix.h, called one value at a time.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/aligned.h"
#include "cpu/tables.h"
#include "numerics/attention.h"
#include "numerics/dot.h"
#include "numerics/elementary.h"
#include "numerics/norm.h"

namespace colibri::cpu {
namespace {

std::int64_t packed_index(std::int64_t rows, std::int64_t r, std::int64_t k) {
  return ((k / 256 * rows + r) * 16 + k % 32 / 2) * 16 + 8 * (k % 2) + k % 256 / 32;
}

void pack_rows(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols, float* out) {
  std::fill(out, out + PackedRows::floats(rows, cols), 0.0f);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < cols; ++k) out[packed_index(rows, r, k)] = x[r * stride + k];
}

void matmul(const Matrix& w, std::int64_t first, std::int64_t last, const PackedRows& x, float* y, std::int64_t y_stride,
            const KernelScratch& scratch) {
  const std::int64_t blocks = ceil_div(w.cols, 32), padded = 32 * blocks;
  float* row = reinterpret_cast<float*>(scratch.data);
  float* weights = row + padded;
  float* scales = weights + kScalarBlock * padded;
  for (std::int64_t o = first; o < last; o += kScalarBlock) {
    const std::int64_t count = std::min(kScalarBlock, last - o);
    for (std::int64_t i = 0; i < count; ++i) decode_row(w, o + i, weights + i * padded, scales + i * blocks);
    for (std::int64_t r = 0; r < x.rows; ++r) {
      for (std::int64_t k = 0; k < w.cols; ++k) row[k] = x.data[packed_index(x.rows, r, k)];
      for (std::int64_t i = 0; i < count; ++i)
        y[r * y_stride + o + i] = numerics::dot(weights + i * padded, scales + i * blocks, row, w.cols);
    }
  }
}

// Columns that share one scale, and how many scales a row has; 0 columns: the format has none.
std::int64_t columns_per_scale(const Matrix& w) {
  switch (w.format) {
    case WeightFormat::kInt8Row:
    case WeightFormat::kInt4Row:
    case WeightFormat::kInt2Row: return w.cols;
    case WeightFormat::kInt4Grouped: return w.group;
    case WeightFormat::kInt3G64: return 64;
    case WeightFormat::kF8Block128: return 128;
    default: return 0;
  }
}

void transposed_matmul(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t rows, float* y, std::int64_t y_stride,
                       const KernelScratch& scratch) {
  constexpr std::int64_t kChunk = 32;
  const std::int64_t padded = static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(w.cols), 32));
  const std::int64_t span = columns_per_scale(w);
  float* weights = reinterpret_cast<float*>(scratch.data);  // [kChunk][padded]: the stored values
  float* xs = weights + kChunk * padded;                    // [kChunk][cols]: x_d * scale
  float* unused_scales = xs + kChunk * padded;
  // A whole row under one scale is decoded without it, whatever the group.
  Matrix plain = w;
  if (w.format == WeightFormat::kInt4Grouped) plain.format = WeightFormat::kInt4Row;
  for (std::int64_t r = 0; r < rows; ++r) std::fill(y + r * y_stride, y + r * y_stride + w.cols, 0.0f);
  for (std::int64_t d = 0; d < w.rows; d += kChunk) {
    const std::int64_t count = std::min(kChunk, w.rows - d);
    for (std::int64_t i = 0; i < count; ++i) decode_row(plain, d + i, weights + i * padded, unused_scales);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < count; ++i) {
        const float* scales = span ? w.row_scales(d + i) : nullptr;
        const float value = x[r * x_stride + d + i];
        for (std::int64_t j = 0; j < w.cols; ++j) xs[i * padded + j] = span ? value * scales[j / span] : value;
      }
      numerics::add_transposed_chunk(weights, padded, xs, padded, 1, count, w.cols, y + r * y_stride);
    }
  }
}

void weighted_sum(const float* p, std::int64_t p_stride, std::int64_t heads, const float* v, std::int64_t v_stride,
                  std::int64_t entries, std::int64_t cols, float* out, std::int64_t out_stride) {
  for (std::int64_t h = 0; h < heads; ++h)
    numerics::weighted_sum(p + h * p_stride, v, v_stride, entries, cols, out + h * out_stride);
}

float max(const float* x, std::int64_t n) {
  float m = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m + 0.0f;  // one zero: -0 becomes +0, so the order of comparing cannot show
}

void scale(float* x, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] * factor;
}

void exp_minus(float* x, float m, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = numerics::exp(x[i] - m);
}

void sigmoid(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = numerics::sigmoid(x[i]);
}

void swiglu(const float* gate, const float* up, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = numerics::silu(gate[i]) * up[i];
}

void add(const float* a, const float* b, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void accumulate(const float* y, float weight, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = std::fma(weight, y[i], out[i]);
}

void indexer_accumulate(const float* dots, float factor, float w, float* score, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float s = dots[i] * factor;
    score[i] = std::fma(w, 0.0f > s ? 0.0f : s, score[i]);  // a NaN stays one
  }
}

}  // namespace

constinit const Kernels kScalarKernels = {
    .name = "scalar",
    .pack_rows = pack_rows,
    .matmul = matmul,
    .transposed_matmul = transposed_matmul,
    .dot = numerics::dot_plain,
    .weighted_sum = weighted_sum,
    .max = max,
    .scale = scale,
    .exp_minus = exp_minus,
    .sigmoid = sigmoid,
    .swiglu = swiglu,
    .add = add,
    .accumulate = accumulate,
    .rms_norm = numerics::rms_norm,
    .indexer_accumulate = indexer_accumulate,
};

}  // namespace colibri::cpu

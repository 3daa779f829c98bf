#include "format/matrix.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>

#include "base/aligned.h"

namespace colibri {
namespace {

template <class T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

int code_int3(const std::byte* group, int k) {
  const int low = (static_cast<int>(group[k / 4]) >> (2 * (k % 4))) & 3;
  const int high = (static_cast<int>(group[16 + k / 8]) >> (k % 8)) & 1;
  return low | high << 2;
}

// The stored value of column k as an exact float, without its scale.
float stored_value(const Matrix& m, const std::byte* row, std::int64_t k) {
  switch (m.format) {
    case WeightFormat::kF32: return load<float>(row + 4 * k);
    case WeightFormat::kBF16: return f32_from_bf16(load<std::uint16_t>(row + 2 * k));
    case WeightFormat::kF16: return f32_from_f16(load<std::uint16_t>(row + 2 * k));
    case WeightFormat::kInt8Row: return static_cast<float>(static_cast<std::int8_t>(row[k]));
    case WeightFormat::kInt4Row:
    case WeightFormat::kInt4Grouped: return static_cast<float>(((static_cast<int>(row[k / 2]) >> (4 * (k % 2))) & 15) - 8);
    case WeightFormat::kInt2Row: return static_cast<float>(((static_cast<int>(row[k / 4]) >> (2 * (k % 4))) & 3) - 2);
    case WeightFormat::kInt3G64: return static_cast<float>(code_int3(row + k / 64 * 24, static_cast<int>(k % 64)) - 4);
    case WeightFormat::kF8Block128: return f32_from_e4m3(static_cast<std::uint8_t>(row[k]));
  }
  return 0;
}

// Columns that share one scale; 0 when the format has no scales.
std::int64_t scale_span(const Matrix& m) {
  switch (m.format) {
    case WeightFormat::kInt8Row:
    case WeightFormat::kInt4Row:
    case WeightFormat::kInt2Row: return std::max<std::int64_t>(m.cols, 1);
    case WeightFormat::kInt4Grouped: return m.group;
    case WeightFormat::kInt3G64: return 64;
    case WeightFormat::kF8Block128: return 128;
    default: return 0;
  }
}

}  // namespace

std::string_view format_name(WeightFormat format) {
  constexpr std::string_view kNames[kWeightFormatCount] = {"f32",          "bf16",     "f16",      "int8-row", "int4-row",
                                                           "int4-grouped", "int2-row", "int3-g64", "fp8-b128"};
  return kNames[static_cast<int>(format)];
}

Matrix Matrix::rows_view(std::int64_t first, std::int64_t count) const {
  Matrix view = *this;
  view.data = row(first);
  if (scales) view.scales = row_scales(first);
  view.row_origin = row_origin + first;
  view.rows = count;
  return view;
}

std::int64_t format_row_bytes(WeightFormat format, std::int64_t cols) {
  switch (format) {
    case WeightFormat::kF32: return 4 * cols;
    case WeightFormat::kBF16:
    case WeightFormat::kF16: return 2 * cols;
    case WeightFormat::kInt8Row:
    case WeightFormat::kF8Block128: return cols;
    case WeightFormat::kInt4Row:
    case WeightFormat::kInt4Grouped: return ceil_div(cols, 2);
    case WeightFormat::kInt2Row: return ceil_div(cols, 4);
    case WeightFormat::kInt3G64: return ceil_div(cols, 64) * 24;
  }
  return 0;
}

std::int64_t format_row_scales(WeightFormat format, std::int64_t cols, std::int32_t group) {
  switch (format) {
    case WeightFormat::kInt8Row:
    case WeightFormat::kInt4Row:
    case WeightFormat::kInt2Row: return 1;
    case WeightFormat::kInt4Grouped: return ceil_div(cols, group);
    case WeightFormat::kInt3G64: return ceil_div(cols, 64);
    case WeightFormat::kF8Block128: return ceil_div(cols, 128);
    default: return 0;
  }
}

std::int64_t format_bytes(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  return rows * format_row_bytes(format, cols);
}

std::int64_t format_scales(WeightFormat format, std::int64_t rows, std::int64_t cols, std::int32_t group) {
  return (format == WeightFormat::kF8Block128 ? ceil_div(rows, 128) : rows) * format_row_scales(format, cols, group);
}

Matrix f32_matrix(const float* data, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  Matrix m;
  m.rows = rows;
  m.cols = cols;
  m.row_bytes = 4 * stride;
  m.data = reinterpret_cast<const std::byte*>(data);
  return m;
}

void decode_row(const Matrix& m, std::int64_t o, float* w, float* scale) {
  const std::byte* row = m.row(o);
  const float* scales = m.scales ? m.row_scales(o) : nullptr;
  const std::int64_t span = scale_span(m), blocks = ceil_div(m.cols, 32);
  assert(span == 0 || scales != nullptr);
  for (std::int64_t k = 0; k < m.cols; ++k) w[k] = stored_value(m, row, k);
  std::fill(w + m.cols, w + 32 * blocks, 0.0f);
  const bool whole_blocks = span == 0 || span % 32 == 0 || span >= m.cols;
  for (std::int64_t b = 0; b < blocks; ++b) scale[b] = whole_blocks && span ? scales[32 * b / span] : 1.0f;
  if (!whole_blocks)
    for (std::int64_t k = 0; k < m.cols; ++k) w[k] *= scales[k / span];
}

void dequantize_row(const Matrix& m, std::int64_t o, float* out) {
  const std::byte* row = m.row(o);
  const float* scales = m.scales ? m.row_scales(o) : nullptr;
  const std::int64_t span = scale_span(m);
  assert(span == 0 || scales != nullptr);
  for (std::int64_t k = 0; k < m.cols; ++k) {
    const float q = stored_value(m, row, k);
    out[k] = span ? q * scales[k / span] : q;
  }
}

float f32_from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

float f32_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {  // a multiple of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

float f32_from_e4m3(std::uint8_t bits) {
  const std::uint32_t exponent = (bits >> 3) & 15, fraction = bits & 7;
  float magnitude;
  if (exponent == 15 && fraction == 7)
    magnitude = std::numeric_limits<float>::quiet_NaN();
  else if (exponent == 0)
    magnitude = static_cast<float>(fraction) * 0x1p-9f;
  else
    magnitude = std::bit_cast<float>((exponent + 120) << 23 | fraction << 20);
  return bits & 0x80 ? -magnitude : magnitude;
}

}  // namespace colibri

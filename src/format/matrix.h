// A weight matrix in its stored format, and the one definition of how each format is decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace colibri {

// The names are those of the colibri containers (docs/containers.md has the byte layouts).
enum class WeightFormat : std::uint8_t {
  kF32,
  kBF16,
  kF16,
  kInt8Row,      // one scale per row
  kInt4Row,      // two weights a byte, low nibble first, q = nibble - 8
  kInt4Grouped,  // the same with one scale per `group` columns
  kInt2Row,      // four weights a byte, q = code - 2
  kInt3G64,      // 24 bytes per 64 columns, q = code - 4, one scale per 64
  kF8Block128,   // OCP e4m3, one scale per 128x128 block
};
inline constexpr int kWeightFormatCount = 9;

std::string_view format_name(WeightFormat format);  // "f32", "bf16", "f16", "int8-row", ..., "fp8-b128"

// A non-owning view, row-major over outputs. data is 64-byte aligned for a whole tensor (a row view
// need not be) and at least kReadSlack bytes are readable past its end; scales are 4-byte aligned.
struct Matrix {
  WeightFormat format = WeightFormat::kF32;
  std::int32_t group = 0;         // columns per scale of kInt4Grouped (64 for kInt3G64, 128 for fp8), else 0
  std::int64_t rows = 0;          // outputs
  std::int64_t cols = 0;          // inputs, K
  std::int64_t row_bytes = 0;     // distance of two rows in data
  std::int64_t scale_stride = 0;  // distance of two rows (for fp8: of two blocks of 128 rows) in scales; 0 without scales
  std::int64_t row_origin = 0;    // index of row 0 within the stored tensor: fp8 blocks count from there
  const std::byte* data = nullptr;
  const float* scales = nullptr;

  const std::byte* row(std::int64_t o) const { return data + o * row_bytes; }
  // The scales of row o: entry 0 belongs to column 0.
  const float* row_scales(std::int64_t o) const {
    return format == WeightFormat::kF8Block128 ? scales + ((row_origin + o) / 128 - row_origin / 128) * scale_stride
                                               : scales + o * scale_stride;
  }
  Matrix rows_view(std::int64_t first, std::int64_t count) const;
};

// Bytes of one row, and scales of one row, as the container stores them.
std::int64_t format_row_bytes(WeightFormat format, std::int64_t cols);
std::int64_t format_row_scales(WeightFormat format, std::int64_t cols, std::int32_t group);
// Whole tensors; fp8 has its scales per block of 128 rows.
std::int64_t format_bytes(WeightFormat format, std::int64_t rows, std::int64_t cols);
std::int64_t format_scales(WeightFormat format, std::int64_t rows, std::int64_t cols, std::int32_t group);

// A view over a plain f32 array [rows, cols] with rows `stride` floats apart.
Matrix f32_matrix(const float* data, std::int64_t rows, std::int64_t cols, std::int64_t stride);

// Rule C2 of docs/numerics.md, the weight side. Writes for row o: w[k], the exact float of the stored value
// (q - zero, or the widened float), for k < round_up(cols, 32), zeros past cols; and scale[b] of each block
// of 32 columns. Groups that are no multiple of 32 are applied to the weight (w = q * scale, rounded) with
// block scale 1. w: round_up(cols, 32) floats; scale: ceil(cols / 32) floats.
void decode_row(const Matrix& m, std::int64_t o, float* w, float* scale);

// Rule C12: the real weights q * scale, rounded once. out: cols floats. (Embedding rows.)
void dequantize_row(const Matrix& m, std::int64_t o, float* out);

// Widening of single values, exact.
float f32_from_bf16(std::uint16_t bits);
float f32_from_f16(std::uint16_t bits);
float f32_from_e4m3(std::uint8_t bits);  // 0x7f and 0xff are NaN

}  // namespace colibri

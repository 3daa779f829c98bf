// Random matrices of every format in memory that the test device sees, and what the scalar kernels make of them.
#pragma once

#include <array>
#include <bit>
#include <cmath>

#include "cpu/kernels.h"
#include "gpu/matrix_args.h"
#include "gpu_test_support.h"

namespace colibri::gpu::test {

inline constexpr std::array kAllFormats = {WeightFormat::kF32,     WeightFormat::kBF16,    WeightFormat::kF16,
                                           WeightFormat::kInt8Row, WeightFormat::kInt4Row, WeightFormat::kInt4Grouped,
                                           WeightFormat::kInt2Row, WeightFormat::kInt3G64, WeightFormat::kF8Block128};

struct MatrixShape {
  WeightFormat format = WeightFormat::kF32;
  std::int64_t rows = 0, cols = 0;
  std::int32_t group = 64;       // of int4-grouped
  std::uint64_t offset = 0;      // of the data from 256-byte alignment; a multiple of the size of a stored number
  std::int64_t extra_bytes = 0;  // between rows; likewise
  std::int64_t row_origin = 0;
  bool wild = false;
};

inline std::int64_t stored_bytes(WeightFormat format) {
  return format == WeightFormat::kF32 ? 4 : format == WeightFormat::kBF16 || format == WeightFormat::kF16 ? 2 : 1;
}

// Values of very different sizes when wild: zeros of both signs, subnormals, values whose products overflow or vanish.
inline float test_float(std::mt19937_64& rng, bool wild) {
  constexpr float kSpecial[] = {0.0f, -0.0f, 1e-40f, -1e-42f, 1e-30f, -3e-20f, 2e18f, -3e-38f, 1e-19f, 1.0f};
  if (wild && rng() % 3 == 0) return kSpecial[rng() % std::size(kSpecial)];
  return static_cast<float>(static_cast<std::int64_t>(rng() % 2000001) - 1000000) * 1e-6f;
}

inline std::uint64_t matrix_bytes(const MatrixShape& s) {
  return static_cast<std::uint64_t>(format_bytes(s.format, s.rows, s.cols) + s.rows * s.extra_bytes +
                                    4 * (format_scales(s.format, s.rows + 128, s.cols, s.group) + s.rows)) +
         4096;
}

// Random codes; numbers that are stored as floats are finite.
inline Matrix device_matrix(DeviceArena& arena, std::mt19937_64& rng, const MatrixShape& s) {
  Matrix m;
  m.format = s.format;
  m.group = s.format == WeightFormat::kInt4Grouped  ? s.group
            : s.format == WeightFormat::kInt3G64    ? 64
            : s.format == WeightFormat::kF8Block128 ? 128
                                                    : 0;
  m.rows = s.rows;
  m.cols = s.cols;
  m.row_origin = s.row_origin;
  const std::int64_t row_bytes = format_row_bytes(s.format, s.cols);
  m.row_bytes = row_bytes + s.extra_bytes;
  const auto data = arena.block<std::byte>((s.rows - 1) * m.row_bytes + row_bytes, s.offset);
  for (std::byte& b : data) b = static_cast<std::byte>(rng());
  for (std::int64_t o = 0; o < s.rows; ++o)
    for (std::int64_t k = 0; k < s.cols; ++k) {
      std::byte* at = data.data() + o * m.row_bytes + k * stored_bytes(s.format);
      if (s.format == WeightFormat::kF32) {
        const float v = test_float(rng, s.wild);
        std::memcpy(at, &v, 4);
      } else if (s.format == WeightFormat::kBF16) {
        const auto v = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(test_float(rng, s.wild)) >> 16);
        std::memcpy(at, &v, 2);
      } else if (s.format == WeightFormat::kF16) {
        std::uint16_t v;
        std::memcpy(&v, at, 2);
        if ((v & 0x7c00) == 0x7c00) v &= 0xbbff;
        std::memcpy(at, &v, 2);
      } else if (s.format == WeightFormat::kF8Block128 && (static_cast<unsigned>(*at) & 0x7f) == 0x7f) {
        *at = std::byte{0x7e};
      }
    }
  m.data = data.data();
  if (const std::int64_t row_scales = format_row_scales(s.format, s.cols, m.group)) {
    m.scale_stride = row_scales + static_cast<std::int64_t>(rng() % 2);
    const std::int64_t scale_rows =
        s.format == WeightFormat::kF8Block128 ? (s.row_origin + s.rows - 1) / 128 - s.row_origin / 128 + 1 : s.rows;
    const auto scales = arena.block<float>((scale_rows - 1) * m.scale_stride + row_scales, 4 * (rng() % 16));
    for (float& v : scales) v = test_float(rng, s.wild);
    m.scales = scales.data();
  }
  return m;
}

inline bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// What outputs hold before a call; what a kernel should not write keeps it.
inline constexpr float kPoison = 1234567.5f;

// Outputs [first, last) of w for rows of x by the scalar kernels: f32[rows][w.rows], the rest poison.
inline std::vector<float> scalar_products(const Matrix& w, std::int64_t first, std::int64_t last, const float* x,
                                          std::int64_t x_stride, std::int64_t rows) {
  const Kernels& scalar = *find_kernels("scalar");
  AlignedArray<float> packed(static_cast<std::size_t>(PackedRows::floats(rows, w.cols)));
  AlignedBytes scratch(static_cast<std::size_t>(kernel_scratch_bytes(w.cols)));
  std::vector<float> y(static_cast<std::size_t>(rows * w.rows), kPoison);
  scalar.pack_rows(x, x_stride, rows, w.cols, packed.data());
  scalar.matmul(w, first, last, {packed.data(), rows, w.cols}, y.data(), w.rows, {scratch.data(), kernel_scratch_bytes(w.cols)});
  return y;
}
inline std::vector<float> scalar_products(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t rows) {
  return scalar_products(w, 0, w.rows, x, x_stride, rows);
}

inline std::vector<float> scalar_transposed(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t rows) {
  AlignedBytes scratch(static_cast<std::size_t>(kernel_scratch_bytes(w.cols)));
  std::vector<float> y(static_cast<std::size_t>(rows * w.cols));
  find_kernels("scalar")->transposed_matmul(w, x, x_stride, rows, y.data(), w.cols,
                                            {scratch.data(), kernel_scratch_bytes(w.cols)});
  return y;
}

}  // namespace colibri::gpu::test

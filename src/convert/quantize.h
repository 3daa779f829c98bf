// From real weights to the stored formats. All are symmetric: q = round(w / scale), ties to even, clamped; what is
// stored is q plus an offset (docs/containers.md). Decoding is decode_row and dequantize_row of format/matrix.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "format/matrix.h"

namespace colibri {

// What a weight matrix is to be stored as.
struct TargetFormat {
  WeightFormat format = WeightFormat::kInt8Row;
  std::int32_t group = 0;  // columns per scale of kInt4Grouped, 64 for kInt3G64, else 0

  bool operator==(const TargetFormat&) const = default;
};

// "int8", "int4" (row-wise), "int4-g64" (or another group), "int3-g64", "int2", "bf16", "f32"; "-row" may be added to
// the row-wise ones. The error lists them.
Result<TargetFormat> parse_target_format(std::string_view text);
std::string target_format_text(const TargetFormat& target);

// How far the stored weights are from the given ones.
struct QuantizationError {
  double difference_squares = 0;  // sum of (stored - given)^2
  double weight_squares = 0;      // sum of given^2

  double relative_rms() const;  // 0 when nothing was quantised
  QuantizationError& operator+=(const QuantizationError& other);
};

// Quantises one row. weights: cols floats. data: format_row_bytes bytes; scales: format_row_scales floats (none for bf16
// and f32). False when a weight is not finite (data and scales are then without meaning).
// Group scale = largest magnitude / 127, 7, 3 or 1 for 8, 4, 3, 2 bits; int8-row's is at least 1e-8; a group whose scale
// would be no normal float becomes zeros.
[[nodiscard]] bool quantize_row(const TargetFormat& target, const float* weights, std::int64_t cols, std::byte* data,
                                float* scales, QuantizationError& error);

}  // namespace colibri

// Colibri containers store a weight matrix as bytes without a shape: the format follows from the byte counts of
// weights and scales and the [rows, cols] that the model asks for (docs/containers.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "format/matrix.h"

namespace colibri {

struct BlobFormat {
  WeightFormat format = WeightFormat::kInt8Row;
  std::int32_t group = 0;
  std::string ambiguity;  // empty when the bytes fit one reading only; else a sentence on what was chosen over what
};

// rows, cols: 1 .. 2^31. stamp: the format's name from the container's metadata, or empty. Errors say which byte
// counts the known formats would have; the caller adds tensor and shard.
Result<BlobFormat> infer_blob_format(std::int64_t rows, std::int64_t cols, std::uint64_t blob_bytes, std::uint64_t scale_bytes,
                                     std::string_view stamp);

// Whether a stamp's name for a format means this one ("fp8-e4m3-b128" is the containers' name of fp8-b128).
bool stamp_names(std::string_view stamp, WeightFormat format);

}  // namespace colibri

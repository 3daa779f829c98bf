// The safetensors container: header parsing (hostile input is expected) and a small writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "format/checkpoint.h"

namespace colibri {

// The header of one file. Offsets in TensorInfo::range are absolute; range.shard is what was passed in.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::uint64_t data_start = 0;
};

// json: the header text after the 8-byte length. file_bytes bounds every tensor. Checks dtypes, shape products
// (overflow), offsets (bounds, overlap), sizes. Errors name the tensor; the caller adds the file.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const char> json, std::uint64_t file_bytes, std::int32_t shard);

// Small files read whole (reference values, dumps).
struct NamedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  std::int64_t count() const;
  std::vector<float> floats() const;       // F32, F16, BF16 widened
  std::vector<std::int32_t> ints() const;  // I32, I64 (checked)
};
Result<std::map<std::string, NamedTensor>> read_safetensors(const std::filesystem::path& file);
// Written to a temporary file beside it and renamed, so that a reader never sees half a file.
Result<void> write_safetensors(const std::filesystem::path& file, std::span<const NamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace colibri

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

class InputFile;

inline constexpr std::uint64_t kMaxHeaderBytes = 512u << 20;

// The header of one file. Offsets in TensorInfo::range are absolute; range.shard is what was passed in.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the header's order
  std::map<std::string, std::string> metadata;
  std::uint64_t data_start = 0;
};

// json: the header text after the 8-byte length. file_bytes bounds every tensor. Checks dtypes, shape products
// (overflow), offsets (bounds, overlap), sizes, names (one each). Errors name the tensor; the caller adds the file.
// Memory: proportional to the header alone.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const char> json, std::uint64_t file_bytes, std::int32_t shard);
// Reads and parses the header of a file. Errors name the file.
Result<SafetensorsHeader> read_safetensors_header(const InputFile& file, std::int32_t shard);

// A JSON object of strings, {"name": "value", ...}, with at most max_entries: the text of the `colibri.fmt` stamp.
Result<std::map<std::string, std::string>> parse_string_map(std::string_view json, std::size_t max_entries);

// Small files read whole (reference values, dumps).
struct NamedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  std::int64_t count() const;
  std::vector<float> floats() const;       // F32, F16, BF16 widened; empty for another dtype
  std::vector<std::int32_t> ints() const;  // I32, I64; empty for another dtype or when a value needs more than 32 bits
};
Result<std::map<std::string, NamedTensor>> read_safetensors(const std::filesystem::path& file);
// Written to a temporary file beside it and renamed, so that a reader never sees half a file.
Result<void> write_safetensors(const std::filesystem::path& file, std::span<const NamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace colibri

// Small safetensors files as a whole: reference values in, dumps out.
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/aligned.h"
#include "format/file.h"
#include "format/matrix.h"
#include "format/safetensors.h"

namespace colibri {
namespace {

template <class T>
T element(const NamedTensor& tensor, std::size_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// A JSON string literal, or nothing when the text is not UTF-8.
Result<std::string> json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return fail("the name {} is not valid UTF-8", in_quotes(text));
  }
}

Result<std::string> header_text(std::span<const NamedTensor* const> tensors, const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      COLIBRI_TRY(key_text, json_string(key));
      COLIBRI_TRY(value_text, json_string(value));
      json += fmt::format("{}{}:{}", json.back() == '{' ? "" : ",", key_text, value_text);
    }
    json += '}';
  }
  std::uint64_t offset = 0;
  for (const NamedTensor* tensor : tensors) {
    std::uint64_t expected = dtype_bytes(tensor->dtype);
    for (const std::int64_t extent : tensor->shape)
      if (extent < 0 || __builtin_mul_overflow(expected, static_cast<std::uint64_t>(extent), &expected))
        return fail("tensor {}: the shape {} is impossible", in_quotes(tensor->name), shape_text(tensor->shape));
    if (expected != tensor->bytes.size())
      return fail("tensor {}: {} {} needs {} bytes, {} were given", in_quotes(tensor->name), dtype_name(tensor->dtype),
                  shape_text(tensor->shape), expected, tensor->bytes.size());
    COLIBRI_TRY(name, json_string(tensor->name));
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", json.size() == 1 ? "" : ",", name,
                        dtype_name(tensor->dtype), shape_text(tensor->shape), offset, offset + expected);
    offset += expected;
  }
  json += '}';
  json.resize(round_up(json.size(), 8), ' ');  // data starts at a multiple of 8
  return json;
}

}  // namespace

std::int64_t NamedTensor::count() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::vector<float> NamedTensor::floats() const {
  std::vector<float> values;
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) return values;
  values.resize(bytes.size() / dtype_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) values[i] = element<float>(*this, i);
    if (dtype == DType::kF16) values[i] = f32_from_f16(element<std::uint16_t>(*this, i));
    if (dtype == DType::kBF16) values[i] = f32_from_bf16(element<std::uint16_t>(*this, i));
  }
  return values;
}

std::vector<std::int32_t> NamedTensor::ints() const {
  std::vector<std::int32_t> values;
  if (dtype != DType::kI32 && dtype != DType::kI64) return values;
  values.resize(bytes.size() / dtype_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t value = dtype == DType::kI32 ? element<std::int32_t>(*this, i) : element<std::int64_t>(*this, i);
    if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max()) return {};
    values[i] = static_cast<std::int32_t>(value);
  }
  return values;
}

Result<std::map<std::string, NamedTensor>> read_safetensors(const std::filesystem::path& path) {
  COLIBRI_TRY(file, InputFile::open(path));
  COLIBRI_TRY(header, read_safetensors_header(file, 0));
  std::map<std::string, NamedTensor> tensors;
  for (TensorInfo& info : header.tensors) {
    NamedTensor tensor{info.name, info.dtype, std::move(info.shape), std::vector<std::byte>(info.range.bytes)};
    COLIBRI_CHECK(file.read(info.range.offset, info.range.bytes, tensor.bytes.data()));
    tensors.emplace(std::move(info.name), std::move(tensor));
  }
  return tensors;
}

Result<void> write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata) {
  // Wide elements first: then every tensor starts at a multiple of its element size.
  std::vector<const NamedTensor*> order;
  for (const std::size_t width : {8, 4, 2, 1})
    for (const NamedTensor& tensor : tensors)
      if (dtype_bytes(tensor.dtype) == width) order.push_back(&tensor);
  // What is about to be written must read back: the reader's own checks decide (names once, sizes, limits).
  auto json = header_text(order, metadata);
  if (json) {
    std::uint64_t data_bytes = 0;
    for (const NamedTensor* tensor : order) data_bytes += tensor->bytes.size();
    if (auto check = parse_safetensors_header(*json, 8 + json->size() + data_bytes, 0); !check)
      json = pass(std::move(check).error());
  }
  if (!json) return fail("{}: {}", path.string(), json.error().message);
  std::array<std::byte, 8> length;
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(json->size() >> (8 * i));
  std::vector<std::span<const std::byte>> parts = {length, std::as_bytes(std::span(*json))};
  for (const NamedTensor* tensor : order) parts.emplace_back(tensor->bytes);
  return write_atomically(path, parts);
}

}  // namespace colibri

#include "format/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "format/file.h"

namespace colibri {
namespace {

constexpr std::size_t kMaxRank = 8;
constexpr std::size_t kMaxNameBytes = 4096;
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeEntry {
  std::string_view name;
  DType type;
  std::size_t bytes;
};
// The first entry of a type is its name; the others are spellings that occur.
constexpr DTypeEntry kDTypes[] = {
    {"F32", DType::kF32, 4},          {"F16", DType::kF16, 2}, {"BF16", DType::kBF16, 2}, {"F8_E4M3", DType::kF8E4M3, 1},
    {"F8_E8M0", DType::kF8E8M0, 1},   {"U8", DType::kU8, 1},   {"I8", DType::kI8, 1},     {"I32", DType::kI32, 4},
    {"I64", DType::kI64, 8},          {"U64", DType::kU64, 8}, {"BOOL", DType::kBool, 1}, {"F8_E4M3FN", DType::kF8E4M3, 1},
    {"F8_E4M3_FN", DType::kF8E4M3, 1}};

const DTypeEntry& dtype_entry(DType type) {
  return *std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeEntry& e) { return e.type == type; });
}

// What both readers of untrusted JSON here share: events instead of a tree, everything unexpected refused, the first
// refusal kept. Return values follow nlohmann's SAX interface: false stops the parse.
class StrictEvents {
 public:
  bool null() { return refuse("null"); }
  bool boolean(bool) { return refuse("true or false"); }
  bool number_integer(std::int64_t value) { return refuse(fmt::format("the negative number {}", value)); }
  bool number_float(double, const std::string& text) { return refuse(fmt::format("the number {}", in_quotes(text))); }
  bool binary(std::vector<std::uint8_t>&) { return refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return stop(fmt::format("not valid JSON in UTF-8 at byte {}", position));
  }
  const std::string& error() const { return error_; }

 protected:
  virtual ~StrictEvents() = default;
  virtual std::string where() const = 0;  // "tensor 'a', shape: expected an array of non-negative integers"
  bool refuse(std::string_view found) { return stop(fmt::format("{}, found {}", where(), found)); }
  bool stop(std::string message) {
    error_ = std::move(message);
    return false;
  }

 private:
  std::string error_;
};

class HeaderEvents : public StrictEvents {
 public:
  HeaderEvents(SafetensorsHeader& header, std::uint64_t data_bytes, std::int32_t shard)
      : header_(header), data_bytes_(data_bytes), shard_(shard) {}

  bool start_object(std::size_t) {
    if (at_ == At::kStart) return move_to(At::kTop);
    if (at_ == At::kTensorValue) return move_to(At::kTensor);
    if (at_ == At::kMetadataValue) return move_to(At::kMetadata);
    return refuse("an object");
  }
  bool key(std::string& text) {
    if (at_ == At::kTop) return top_key(text);
    if (at_ == At::kTensor) return tensor_key(text);
    if (header_.metadata.contains(text)) return stop(fmt::format("{}: the key {} occurs twice", kMetadataKey, in_quotes(text)));
    metadata_key_ = text;
    return move_to(At::kMetadataText);
  }
  bool string(std::string& text) {
    if (at_ == At::kMetadataText) {
      header_.metadata.emplace(metadata_key_, text);
      return move_to(At::kMetadata);
    }
    if (at_ != At::kDType) return refuse("the text " + in_quotes(text));
    const auto* entry = std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeEntry& e) { return e.name == text; });
    if (entry == std::end(kDTypes)) return refuse(in_quotes(text));
    tensor_.dtype = entry->type;
    return move_to(At::kTensor);
  }
  bool start_array(std::size_t) {
    if (at_ == At::kShapeValue) return move_to(At::kShape);
    if (at_ == At::kOffsetsValue) return move_to(At::kOffsets);
    return refuse("an array");
  }
  bool number_unsigned(std::uint64_t value) {
    if (at_ == At::kShape) {
      if (tensor_.shape.size() == kMaxRank) return stop(fmt::format("{}: more than {} dimensions", tensor(), kMaxRank));
      if (value > std::numeric_limits<std::int64_t>::max()) return stop(fmt::format("{}: a dimension of {}", tensor(), value));
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (at_ == At::kOffsets) {
      if (offset_count_ == 2) return stop(fmt::format("{}: data_offsets: expected two numbers, found more", tensor()));
      offsets_[offset_count_++] = value;
      return true;
    }
    return refuse(fmt::format("the number {}", value));
  }
  bool end_array() {
    if (at_ == At::kOffsets && offset_count_ != 2)
      return stop(fmt::format("{}: data_offsets: expected two numbers, found {}", tensor(), offset_count_));
    return move_to(At::kTensor);
  }
  bool end_object() {
    if (at_ == At::kTensor) return finish_tensor();
    return move_to(at_ == At::kMetadata ? At::kTop : At::kEnd);
  }

 private:
  enum class At {  // what the next event belongs to
    kStart,
    kTop,
    kTensorValue,
    kTensor,
    kDType,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kMetadataValue,
    kMetadata,
    kMetadataText,
    kEnd
  };
  bool move_to(At at) {
    at_ = at;
    return true;
  }
  std::string tensor() const { return "tensor " + in_quotes(tensor_.name); }

  std::string where() const override {
    switch (at_) {
      case At::kTensorValue: return tensor() + ": expected an object with dtype, shape and data_offsets";
      case At::kDType: return tensor() + ": dtype: expected one of F32, F16, BF16, F8_E4M3, F8_E8M0, U8, I8, I32, I64, U64, BOOL";
      case At::kShapeValue:
      case At::kShape: return tensor() + ": shape: expected an array of non-negative integers";
      case At::kOffsetsValue:
      case At::kOffsets: return tensor() + ": data_offsets: expected an array of two non-negative integers";
      case At::kMetadataValue: return fmt::format("{}: expected an object of texts", kMetadataKey);
      case At::kMetadataText: return fmt::format("{}, key {}: expected a text", kMetadataKey, in_quotes(metadata_key_));
      default: return "expected an object of tensors";
    }
  }

  bool top_key(std::string& text) {
    if (text == kMetadataKey) {
      if (std::exchange(has_metadata_, true)) return stop(fmt::format("{} occurs twice", kMetadataKey));
      return move_to(At::kMetadataValue);
    }
    if (text.empty() || text.size() > kMaxNameBytes)
      return stop(fmt::format("a tensor name of {} bytes, expected 1 to {}", text.size(), kMaxNameBytes));
    tensor_ = {};
    tensor_.name = text;
    seen_ = {};
    offset_count_ = 0;
    return move_to(At::kTensorValue);
  }
  bool tensor_key(const std::string& text) {
    constexpr std::pair<std::string_view, At> kKeys[] = {
        {"dtype", At::kDType}, {"shape", At::kShapeValue}, {"data_offsets", At::kOffsetsValue}};
    for (std::size_t i = 0; i < std::size(kKeys); ++i)
      if (kKeys[i].first == text) {
        if (std::exchange(seen_[i], true)) return stop(fmt::format("{}: the key {} occurs twice", tensor(), text));
        return move_to(kKeys[i].second);
      }
    return stop(fmt::format("{}: unknown key {}, expected dtype, shape and data_offsets", tensor(), in_quotes(text)));
  }

  bool finish_tensor() {
    if (!seen_[0] || !seen_[1] || !seen_[2])
      return stop(fmt::format("{}: expected dtype, shape and data_offsets, found {}{}{}", tensor(), seen_[0] ? "dtype " : "",
                              seen_[1] ? "shape " : "", seen_[2] ? "data_offsets" : ""));
    const auto [begin, end] = offsets_;
    if (begin > end) return stop(fmt::format("{}: data_offsets [{}, {}] run backwards", tensor(), begin, end));
    if (end > data_bytes_)
      return stop(fmt::format("{}: data_offsets [{}, {}] lie outside the file's {} bytes of data (a truncated file?)", tensor(),
                              begin, end, data_bytes_));
    std::uint64_t bytes = dtype_bytes(tensor_.dtype);
    for (const std::int64_t extent : tensor_.shape)
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes))
        return stop(fmt::format("{}: the shape {} is too large to address", tensor(), shape_text(tensor_.shape)));
    if (bytes != end - begin)
      return stop(fmt::format("{}: {} {} needs {} bytes, but data_offsets [{}, {}] hold {}", tensor(), dtype_name(tensor_.dtype),
                              shape_text(tensor_.shape), bytes, begin, end, end - begin));
    tensor_.range = {shard_, begin, bytes};
    header_.tensors.push_back(std::move(tensor_));
    return move_to(At::kTop);
  }

  SafetensorsHeader& header_;
  std::uint64_t data_bytes_;
  std::int32_t shard_;
  At at_ = At::kStart;
  TensorInfo tensor_;
  std::array<bool, 3> seen_ = {};  // dtype, shape, data_offsets
  std::array<std::uint64_t, 2> offsets_ = {};
  std::size_t offset_count_ = 0;
  bool has_metadata_ = false;
  std::string metadata_key_;
};

class StringMapEvents : public StrictEvents {
 public:
  StringMapEvents(std::map<std::string, std::string>& map, std::size_t max_entries) : map_(map), max_entries_(max_entries) {}

  bool start_object(std::size_t) { return std::exchange(inside_, true) ? refuse("an object") : true; }
  bool key(std::string& text) {
    if (map_.size() == max_entries_) return stop(fmt::format("more than {} entries", max_entries_));
    if (map_.contains(text)) return stop(fmt::format("the key {} occurs twice", in_quotes(text)));
    key_ = text;
    return true;
  }
  bool string(std::string& text) {
    if (!inside_) return refuse("a text");
    map_.emplace(key_, text);
    return true;
  }
  bool number_unsigned(std::uint64_t value) { return refuse(fmt::format("the number {}", value)); }
  bool start_array(std::size_t) { return refuse("an array"); }
  bool end_array() { return true; }
  bool end_object() { return true; }

 private:
  std::string where() const override {
    return inside_ ? fmt::format("key {}: expected a text", in_quotes(key_)) : "expected an object of texts";
  }
  std::map<std::string, std::string>& map_;
  std::size_t max_entries_;
  bool inside_ = false;
  std::string key_;
};

template <class Events>
Result<void> parse_events(std::span<const char> json, Events& events) {
  // The JSON library takes a NUL byte for the end of the text, so what follows it would go unchecked.
  if (const void* nul = std::memchr(json.data(), 0, json.size()))
    return fail("not valid JSON: a NUL byte at byte {}", static_cast<const char*>(nul) - json.data());
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &events)) return fail("{}", events.error());
  return {};
}

Result<void> check_names_and_overlaps(const std::vector<TensorInfo>& tensors, std::uint64_t data_bytes) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (const TensorInfo& t = tensors[order[i]]; t.name == tensors[order[i - 1]].name)
      return fail("tensor {} occurs twice", in_quotes(t.name));

  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const FileRange &x = tensors[a].range, &y = tensors[b].range;
    return std::pair(x.offset, x.bytes) < std::pair(y.offset, y.bytes);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const TensorInfo &before = tensors[order[i - 1]], &t = tensors[order[i]];
    if (t.range.offset < before.range.offset + before.range.bytes)
      return fail("tensors {} and {} overlap at byte {} of {} bytes of data", in_quotes(before.name), in_quotes(t.name),
                  t.range.offset, data_bytes);
  }
  return {};
}

}  // namespace

std::string_view dtype_name(DType type) { return dtype_entry(type).name; }
std::size_t dtype_bytes(DType type) { return dtype_entry(type).bytes; }

Result<SafetensorsHeader> parse_safetensors_header(std::span<const char> json, std::uint64_t file_bytes, std::int32_t shard) {
  if (file_bytes < 8 || json.size() > file_bytes - 8)
    return fail("a header of {} bytes does not fit a file of {} bytes", json.size(), file_bytes);
  if (json.empty() || json.front() != '{') return fail("the header does not start with '{{'; not a safetensors file?");
  SafetensorsHeader header;
  header.data_start = 8 + json.size();
  const std::uint64_t data_bytes = file_bytes - header.data_start;
  HeaderEvents events(header, data_bytes, shard);
  COLIBRI_CHECK(parse_events(json, events));
  COLIBRI_CHECK(check_names_and_overlaps(header.tensors, data_bytes));
  for (TensorInfo& tensor : header.tensors) tensor.range.offset += header.data_start;
  return header;
}

Result<SafetensorsHeader> read_safetensors_header(const InputFile& file, std::int32_t shard) {
  const auto in_file = [&](Error error) { return fail("{}: {}", file.path().string(), error.message); };
  if (file.bytes() < 8)
    return in_file({fmt::format("{} bytes, too short for a safetensors file (truncated, or not downloaded yet?)", file.bytes())});
  std::array<std::byte, 8> length_bytes;
  COLIBRI_CHECK(file.read(0, 8, length_bytes.data()));
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<std::uint64_t>(length_bytes[static_cast<std::size_t>(i)]);
  if (length > file.bytes() - 8 || length > kMaxHeaderBytes)
    return in_file(
        {fmt::format("the header says it is {} bytes long, expected at most {} in a file of {} bytes (truncated, or not "
                     "safetensors?)",
                     length, std::min(file.bytes() - 8, kMaxHeaderBytes), file.bytes())});
  char first = 0;  // looked at alone, so that a large file of something else costs no memory
  if (length > 0) COLIBRI_CHECK(file.read(8, 1, reinterpret_cast<std::byte*>(&first)));
  if (first != '{') return in_file({"the header does not start with '{'; not a safetensors file?"});
  std::vector<char> json(length);
  COLIBRI_CHECK(file.read(8, length, reinterpret_cast<std::byte*>(json.data())));
  auto header = parse_safetensors_header(json, file.bytes(), shard);
  if (!header) return in_file(std::move(header).error());
  return header;
}

Result<std::map<std::string, std::string>> parse_string_map(std::string_view json, std::size_t max_entries) {
  std::map<std::string, std::string> map;
  StringMapEvents events(map, max_entries);
  COLIBRI_CHECK(parse_events(json, events));
  return map;
}

}  // namespace colibri

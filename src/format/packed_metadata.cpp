// The `colibri.packed` metadata of a shard: written once, and read as the text of a stranger.
#include <nlohmann/json.hpp>

#include "base/aligned.h"
#include "format/file.h"
#include "format/packed.h"

namespace colibri {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxTextBytes = 16u << 20;
constexpr std::int64_t kMaxExtent = 1 << 22;  // of one side of an expert's matrix; products of two stay far below 2^63
constexpr const char* kPartNames[3] = {"gate", "up", "down"};

json part_json(const PackedMatrix& part) {
  json out = {{"format", std::string(format_name(part.matrix.format))},
              {"shape", {part.matrix.rows, part.matrix.cols}},
              {"weights", {part.data_offset, part.data_bytes}},
              {"scales", {part.scale_offset, part.scale_bytes}}};
  if (part.matrix.group > 0) out["group"] = part.matrix.group;
  if (part.matrix.row_origin > 0) out["row_origin"] = part.matrix.row_origin;
  return out;
}

// One JSON object of the text, with the path to it for messages.
struct Node {
  const json& value;
  std::string path;

  Result<Node> object(const char* key) const { return typed(key, &json::is_object, "an object"); }
  Result<Node> array(const char* key) const { return typed(key, &json::is_array, "a list"); }
  Result<std::string> text(const char* key) const {
    COLIBRI_TRY(node, typed(key, &json::is_string, "a text"));
    return node.value.get<std::string>();
  }
  Result<std::int64_t> integer(const char* key, std::int64_t low, std::int64_t high, std::int64_t absent) const {
    const auto it = value.find(key);
    if (it == value.end()) return absent;
    if (it->is_number_unsigned() && it->get<std::uint64_t>() <= static_cast<std::uint64_t>(high) &&
        it->get<std::int64_t>() >= low)
      return it->get<std::int64_t>();
    return fail("{}{}: expected an integer from {} to {}", path, key, low, high);
  }
  // [a, b], both up to `high`.
  Result<std::array<std::uint64_t, 2>> pair(const char* key, std::uint64_t high) const {
    COLIBRI_TRY(list, array(key));
    std::array<std::uint64_t, 2> numbers = {};
    if (list.value.size() != 2) return fail("{}{}: expected two numbers, found {}", path, key, list.value.size());
    for (std::size_t i = 0; i < 2; ++i) {
      const json& number = list.value[i];
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() > high)
        return fail("{}{}: expected integers from 0 to {}", path, key, high);
      numbers[i] = number.get<std::uint64_t>();
    }
    return numbers;
  }

 private:
  Result<Node> typed(const char* key, bool (json::*is)() const noexcept, const char* what) const {
    const auto it = value.find(key);
    if (it == value.end()) return fail("{}{} is missing, expected {}", path, key, what);
    if (!((*it).*is)()) return fail("{}{}: expected {}, found {}", path, key, what, it->type_name());
    return Node{*it, fmt::format("{}{}.", path, key)};
  }
};

Result<Matrix> parse_matrix(const Node& node) {
  Matrix m;
  COLIBRI_TRY(format, node.text("format"));
  int number = 0;
  while (number < kWeightFormatCount && format_name(static_cast<WeightFormat>(number)) != format) ++number;
  if (number == kWeightFormatCount)
    return fail("{}format: {} is unknown to this version; a newer coli may read it", node.path, in_quotes(format));
  m.format = static_cast<WeightFormat>(number);
  COLIBRI_TRY(shape, node.pair("shape", kMaxExtent));
  if (shape[0] == 0 || shape[1] == 0) return fail("{}shape: an empty matrix", node.path);
  m.rows = static_cast<std::int64_t>(shape[0]);
  m.cols = static_cast<std::int64_t>(shape[1]);
  const std::int32_t fixed = m.format == WeightFormat::kInt3G64 ? 64 : m.format == WeightFormat::kF8Block128 ? 128 : 0;
  COLIBRI_TRY(group, node.integer("group", 0, 1 << 16, fixed));
  const bool fits = m.format == WeightFormat::kInt4Grouped ? group > 0 : group == fixed;
  if (!fits) return fail("{}group: {} columns per scale cannot be with {}", node.path, group, format);
  m.group = static_cast<std::int32_t>(group);
  COLIBRI_TRY(origin, node.integer("row_origin", 0, m.format == WeightFormat::kF8Block128 ? 127 : 0, 0));
  m.row_origin = origin;
  return m;
}

Result<PackedLayout> parse_layout(const Node& node) {
  std::array<Matrix, 3> matrices;
  for (std::size_t i = 0; i < 3; ++i) {
    COLIBRI_TRY(part, node.object(kPartNames[i]));
    COLIBRI_TRY(matrix, parse_matrix(part));
    matrices[i] = matrix;
  }
  // Where everything lies follows from formats and shapes; the text must say the same.
  const PackedLayout layout = make_packed_layout(matrices[0], matrices[1], matrices[2]);
  for (std::size_t i = 0; i < 3; ++i) {
    COLIBRI_TRY(part, node.object(kPartNames[i]));
    COLIBRI_TRY(weights, part.pair("weights", INT64_MAX));
    COLIBRI_TRY(scales, part.pair("scales", INT64_MAX));
    const PackedMatrix& expected = layout.parts[i];
    const auto compare = [&](const char* key, const std::array<std::uint64_t, 2>& found, std::uint64_t offset,
                             std::uint64_t bytes) -> Result<void> {
      if (found[0] == offset && found[1] == bytes) return {};
      return fail("{}{}: [{}, {}], expected [{}, {}] (offset, bytes) by format and shape", part.path, key, found[0], found[1],
                  offset, bytes);
    };
    COLIBRI_CHECK(compare("weights", weights, expected.data_offset, expected.data_bytes));
    COLIBRI_CHECK(compare("scales", scales, expected.scale_offset, expected.scale_bytes));
  }
  COLIBRI_TRY(bytes, node.integer("record_bytes", 0, INT64_MAX, 0));
  if (static_cast<std::uint64_t>(bytes) != layout.record_bytes)
    return fail("{}record_bytes: {}, expected {} by format and shape", node.path, bytes, layout.record_bytes);
  return layout;
}

}  // namespace

std::string packed_metadata_text(const PackedShard& shard) {
  json layouts = json::array();
  for (const PackedLayout& layout : shard.layouts) {
    json entry = {{"record_bytes", layout.record_bytes}};
    for (std::size_t i = 0; i < 3; ++i) entry[kPartNames[i]] = part_json(layout.parts[i]);
    layouts.push_back(std::move(entry));
  }
  const json root = {{"version", kPackedVersion},
                     {"tool", shard.tool},
                     {"source", shard.source},
                     {"layouts", std::move(layouts)},
                     {"records", shard.records}};
  return root.dump(-1, ' ', true, json::error_handler_t::replace);
}

Result<PackedShard> parse_packed_metadata(std::string_view text) {
  if (text.size() > kMaxTextBytes) return fail("{} bytes, expected at most {}", text.size(), kMaxTextBytes);
  const json root = json::parse(text.begin(), text.end(), nullptr, false);
  if (!root.is_object()) return fail("expected a JSON object");
  const Node node{root, ""};
  COLIBRI_TRY(version, node.integer("version", 1, INT64_MAX, 0));
  if (version != kPackedVersion)
    return fail("version {}, this coli reads version {}; use a newer one or convert again", version, kPackedVersion);
  PackedShard shard;
  COLIBRI_TRY(tool, node.text("tool"));
  shard.tool = std::move(tool);
  COLIBRI_TRY(source, node.text("source"));
  shard.source = std::move(source);
  COLIBRI_TRY(layouts, node.array("layouts"));
  for (const json& entry : layouts.value) {
    const std::string path = fmt::format("layouts[{}].", shard.layouts.size());
    if (!entry.is_object()) return fail("{}: expected an object", path);
    COLIBRI_TRY(layout, parse_layout({entry, path}));
    shard.layouts.push_back(layout);
  }
  COLIBRI_TRY(records, node.object("records"));
  for (const auto& [name, index] : records.value.items()) {
    if (!index.is_number_unsigned() || index.get<std::uint64_t>() >= shard.layouts.size())
      return fail("records: {}: expected the number of one of {} layouts", in_quotes(name), shard.layouts.size());
    shard.records.emplace(name, index.get<std::size_t>());
  }
  return shard;
}

}  // namespace colibri

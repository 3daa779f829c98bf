#include "format/packed.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cassert>
#include <cstring>

#include "base/aligned.h"
#include "format/file.h"

namespace colibri {
namespace {

constexpr char kMagic[8] = {'C', 'O', 'L', 'I', 'R', 'E', 'C', '1'};
constexpr std::string_view kSuffix = ".packed";

// The last 64 bytes of a record. Little-endian, as every machine that colibri runs on.
struct Trailer {
  char magic[8];
  std::uint64_t record_bytes;
  std::uint64_t name_hash;  // so that a record at another's place is noticed
  std::uint64_t zero[4];
  std::uint64_t checksum;  // of everything before it
};
static_assert(sizeof(Trailer) == kRecordTrailerBytes);

std::uint64_t checksum_of(std::span<const std::byte> record) {
  return XXH3_64bits(record.data(), record.size() - sizeof(std::uint64_t));
}

std::uint64_t hash_of(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

void zero(std::span<std::byte> record, std::uint64_t begin, std::uint64_t end) {
  std::memset(record.data() + begin, 0, end - begin);
}

MatrixSource source_of(const PackedMatrix& part, const FileRange& record) {
  MatrixSource source;
  source.matrix = part.matrix;
  source.data = {record.shard, record.offset + part.data_offset, part.data_bytes};
  if (part.scale_bytes > 0) source.scales = {record.shard, record.offset + part.scale_offset, part.scale_bytes};
  return source;
}

}  // namespace

PackedLayout make_packed_layout(const Matrix& gate, const Matrix& up, const Matrix& down) {
  PackedLayout layout;
  std::uint64_t end = 0;
  const auto place = [&](std::uint64_t bytes) {
    const std::uint64_t at = end;
    end = round_up(at + bytes, kWeightAlignment);
    return at;
  };
  for (std::size_t i = 0; const Matrix* m : {&gate, &up, &down}) {
    PackedMatrix& part = layout.parts[i++];
    const bool fp8 = m->format == WeightFormat::kF8Block128;
    part.matrix.format = m->format;
    part.matrix.group = m->group;
    part.matrix.rows = m->rows;
    part.matrix.cols = m->cols;
    part.matrix.row_bytes = format_row_bytes(m->format, m->cols);
    part.matrix.scale_stride = format_row_scales(m->format, m->cols, m->group);
    part.matrix.row_origin = fp8 ? m->row_origin % 128 : 0;  // a slice may begin inside a block
    part.data_bytes = static_cast<std::uint64_t>(format_bytes(m->format, m->rows, m->cols));
    part.scale_bytes =
        4 * static_cast<std::uint64_t>(format_scales(m->format, m->rows + part.matrix.row_origin, m->cols, m->group));
    part.data_offset = place(part.data_bytes);
    part.scale_offset = place(part.scale_bytes);
  }
  layout.record_bytes = round_up(end + kRecordTrailerBytes, kRecordAlignment);
  return layout;
}

std::string packed_expert_name(std::string_view layer_prefix, std::int64_t expert) {
  return fmt::format("{}{}{}", layer_prefix, expert, kSuffix);
}

std::string packed_expert_name(std::int64_t layer, std::int64_t expert) {
  return packed_expert_name(fmt::format("model.layers.{}.mlp.experts.", layer), expert);
}

void seal_packed_record(const PackedLayout& layout, std::string_view name, std::span<std::byte> record) {
  assert(record.size() == layout.record_bytes);
  std::uint64_t end = 0;
  for (const PackedMatrix& part : layout.parts) {
    zero(record, end, part.data_offset);
    zero(record, part.data_offset + part.data_bytes, part.scale_offset);
    end = part.scale_offset + part.scale_bytes;
  }
  zero(record, end, layout.record_bytes - sizeof(Trailer));
  Trailer trailer = {};
  std::memcpy(trailer.magic, kMagic, sizeof kMagic);
  trailer.record_bytes = layout.record_bytes;
  trailer.name_hash = hash_of(name);
  std::byte* const at = record.data() + record.size() - sizeof(Trailer);
  std::memcpy(at, &trailer, sizeof trailer);
  const std::uint64_t checksum = checksum_of(record);
  std::memcpy(at + offsetof(Trailer, checksum), &checksum, sizeof checksum);
}

Result<void> check_packed_record(std::span<const std::byte> record, std::string_view name) {
  Trailer trailer;
  if (record.size() < sizeof trailer) return fail("record {}: {} bytes are no record", in_quotes(name), record.size());
  std::memcpy(&trailer, record.data() + record.size() - sizeof trailer, sizeof trailer);
  if (std::memcmp(trailer.magic, kMagic, sizeof kMagic) != 0)
    return fail("record {}: its trailer is missing; the file is damaged or was cut short", in_quotes(name));
  if (const std::uint64_t found = checksum_of(record); found != trailer.checksum)
    return fail("record {}: checksum {:016x}, expected {:016x}; the file is damaged, fetch or convert it again", in_quotes(name),
                found, trailer.checksum);
  if (trailer.record_bytes != record.size())
    return fail("record {}: the trailer speaks of {} bytes, the record has {}", in_quotes(name), trailer.record_bytes,
                record.size());
  if (trailer.name_hash != hash_of(name)) return fail("record {}: another expert's weights lie in its place", in_quotes(name));
  return {};
}

Result<PackedIndex> PackedIndex::open(const Checkpoint& checkpoint) {
  PackedIndex index;
  for (const Checkpoint::Shard& shard : checkpoint.shards()) {
    const auto number = static_cast<std::int32_t>(index.shards_.size());
    index.shards_.push_back(shard.path.string());
    const auto text = shard.metadata.find(kPackedMetadataKey);
    if (text == shard.metadata.end()) continue;
    auto parsed = parse_packed_metadata(text->second);
    if (!parsed) return fail("{}: {}: {}", shard.path.string(), kPackedMetadataKey, parsed.error().message);
    const std::size_t first_layout = index.layouts_.size();
    index.layouts_.insert(index.layouts_.end(), parsed->layouts.begin(), parsed->layouts.end());
    for (const auto& [name, layout] : parsed->records) {
      const TensorInfo* tensor = checkpoint.find(name);
      const auto wrong = [&](const std::string& what) {
        // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): it does not follow captured structured bindings
        return fail("{}: tensor {}: {}", shard.path.string(), in_quotes(name), what);
      };
      if (!tensor || tensor->range.shard != number) return wrong("listed as a packed expert, but the file does not hold it");
      const std::uint64_t expected = parsed->layouts[layout].record_bytes;
      if (tensor->dtype != DType::kU8 || tensor->range.bytes != expected)
        return wrong(fmt::format("{} {}, expected a packed expert of {} bytes, U8", dtype_name(tensor->dtype),
                                 shape_text(tensor->shape), expected));
      if (tensor->range.offset % kRecordAlignment != 0)
        return wrong(
            fmt::format("a packed expert at byte {}, expected a multiple of {}", tensor->range.offset, kRecordAlignment));
      index.records_.try_emplace(name, Record{tensor->range, first_layout + layout});
    }
  }
  for (const TensorInfo& tensor : checkpoint.tensors())
    if (tensor.name.ends_with(kSuffix) && !index.records_.contains(tensor.name)) index.unlisted_.insert(tensor.name);
  return index;
}

PackedExpert PackedIndex::expert(const std::string& name, const Record& record) const {
  const auto& parts = layouts_[record.layout].parts;
  return {name, source_of(parts[0], record.range), source_of(parts[1], record.range), source_of(parts[2], record.range),
          record.range};
}

Result<std::optional<PackedExpert>> PackedIndex::find(std::string_view layer_prefix, std::int64_t expert_id,
                                                      std::int64_t intermediate, std::int64_t hidden) const {
  if (records_.empty() && unlisted_.empty()) return std::nullopt;
  const std::string name = packed_expert_name(layer_prefix, expert_id);
  if (unlisted_.contains(name))
    return fail("tensor {}: a packed expert that its file's {} metadata does not describe", in_quotes(name), kPackedMetadataKey);
  const auto it = records_.find(name);
  if (it == records_.end()) return std::nullopt;
  PackedExpert found = expert(name, it->second);
  const auto check = [&](const char* which, const Matrix& m, std::int64_t rows, std::int64_t cols) -> Result<void> {
    if (m.rows == rows && m.cols == cols) return {};
    return fail("{}: tensor {}: {} is [{}, {}], expected [{}, {}]; does config.json belong to these files?",
                shards_[static_cast<std::size_t>(found.record.shard)], in_quotes(name), which, m.rows, m.cols, rows, cols);
  };
  COLIBRI_CHECK(check("gate", found.gate.matrix, intermediate, hidden));
  COLIBRI_CHECK(check("up", found.up.matrix, intermediate, hidden));
  COLIBRI_CHECK(check("down", found.down.matrix, hidden, intermediate));
  return found;
}

std::vector<PackedExpert> PackedIndex::all() const {
  std::vector<PackedExpert> experts;
  experts.reserve(records_.size());
  for (const auto& [name, record] : records_) experts.push_back(expert(name, record));
  return experts;
}

}  // namespace colibri

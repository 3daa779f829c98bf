#include "convert/shard_plan.h"

#include <algorithm>
#include <cassert>
#include <nlohmann/json.hpp>

#include "base/aligned.h"
#include "format/file.h"

namespace colibri {
namespace {

using nlohmann::json;

bool same_layout(const PackedLayout& a, const PackedLayout& b) {
  const auto same = [](const PackedMatrix& x, const PackedMatrix& y) {
    return x.matrix.format == y.matrix.format && x.matrix.group == y.matrix.group && x.matrix.rows == y.matrix.rows &&
           x.matrix.cols == y.matrix.cols && x.matrix.row_origin == y.matrix.row_origin;
  };
  return std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), same);
}

std::string text_of(const json& value) { return value.dump(-1, ' ', true, json::error_handler_t::replace); }

class ShardBuilder {
 public:
  ShardBuilder(const ShardOptions& options, std::size_t number) : max_bytes_(options.max_bytes), number_(number) {
    shard_.file_name = fmt::format("out-{:05}.safetensors", number);
    packed_.tool = options.tool;
    packed_.source = options.source;
  }

  bool empty() const { return shard_.units.empty(); }
  bool has_room_for(const PlannedUnit& unit) const { return bytes_ + unit_bytes(unit) <= max_bytes_; }

  void add(PlannedUnit unit) {
    bytes_ += unit_bytes(unit);
    shard_.units.push_back(std::move(unit));
  }

  PlannedShard finish() {
    std::vector<PlannedUnit> ordered;  // records first
    for (const bool records : {true, false})
      for (PlannedUnit& unit : shard_.units)
        if (unit.record.has_value() == records) ordered.push_back(std::move(unit));
    shard_.units = std::move(ordered);
    json stamps = json::object();
    for (PlannedUnit& unit : shard_.units) {
      if (unit.record) list_record(unit);
      for (PlannedTensor& tensor : unit.tensors) {
        if (!tensor.stamp.empty()) stamps[tensor.name] = tensor.stamp;
        place(tensor);
      }
    }
    json metadata = {{"format", "pt"}};
    if (!packed_.records.empty()) metadata[kPackedMetadataKey] = packed_metadata_text(packed_);
    if (!stamps.empty()) metadata["colibri.fmt"] = text_of(stamps);

    std::string header = "{\"__metadata__\":" + text_of(metadata) + entries_ + "}";
    const std::uint64_t start = round_up(8 + header.size(), packed_.records.empty() ? kWeightAlignment : kRecordAlignment);
    header.resize(start - 8, ' ');
    for (int i = 0; i < 8; ++i) shard_.header += static_cast<char>(header.size() >> (8 * i) & 255);
    shard_.header += header;
    shard_.file_bytes = start + end_;
    for (PlannedUnit& unit : shard_.units)
      for (PlannedTensor& tensor : unit.tensors) tensor.offset += start;
    return std::move(shard_);
  }

 private:
  static std::uint64_t unit_bytes(const PlannedUnit& unit) {
    std::uint64_t bytes = 0;
    for (const PlannedTensor& tensor : unit.tensors) bytes += round_up(tensor.bytes, kWeightAlignment);
    return bytes;
  }

  void list_record(const PlannedUnit& unit) {
    assert(unit.tensors.size() == 1 && unit.tensors[0].bytes == unit.record->record_bytes);
    auto& layouts = packed_.layouts;
    const auto it =
        std::find_if(layouts.begin(), layouts.end(), [&](const PackedLayout& l) { return same_layout(l, *unit.record); });
    packed_.records[unit.tensors[0].name] = static_cast<std::size_t>(it - layouts.begin());
    if (it == layouts.end()) layouts.push_back(*unit.record);
  }

  // Offsets count from the first byte after the header until its length is known.
  void place(PlannedTensor& tensor) {
    if (const std::uint64_t gap = round_up(end_, kWeightAlignment) - end_; gap > 0) {
      PlannedTensor padding = planned_tensor(fmt::format("colibri.padding.{}.{}", number_, ++paddings_), DType::kU8,
                                             {static_cast<std::int64_t>(gap)});
      append(padding);
    }
    append(tensor);
  }
  void append(PlannedTensor& tensor) {
    tensor.offset = end_;
    end_ += tensor.bytes;
    entries_ += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", text_of(json(tensor.name)),
                            dtype_name(tensor.dtype), shape_text(tensor.shape), tensor.offset, end_);
  }

  std::uint64_t max_bytes_;
  std::size_t number_;
  PlannedShard shard_;
  PackedShard packed_;
  std::string entries_;
  std::uint64_t bytes_ = 0;  // of the units added
  std::uint64_t end_ = 0;    // of the tensors placed
  int paddings_ = 0;
};

}  // namespace

PlannedTensor planned_tensor(std::string name, DType dtype, std::vector<std::int64_t> shape) {
  PlannedTensor tensor{std::move(name), dtype, std::move(shape), dtype_bytes(dtype), 0, {}};
  for (const std::int64_t extent : tensor.shape) tensor.bytes *= static_cast<std::uint64_t>(extent);
  return tensor;
}

std::vector<PlannedShard> plan_shards(std::vector<PlannedUnit> units, const ShardOptions& options) {
  std::vector<PlannedShard> shards;
  ShardBuilder builder(options, 1);
  for (PlannedUnit& unit : units) {
    if (!builder.empty() && !builder.has_room_for(unit)) {
      shards.push_back(builder.finish());
      builder = ShardBuilder(options, shards.size() + 1);
    }
    builder.add(std::move(unit));
  }
  if (!builder.empty()) shards.push_back(builder.finish());
  return shards;
}

}  // namespace colibri

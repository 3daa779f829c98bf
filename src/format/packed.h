// The packed layout of routed experts (docs/packed.md): one U8 tensor per expert inside an ordinary safetensors file.
// Such a record holds the three matrices with their scales in the order in which they are used, starts at a multiple
// of 16 KiB of the file and ends with a trailer that carries a checksum of the rest, so that one read brings an
// expert and a record can be verified without the file's header.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "format/checkpoint.h"

namespace colibri {

inline constexpr std::uint64_t kRecordAlignment = 16384;  // of a record in its file, and of its size
inline constexpr std::uint64_t kRecordTrailerBytes = 64;
inline constexpr std::int64_t kPackedVersion = 1;

// One matrix inside a record. Offsets count from the record's start and are multiples of 64.
struct PackedMatrix {
  Matrix matrix;  // format, group, shape, strides; no pointers. row_origin: 0 .. 127, other than 0 only for fp8
  std::uint64_t data_offset = 0, data_bytes = 0;
  std::uint64_t scale_offset = 0, scale_bytes = 0;  // f32; 0 bytes when the format has none
};

// How a record is divided: gate weights, gate scales, up weights, up scales, down weights, down scales, trailer.
struct PackedLayout {
  std::array<PackedMatrix, 3> parts;  // gate, up, down
  std::uint64_t record_bytes = 0;     // trailer and padding included
};

// The layout for three matrices of these formats and shapes (only the fields before `data` of Matrix are used).
PackedLayout make_packed_layout(const Matrix& gate, const Matrix& up, const Matrix& down);

// "model.layers.3.mlp.experts." and 7, or 3 and 7: "model.layers.3.mlp.experts.7.packed"
std::string packed_expert_name(std::string_view layer_prefix, std::int64_t expert);
std::string packed_expert_name(std::int64_t layer, std::int64_t expert);

// Zeroes what lies between the parts and writes the trailer. record: layout.record_bytes, the parts filled in.
void seal_packed_record(const PackedLayout& layout, std::string_view name, std::span<std::byte> record);
// Whether the bytes are the whole, undamaged record of that name. Errors name the tensor; the caller adds the shard.
Result<void> check_packed_record(std::span<const std::byte> record, std::string_view name);

// The value of the shard's `colibri.packed` metadata.
inline constexpr const char* kPackedMetadataKey = "colibri.packed";
struct PackedShard {
  std::string tool;                            // what wrote it: "coli 0.1.0"
  std::string source;                          // what it was made from
  std::vector<PackedLayout> layouts;           // the distinct ones
  std::map<std::string, std::size_t> records;  // tensor name -> index into layouts
};
std::string packed_metadata_text(const PackedShard& shard);
// Checks everything that a reader will rely on: sizes follow from format and shape, parts are aligned, in order and inside
// the record. Errors name the record's field; the caller adds the shard.
Result<PackedShard> parse_packed_metadata(std::string_view json);

// One expert of a packed container, ready to be read: as three matrices like those of any other container, or in one
// read of the whole record, in which a matrix's bytes lie at its own offset less the record's.
struct PackedExpert {
  std::string name;
  MatrixSource gate, up, down;
  FileRange record;
};

// All packed experts of a checkpoint. Keeps no reference to it.
class PackedIndex {
 public:
  PackedIndex() = default;  // of a checkpoint without any
  static Result<PackedIndex> open(const Checkpoint& checkpoint);

  // The expert with gate and up [intermediate, hidden] and down [hidden, intermediate]; nullopt when the checkpoint
  // does not hold it in packed form.
  Result<std::optional<PackedExpert>> find(std::string_view layer_prefix, std::int64_t expert, std::int64_t intermediate,
                                           std::int64_t hidden) const;
  // Every record, in order of its name.
  std::vector<PackedExpert> all() const;
  std::size_t size() const { return records_.size(); }

 private:
  struct Record {
    FileRange range;
    std::size_t layout = 0;
  };
  PackedExpert expert(const std::string& name, const Record& record) const;
  std::vector<std::string> shards_;
  std::vector<PackedLayout> layouts_;
  std::map<std::string, Record, std::less<>> records_;
  std::set<std::string, std::less<>> unlisted_;  // tensors that look like records but have no layout
};

}  // namespace colibri

// What files a written model will consist of, decided before the first byte is written: every tensor's place is
// known, so that threads write anywhere in any order and an interrupted run continues.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "format/checkpoint.h"
#include "format/packed.h"

namespace colibri {

struct PlannedTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // in the file; set by plan_shards
  std::string stamp;         // a format name for the `colibri.fmt` metadata, or empty
};
PlannedTensor planned_tensor(std::string name, DType dtype, std::vector<std::int64_t> shape);

// Tensors that are made together and lie together in one file: a packed expert, a matrix and its scales, ...
struct PlannedUnit {
  std::vector<PlannedTensor> tensors;
  std::optional<PackedLayout> record;  // set for a packed expert: then there is one tensor
  std::size_t job = 0;                 // the maker's business
};

struct PlannedShard {
  std::string file_name;
  std::string header;  // length and text, up to the first tensor
  std::vector<PlannedUnit> units;
  std::uint64_t file_bytes = 0;
};

struct ShardOptions {
  std::uint64_t max_bytes = std::uint64_t{4} << 30;  // a shard is closed before it grows beyond this
  std::string tool;                                  // for the metadata of packed shards
  std::string source;
};

// Fills files out-00001.safetensors, ... in the order of the units. In a file the records come first, each at a multiple of
// 16 KiB; other tensors start at multiples of 64. Where sizes leave a gap (odd dimensions only), a tensor of zeros named
// colibri.padding.N.M fills it, since safetensors knows no holes.
std::vector<PlannedShard> plan_shards(std::vector<PlannedUnit> units, const ShardOptions& options);

}  // namespace colibri

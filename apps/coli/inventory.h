// What a model directory holds, by the part of the network and the format it is stored in. Reads headers only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "format/checkpoint.h"
#include "format/config.h"

namespace colibri {

struct InventoryRow {
  std::string part;    // "attention", "routed experts", ...
  std::string format;  // "int4-grouped, 64", "f32", ...
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;  // 0 when the shape is not known
  std::uint64_t bytes = 0;      // scales included
};

struct Inventory {
  std::vector<InventoryRow> rows;  // by part in the order of the network, then by format
  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;
  std::uint64_t expert_bytes = 0;  // routed experts, the MTP layer's included
  std::vector<std::string> notes;  // formats that could not be told, or run slowly
};

// config may be null (a family colibri does not run): blobs of quantised weights then have no known shape.
Inventory take_inventory(const Checkpoint& checkpoint, const ModelConfig* config);

}  // namespace colibri

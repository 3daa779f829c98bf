#include "gpu/experts.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "base/aligned.h"
#include "gpu/kernels/dot_shape.h"

namespace colibri::gpu {
namespace {

constexpr std::uint64_t kPartAlignment = 64;

struct PartBytes {
  std::uint64_t slots, tiles;
};
PartBytes part_bytes(const ExpertShape& shape, std::int64_t rows) {
  return {round_up(static_cast<std::uint64_t>(rows * shape.per_token) * sizeof(i32), kPartAlignment),
          round_up(static_cast<std::uint64_t>(max_expert_tiles(shape, rows)) * sizeof(ExpertTile), kPartAlignment)};
}

// One dispatch over all tiles and blocks of outputs.
void run_tiles(Encoder& encoder, const ExpertShape& shape, std::string_view function, std::vector<u32> constants,
               std::int64_t rows, std::int64_t outputs, ExpertArgs a) {
  encoder.add_work(static_cast<double>(rows * shape.per_token) * static_cast<double>(shape.hidden * shape.intermediate));
  const std::int64_t tiles = max_expert_tiles(shape, rows), blocks = tiles * ceil_div(outputs, kGroupOutputs);
  assert(blocks <= std::numeric_limits<u32>::max());
  a.outputs = static_cast<u32>(outputs);
  a.x_aligned = a.x % 16 == 0 && a.x_stride % 4 == 0;
  a.tiles_launched = static_cast<u32>(tiles);
  // A row chooses an expert once, so rows bound the slots of a tile.
  constants.push_back(static_cast<u32>(rows == 1 ? 1 : rows <= 4 ? 4 : kExpertTileRows));
  encoder.dispatch({"experts", function, std::move(constants)}, a, {blocks}, kGroupThreads);
}

}  // namespace

std::int64_t max_expert_tiles(const ExpertShape& shape, std::int64_t rows) {
  // Every distinct expert may leave one tile unfilled.
  const std::int64_t slots = rows * shape.per_token;
  return (slots + (kExpertTileRows - 1) * std::min(shape.experts, slots)) / kExpertTileRows;
}

std::uint64_t expert_groups_bytes(const ExpertShape& shape, std::int64_t max_rows) {
  const PartBytes parts = part_bytes(shape, max_rows);
  return 2 * parts.slots + parts.tiles + kPartAlignment;
}

ExpertGroups place_expert_groups(const ExpertShape& shape, std::int64_t max_rows, Address memory) {
  const PartBytes parts = part_bytes(shape, max_rows);
  ExpertGroups groups;
  groups.slot_of = memory;
  groups.row_of = groups.slot_of + parts.slots;
  groups.tiles = groups.row_of + parts.slots;
  groups.tile_count = groups.tiles + parts.tiles;
  return groups;
}

void group_by_expert(Encoder& encoder, const ExpertShape& shape, std::int64_t rows, Address chosen, const ExpertGroups& groups) {
  GroupExpertsArgs a{};
  a.chosen = chosen;
  a.slot_of = groups.slot_of;
  a.row_of = groups.row_of;
  a.tiles = groups.tiles;
  a.tile_count = groups.tile_count;
  a.slots = static_cast<u32>(rows * shape.per_token);
  a.per_token = static_cast<u32>(shape.per_token);
  a.experts = static_cast<u32>(shape.experts);
  encoder.dispatch({"experts", "group_experts"}, a, {1}, kGroupExpertsThreads);
}

void expert_swiglu(Encoder& encoder, const ExpertShape& shape, Address table, const ExpertGroups& groups, const Rows& input,
                   Address act) {
  assert(input.cols == shape.hidden);
  ExpertArgs a{};
  a.table = table;
  a.tiles = groups.tiles;
  a.tile_count = groups.tile_count;
  a.row_of = groups.row_of;
  a.x = input.data;
  a.y = act;
  a.x_stride = static_cast<u64>(input.stride);
  run_tiles(encoder, shape, "expert_swiglu", {static_cast<u32>(shape.gate), static_cast<u32>(shape.up)}, input.count,
            shape.intermediate, a);
}

void expert_down(Encoder& encoder, const ExpertShape& shape, Address table, const ExpertGroups& groups, std::int64_t rows,
                 Address act, Address out) {
  ExpertArgs a{};
  a.table = table;
  a.tiles = groups.tiles;
  a.tile_count = groups.tile_count;
  a.x = act;
  a.y = out;
  a.x_stride = static_cast<u64>(shape.intermediate);
  run_tiles(encoder, shape, "expert_down", {static_cast<u32>(shape.down), 0}, rows, shape.hidden, a);
}

void combine_experts(Encoder& encoder, const ExpertShape& shape, const ExpertGroups& groups, std::int64_t rows, Address weights,
                     Address out, Address shared, Address x, Address x_out, Address damage) {
  assert(x != x_out);
  CombineArgs a{};
  a.slot_of = groups.slot_of;
  a.weights = weights;
  a.out = out;
  a.shared = shared;
  a.x = x;
  a.x_out = x_out;
  a.damage = damage;
  a.hidden = static_cast<u32>(shape.hidden);
  a.per_token = static_cast<u32>(shape.per_token);
  a.column_blocks = static_cast<u32>(ceil_div(shape.hidden, kGroupThreads));
  encoder.dispatch({"experts", "combine_experts"}, a, {rows * ceil_div(shape.hidden, kGroupThreads)}, kGroupThreads);
}

}  // namespace colibri::gpu

// Routed experts over a bindless table: one dispatch for all experts and rows (rule C8 of docs/numerics.md).
#pragma once

#include "gpu/kernels/experts.h"
#include "gpu/products.h"

namespace colibri::gpu {

// A table is ExpertEntry[experts] in memory of the device: gate, up and down of each as matrix_args gives them. An expert whose
// gate.data is 0 is not there: its slots are skipped, so that a table may name those that have arrived.

struct ExpertShape {
  std::int64_t hidden = 0, intermediate = 0, experts = 0, per_token = 0;
  WeightFormat gate = WeightFormat::kF32, up = WeightFormat::kF32, down = WeightFormat::kF32;  // of every expert of the layer
};

// Device memory that holds, for a step of `rows` rows, which slots belong to which expert. slots = rows * per_token: every
// distinct expert has consecutive slots, in rising row order, and experts come in rising order. A tile is at most kExpertTileRows
// slots of one expert.
struct ExpertGroups {
  Address slot_of = 0;     // i32[rows * per_token]: slot of (row, rank)
  Address row_of = 0;      // i32[slots]: the row of a slot
  Address tiles = 0;       // ExpertTile[max_tiles]
  Address tile_count = 0;  // u32
};
inline constexpr std::int64_t kExpertTileRows = kExpertTile;
std::int64_t max_expert_tiles(const ExpertShape& shape, std::int64_t rows);
std::uint64_t expert_groups_bytes(const ExpertShape& shape, std::int64_t max_rows);
// Lays the parts out in expert_groups_bytes() of memory at `memory`.
ExpertGroups place_expert_groups(const ExpertShape& shape, std::int64_t max_rows, Address memory);

// chosen: i32[rows * per_token], expert ids in router-rank order, those of a row distinct. Fills the groups, on the device.
void group_by_expert(Encoder& encoder, const ExpertShape& shape, std::int64_t rows, Address chosen, const ExpertGroups& groups);

// act[slot] = silu(gate x) * (up x), x being the slot's row of `input`; act: f32[slots][intermediate]. table:
// ExpertEntry[experts].
void expert_swiglu(Encoder& encoder, const ExpertShape& shape, Address table, const ExpertGroups& groups, const Rows& input,
                   Address act);
// out[slot] = down act[slot]; out: f32[slots][hidden].
void expert_down(Encoder& encoder, const ExpertShape& shape, Address table, const ExpertGroups& groups, std::int64_t rows,
                 Address act, Address out);
// sum from +0 of fma(weights[row][rank], out[slot of (row, rank)], sum) in rank order; + shared (when not 0); x_out = x + that.
// weights: f32[rows * per_token]; x, shared, x_out: f32[rows][hidden]; x_out may not be x. A value that is not finite sets
// kDamageFeedForward in *damage (u32).
void combine_experts(Encoder& encoder, const ExpertShape& shape, const ExpertGroups& groups, std::int64_t rows, Address weights,
                     Address out, Address shared, Address x, Address x_out, Address damage);

}  // namespace colibri::gpu

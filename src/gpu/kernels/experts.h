// Routed experts (src/gpu/experts.h).
#pragma once

#include "gpu/kernels/weight_formats.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

// What the table holds for one expert. One whose gate.data is 0 is not there.
struct ExpertEntry {
  MatrixArgs gate, up, down;
};
COLI_SHARED_STRUCT(ExpertEntry, 168);

enum ExpertLimits : u32 {
  kExpertTile = 8,             // slots of a tile at most: what dot_staged_rows takes at once
  kGroupExpertsThreads = 256,  // threads of group_experts
};

// Slots [first, first + count) of one expert.
struct ExpertTile {
  u32 expert, first, count;
};
COLI_SHARED_STRUCT(ExpertTile, 12);

// One threadgroup.
struct GroupExpertsArgs {
  COLI_IN(i32) chosen;    // [slots], a slot being a (row, rank)
  COLI_OUT(i32) slot_of;  // [slots]
  COLI_OUT(i32) row_of;   // [slots]
  COLI_OUT(ExpertTile) tiles;
  COLI_OUT(u32) tile_count;
  u32 slots, per_token, experts;
  u32 first_group;
};
COLI_SHARED_STRUCT(GroupExpertsArgs, 56);

// Threadgroup x: tile x % tiles_launched, block x / tiles_launched of the outputs, so that neighbours that share an expert share
// its weights. Tiles past *tile_count do nothing.
struct ExpertArgs {
  COLI_IN(ExpertEntry) table;
  COLI_IN(ExpertTile) tiles;
  COLI_IN(u32) tile_count;
  COLI_IN(i32) row_of;  // of a slot; 0: slot s has row s of x
  COLI_IN(float) x;
  COLI_OUT(float) y;  // [slots][outputs]
  u64 x_stride;
  u32 outputs;
  u32 x_aligned;  // every row of x at a multiple of 16 bytes
  u32 tiles_launched;
  u32 first_group;
};
COLI_SHARED_STRUCT(ExpertArgs, 72);

// A thread a number: threadgroup x has columns from x % column_blocks of row x / column_blocks.
struct CombineArgs {
  COLI_IN(i32) slot_of;
  COLI_IN(float) weights;
  COLI_IN(float) out;     // [slots][hidden]
  COLI_IN(float) shared;  // [rows][hidden], or 0
  COLI_IN(float) x;
  COLI_OUT(float) x_out;
  COLI_OUT(u32) damage;
  u32 hidden, per_token, column_blocks;
  u32 first_group;
};
COLI_SHARED_STRUCT(CombineArgs, 72);

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

#include "gpu/kernels/dot.h"
#include "gpu/kernels/elementary.h"
#include "gpu/kernels/experts.h"
#include "gpu/kernels/step.h"
#pragma METAL fp contract(off)
using namespace metal;

static_assert(u32(kStagedRows) == u32(kExpertTile), "a tile is what dot_staged_rows takes");

// What all threads before this one have, and in *all what all have. totals: one entry a simdgroup.
inline uint sum_before(uint value, uint index, threadgroup uint* totals, thread uint* all) {
  const uint before = simd_prefix_exclusive_sum(value);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (index % 32 == 31) totals[index / 32] = before + value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint sum = 0, earlier = 0;
  for (uint s = 0; s < kGroupExpertsThreads / 32; ++s) {
    if (s < index / 32) earlier += totals[s];
    sum += totals[s];
  }
  *all = sum;
  return earlier + before;
}

// Experts in rising order, each thread having one at a time: it counts the slots that chose it, learns how many slots and tiles
// the experts before it take, and writes its own. Every list comes out the same whatever the threads' timing.
kernel void group_experts(constant GroupExpertsArgs& a [[buffer(0)]],
                          uint index [[thread_index_in_threadgroup]]) {
  threadgroup uint slot_totals[kGroupExpertsThreads / 32];
  threadgroup uint tile_totals[kGroupExpertsThreads / 32];
  uint first_slot = 0, first_tile = 0;
  for (uint base = 0; base < a.experts; base += kGroupExpertsThreads) {
    const int expert = int(base + index);
    uint count = 0;
    for (uint i = 0; i < a.slots; ++i) count += a.chosen[i] == expert;
    const uint tile_count = (count + kExpertTile - 1) / kExpertTile;
    uint slots = 0, tiles = 0;
    uint slot = first_slot + sum_before(count, index, slot_totals, &slots);
    const uint tile = first_tile + sum_before(tile_count, index, tile_totals, &tiles);
    for (uint t = 0; t < tile_count; ++t) {
      a.tiles[tile + t].expert = uint(expert);
      a.tiles[tile + t].first = slot + t * kExpertTile;
      a.tiles[tile + t].count = min(count - t * kExpertTile, u32(kExpertTile));
    }
    for (uint i = 0; i < a.slots && count > 0; ++i) {
      if (a.chosen[i] != expert) continue;
      a.slot_of[i] = int(slot);
      a.row_of[slot++] = int(i / a.per_token);
      --count;
    }
    first_slot += slots;
    first_tile += tiles;
  }
  if (index == 0) *a.tile_count = first_tile;
}

constant uint kFirstFormat [[function_constant(0)]];   // of gate, or of down
constant uint kSecondFormat [[function_constant(1)]];  // of up
constant uint kMostSlots [[function_constant(2)]];     // that a tile can have: 1, 4 or 8

// The row of slot r of a tile; the last slot's stands in for those that are not there.
inline device const float* slot_row(constant ExpertArgs& a, uint first, uint count, uint r) {
  const uint slot = first + min(r, count - 1);
  return a.x + (a.row_of ? ulong(a.row_of[slot]) : ulong(slot)) * a.x_stride;
}
template <u32 R>
inline DeviceRows<R> slot_rows(constant ExpertArgs& a, uint first, uint count) {
  DeviceRows<R> x;
  x.aligned = a.x_aligned != 0;
#pragma unroll
  for (uint r = 0; r < R; ++r) x.row[r] = slot_row(a, first, count, r);
  return x;
}

template <u32 R>
inline void store(constant ExpertArgs& a, thread const float* v, uint first, uint count, uint first_output, uint lane) {
  constexpr u32 sums = R * kOutputs;
  if (!has_sum<sums>(lane)) return;
#pragma unroll
  for (uint j = 0; j < sums_of_lane<sums>(); ++j) {
    const uint n = first_sum<sums>(lane) + j, r = n / kOutputs, output = first_output + n % kOutputs;
    if (r < count && output < a.outputs) a.y[ulong(first + r) * a.outputs + output] = v[j];
  }
}

template <u32 R>
inline void activate(thread float* gate, thread const float* up) {
#pragma unroll
  for (uint j = 0; j < sums_of_lane<R * kOutputs>(); ++j) gate[j] = silu(gate[j]) * up[j];
}

template <u32 R>
inline void swiglu_tile(constant ExpertArgs& a, device const ExpertEntry* entry, uint first, uint count, uint output, uint lane) {
  const DeviceRows<R> x = slot_rows<R>(a, first, count);
  float gate[R * kOutputs], up[R * kOutputs];
  dot_rows<R>(gate, kFirstFormat, weights_of(&entry->gate), output, a.outputs, x, lane);
  dot_rows<R>(up, kSecondFormat, weights_of(&entry->up), output, a.outputs, x, lane);
  activate<R>(gate, up);
  store<R>(a, gate, first, count, output, lane);
}

kernel void expert_swiglu(constant ExpertArgs& a [[buffer(0)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint index [[thread_index_in_threadgroup]]) {
  threadgroup float4 quads[kStagedQuads];
  const uint block = group + a.first_group, tile = block % a.tiles_launched;
  if (tile >= *a.tile_count) return;
  device const ExpertEntry* entry = a.table + a.tiles[tile].expert;
  if (entry->gate.data == nullptr) return;
  const uint first = a.tiles[tile].first, count = a.tiles[tile].count, lane = index % 16;
  const uint output = block / a.tiles_launched * kGroupOutputs + index / 16 * kOutputs;
  if (kMostSlots == 1 || count == 1) {
    swiglu_tile<1>(a, entry, first, count, output, lane);
  } else if (kMostSlots == 4 || count <= 4) {
    swiglu_tile<4>(a, entry, first, count, output, lane);
  } else {
    device const float* x = slot_row(a, first, count, index / 16);
    const bool aligned = a.x_aligned != 0;
    float gate[kStagedRows * kOutputs], up[kStagedRows * kOutputs];
    dot_staged_rows(gate, kFirstFormat, weights_of(&entry->gate), output, a.outputs, x, aligned, index, quads);
    dot_staged_rows(up, kSecondFormat, weights_of(&entry->up), output, a.outputs, x, aligned, index, quads);
    activate<kStagedRows>(gate, up);
    store<kStagedRows>(a, gate, first, count, output, lane);
  }
}

template <u32 R>
inline void down_tile(constant ExpertArgs& a, device const ExpertEntry* entry, uint first, uint count, uint output, uint lane) {
  float v[R * kOutputs];
  dot_rows<R>(v, kFirstFormat, weights_of(&entry->down), output, a.outputs, slot_rows<R>(a, first, count), lane);
  store<R>(a, v, first, count, output, lane);
}

kernel void expert_down(constant ExpertArgs& a [[buffer(0)]],
                        uint group [[threadgroup_position_in_grid]],
                        uint index [[thread_index_in_threadgroup]]) {
  threadgroup float4 quads[kStagedQuads];
  const uint block = group + a.first_group, tile = block % a.tiles_launched;
  if (tile >= *a.tile_count) return;
  device const ExpertEntry* entry = a.table + a.tiles[tile].expert;
  if (entry->gate.data == nullptr) return;
  const uint first = a.tiles[tile].first, count = a.tiles[tile].count, lane = index % 16;
  const uint output = block / a.tiles_launched * kGroupOutputs + index / 16 * kOutputs;
  if (kMostSlots == 1 || count == 1) {
    down_tile<1>(a, entry, first, count, output, lane);
  } else if (kMostSlots == 4 || count <= 4) {
    down_tile<4>(a, entry, first, count, output, lane);
  } else {
    float v[kStagedRows * kOutputs];
    dot_staged_rows(v, kFirstFormat, weights_of(&entry->down), output, a.outputs, slot_row(a, first, count, index / 16),
                    a.x_aligned != 0, index, quads);
    store<kStagedRows>(a, v, first, count, output, lane);
  }
}

// Rule C8.
kernel void combine_experts(constant CombineArgs& a [[buffer(0)]],
                            uint group [[threadgroup_position_in_grid]],
                            uint index [[thread_index_in_threadgroup]]) {
  const uint block = group + a.first_group, column = block % a.column_blocks * kGroupThreads + index;
  if (column >= a.hidden) return;
  const ulong row = block / a.column_blocks, at = row * a.hidden + column;
  float sum = 0.0f;
  for (uint rank = 0; rank < a.per_token; ++rank) {
    const ulong i = row * a.per_token + rank;
    sum = fma(a.weights[i], a.out[ulong(a.slot_of[i]) * a.hidden + column], sum);
  }
  if (a.shared) sum = sum + a.shared[at];
  const float y = a.x[at] + sum;
  a.x_out[at] = y;
  if (!is_finite(y)) mark_damage(a.damage, kDamageFeedForward);
}

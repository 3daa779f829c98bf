// Rule C2 of docs/numerics.md: dot products of stored weights with rows of activations. For kernels only.
//
// 16 lanes share an output row, so a simdgroup works on two sets of outputs at once. Lane l of the 16 is the contract's
// accumulator l: of every block b of 32 columns with b % 8 == l / 2 it sums the columns 32 b + 2 i + l % 2 over i = 0 .. 15. It
// does so for kOutputs output rows and R rows of activations together: an activation that was loaded serves every output, a
// weight that was unpacked every row. The sum over the lanes is the rule's tree.
#pragma once

#include "gpu/kernels/dot_shape.h"
#include "gpu/kernels/weights.h"

#pragma METAL fp contract(off)

// R rows of activations where they lie. The two lanes of a block load the same 32 numbers, four at a time where all rows are
// aligned to 16 bytes, and each takes every second one.
template <u32 R>
struct DeviceRows {
  device const float* row[R];
  bool aligned;
  // Of row r: columns 8 j + h, + 2, + 4, + 6 of block b.
  float4 quad(uint r, uint b, uint j, uint lane) const {
    device const float* x = row[r] + 32 * b + 8 * j;
    if (aligned) {
      const float4 first = *(device const float4*)x, second = *(device const float4*)(x + 4);
      return lane % 2 == 0 ? float4(first.xz, second.xz) : float4(first.yw, second.yw);
    }
    x += lane % 2;
    return float4(x[0], x[2], x[4], x[6]);
  }
  float one(uint r, uint k, uint, uint) const { return row[r][k]; }
};

// 256 columns of up to kStagedRows rows in threadgroup memory, a lane's values in fours and its neighbours' beside them. The gap
// after each set of 16 keeps the banks apart while the values are written.
constant constexpr u32 kStagedSet = 18, kStagedRow = 4 * kStagedSet, kStagedQuads = kStagedRows * kStagedRow;
struct StagedRows {
  threadgroup const float4* quads;
  float4 quad(uint r, uint, uint j, uint lane) const { return quads[r * kStagedRow + j * kStagedSet + lane]; }
  float one(uint r, uint, uint i, uint lane) const {
    return ((threadgroup const float*)quads)[4 * (r * kStagedRow + i / 4 * kStagedSet + lane) + i % 4];
  }
};

// Columns [first, first + 256) of x, zeros past cols. Every thread of the threadgroup calls it, between two barriers.
inline void stage(thread const DeviceRows<kStagedRows>& x, uint first, uint cols, uint index, threadgroup float4* quads) {
  threadgroup float* values = (threadgroup float*)quads;
  for (uint r = 0; r < kStagedRows; ++r)
    for (uint k = index; k < 256; k += kGroupThreads) {
      const uint lane = k / 32 * 2 + k % 2, i = k % 32 / 2;
      values[4 * (r * kStagedRow + i / 4 * kStagedSet + lane) + i % 4] = first + k < cols ? x.row[r][first + k] : 0.0f;
    }
}

struct OutputRows {
  device const uchar* data[kOutputs];
  device const float* scales[kOutputs];
};

// The scale of a block without a division for each: which entry it is, kept up while the block moves on by 8.
struct ScaleIndex {
  uint entry, rest, span, step, step_rest;
  void start(uint b, uint columns) {
    span = columns == 0 ? 0x7fffffffu : columns / 32;
    entry = b / span;
    rest = b % span;
    step = 8 / span;
    step_rest = 8 % span;
  }
  void next() {
    entry += step;
    rest += step_rest;
    if (rest >= span) {
      rest -= span;
      ++entry;
    }
  }
};

// sums[r * kOutputs + o] += the lane's share of block b, which lies wholly inside the row.
template <u32 F, u32 R, typename X>
inline void add_block(thread float* sums, thread const OutputRows& rows, thread const X& x, uint b, uint lane, uint scale,
                      bool aligned) {
  Block<F> block[kOutputs];
  float p[R * kOutputs];
  for (uint o = 0; o < kOutputs; ++o) block[o].open(rows.data[o], b, lane % 2, aligned);
  for (uint n = 0; n < R * kOutputs; ++n) p[n] = 0.0f;
#pragma unroll
  for (uint j = 0; j < 4; ++j) {
    float4 v[R];
    for (uint r = 0; r < R; ++r) v[r] = x.quad(r, b, j, lane);
#pragma unroll
    for (uint o = 0; o < kOutputs; ++o) {
      const float4 w = block[o].quad(j);
#pragma unroll
      for (uint r = 0; r < R; ++r) {
        float sum = p[r * kOutputs + o];
        sum = metal::fma(w.x, v[r].x, sum);
        sum = metal::fma(w.y, v[r].y, sum);
        sum = metal::fma(w.z, v[r].z, sum);
        p[r * kOutputs + o] = metal::fma(w.w, v[r].w, sum);
      }
    }
  }
#pragma unroll
  for (uint o = 0; o < kOutputs; ++o) {
    const float s = has_scales(F) ? rows.scales[o][scale] : 1.0f;
    for (uint r = 0; r < R; ++r) sums[r * kOutputs + o] = metal::fma(s, p[r * kOutputs + o], sums[r * kOutputs + o]);
  }
}

// The same one column at a time: for a block that ends or begins past the row, and for scales (one per `irregular` columns,
// when not 0) that change inside a block and are therefore applied to each weight.
template <u32 F, u32 R, typename X>
inline void add_columns(thread float* sums, thread const OutputRows& rows, thread const X& x, uint b, uint lane, uint scale,
                        uint irregular, uint cols) {
  if (32 * b >= cols) return;
  float p[R * kOutputs];
  for (uint n = 0; n < R * kOutputs; ++n) p[n] = 0.0f;
#pragma clang loop unroll(disable)
  for (uint i = 0; i < 16; ++i) {
    const uint k = 32 * b + 2 * i + lane % 2;
    const bool inside = k < cols;
    float v[R];
    for (uint r = 0; r < R; ++r) v[r] = inside ? x.one(r, k, i, lane) : 0.0f;
    for (uint o = 0; o < kOutputs; ++o) {
      float w = inside ? stored_value<F>(rows.data[o], k) : 0.0f;
      if (F == kStoredInt4 && irregular != 0 && inside) w = w * rows.scales[o][k / irregular];
      for (uint r = 0; r < R; ++r) p[r * kOutputs + o] = metal::fma(w, v[r], p[r * kOutputs + o]);
    }
  }
  for (uint o = 0; o < kOutputs; ++o) {
    const float s = has_scales(F) && irregular == 0 ? rows.scales[o][scale] : 1.0f;
    for (uint r = 0; r < R; ++r) sums[r * kOutputs + o] = metal::fma(s, p[r * kOutputs + o], sums[r * kOutputs + o]);
  }
}

// Where the walk over a matrix stands, for one lane.
template <u32 F>
struct Walk {
  OutputRows rows;
  ScaleIndex scale;
  uint cols, irregular;  // irregular: columns per scale that are not whole blocks, else 0
  bool aligned;

  // Outputs [first, first + kOutputs) of w, a last one standing in for those past `end`.
  void start(thread const Weights& w, ulong first, ulong end, uint lane) {
    for (uint o = 0; o < kOutputs; ++o) {
      const ulong row = metal::min(first + o, end - 1);
      rows.data[o] = w.data + row * w.row_bytes;
      rows.scales[o] = has_scales(F) ? scales_of_row<F>(w, row) : w.scales;
    }
    const uint columns = columns_per_scale<F>(w);
    irregular = columns % 32 != 0 ? columns : 0;
    scale.start(lane / 2, irregular == 0 ? columns : 0);
    cols = w.cols;
    aligned = w.aligned;
  }
  template <u32 R, typename X>
  void superblock(thread float* sums, thread const X& x, uint s, uint lane) {
    const uint b = 8 * s + lane / 2;
    if (32 * b + 32 <= cols && irregular == 0)
      add_block<F, R>(sums, rows, x, b, lane, scale.entry, aligned);
    else
      add_columns<F, R>(sums, rows, x, b, lane, scale.entry, irregular, cols);
    scale.next();
  }
};

template <u32 F, u32 R>
inline void walk_device_rows(thread float* sums, thread const Weights& w, ulong first, ulong end, thread const DeviceRows<R>& x,
                             uint lane) {
  Walk<F> walk;
  walk.start(w, first, end, lane);
  const uint superblocks = (w.cols + 255) / 256;
  for (uint s = 0; s < superblocks; ++s) walk.template superblock<R>(sums, x, s, lane);
}

template <u32 F>
inline void walk_staged_rows(thread float* sums, thread const Weights& w, ulong first, ulong end,
                             thread const DeviceRows<kStagedRows>& x, uint index, threadgroup float4* quads) {
  const uint lane = index % 16;
  Walk<F> walk;
  walk.start(w, first, end, lane);
  StagedRows staged;
  staged.quads = quads;
  const uint superblocks = (w.cols + 255) / 256;
  for (uint s = 0; s < superblocks; ++s) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    stage(x, 256 * s, w.cols, index, quads);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    walk.template superblock<kStagedRows>(sums, staged, s, lane);
  }
}

// One step of the tree: accumulators `Distance` lanes apart are added. Of N sums a lane keeps the half that its bit chooses and
// hands the other to its partner, so that many sums cost hardly more exchanges than one.
template <u32 N, u32 Distance>
inline void fold(thread float* v, uint lane) {
  if (N == 1) {
    v[0] = v[0] + metal::simd_shuffle_xor(v[0], ushort(Distance));
    return;
  }
  const bool upper = (lane & Distance) != 0;
#pragma unroll
  for (uint j = 0; j < N / 2; ++j) {
    const float keep = upper ? v[j + N / 2] : v[j], give = upper ? v[j] : v[j + N / 2];
    v[j] = keep + metal::simd_shuffle_xor(give, ushort(Distance));
  }
}
constexpr u32 half_of(u32 n) { return n > 1 ? n / 2 : 1; }

// N sums over 16 lanes each, N a power of two. Afterwards v[j] of lane l is sum first_sum<N>(l) + j for j < sums_of_lane<N>();
// with fewer than 16 sums several lanes hold the same one, and has_sum names one of them.
template <u32 N>
inline void tree_sums(thread float* v, uint lane) {
  fold<N, 8>(v, lane);
  fold<half_of(N), 4>(v, lane);
  fold<half_of(half_of(N)), 2>(v, lane);
  fold<half_of(half_of(half_of(N))), 1>(v, lane);
}
template <u32 N>
constexpr u32 sums_of_lane() {
  return N > 16 ? N / 16 : 1;
}
template <u32 N>
inline uint first_sum(uint lane) {
  return lane * N / 16;
}
template <u32 N>
inline bool has_sum(uint lane) {
  return N >= 16 || lane % (16 / (N < 16 ? N : 16)) == 0;
}

// Dots of outputs [first, first + kOutputs) of w (those before `end` count) with R rows: all 32 lanes call it with their half's
// `first`. v: R * kOutputs floats, sum r * kOutputs + o in the order of tree_sums.
template <u32 R>
inline void dot_rows(thread float* v, u32 format, thread const Weights& w, ulong first, ulong end, thread const DeviceRows<R>& x,
                     uint lane) {
  for (uint n = 0; n < R * kOutputs; ++n) v[n] = 0.0f;
#define COLI_WALK(F) walk_device_rows<F, R>(v, w, first, end, x, lane)
  COLI_FOR_FORMAT(format, COLI_WALK)
#undef COLI_WALK
  tree_sums<R * kOutputs>(v, lane);
}

// The same with kStagedRows rows through threadgroup memory: all threads of a threadgroup call it. quads: kStagedQuads.
inline void dot_staged_rows(thread float* v, u32 format, thread const Weights& w, ulong first, ulong end,
                            thread const DeviceRows<kStagedRows>& x, uint index, threadgroup float4* quads) {
  for (uint n = 0; n < kStagedRows * kOutputs; ++n) v[n] = 0.0f;
#define COLI_WALK(F) walk_staged_rows<F>(v, w, first, end, x, index, quads)
  COLI_FOR_FORMAT(format, COLI_WALK)
#undef COLI_WALK
  tree_sums<kStagedRows * kOutputs>(v, index % 16);
}

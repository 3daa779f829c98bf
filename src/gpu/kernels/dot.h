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
  float4 quad(uint r, uint b, uint j, uint lane, bool by_fours) const {
    device const float* x = row[r] + 32 * b + 8 * j;
    if (by_fours) {
      const float4 first = *(device const float4*)x, second = *(device const float4*)(x + 4);
      return lane % 2 == 0 ? float4(first.xz, second.xz) : float4(first.yw, second.yw);
    }
    x += lane % 2;
    return float4(x[0], x[2], x[4], x[6]);
  }
  float one(uint r, uint k, uint, uint) const { return row[r][k]; }
};

// 256 columns of kStagedRows rows in threadgroup memory, a lane's values in fours and its neighbours' beside them. The gaps after
// each set of 16 and after each row keep the banks apart while values are written.
constant constexpr u32 kStagedSet = 18, kStagedRow = 4 * kStagedSet + 1, kStagedQuads = kStagedRows * kStagedRow;
struct StagedRows {
  threadgroup const float4* quads;
  float4 quad(uint r, uint, uint j, uint lane, bool) const { return quads[r * kStagedRow + j * kStagedSet + lane]; }
  float one(uint r, uint, uint i, uint lane) const {
    return ((threadgroup const float*)quads)[4 * (r * kStagedRow + i / 4 * kStagedSet + lane) + i % 4];
  }
};

// Columns [first, first + 256), zeros past cols. Every thread of the threadgroup calls it, between two barriers: 16 threads
// bring in a row. x: row index / 16.
inline void stage(device const float* x, bool aligned, uint first, uint cols, uint index, threadgroup float4* quads) {
  threadgroup float* values = (threadgroup float*)(quads + index / 16 * kStagedRow);
#pragma unroll
  for (uint n = 0; n < 4; ++n) {
    const uint k = 4 * (index % 16) + 64 * n, column = first + k;
    float4 v;
    if (aligned && column + 4 <= cols)
      v = *(device const float4*)(x + column);
    else
      v = float4(column < cols ? x[column] : 0.0f, column + 1 < cols ? x[column + 1] : 0.0f,
                 column + 2 < cols ? x[column + 2] : 0.0f, column + 3 < cols ? x[column + 3] : 0.0f);
    const uint i = k % 32 / 2;  // of the first two: one for each lane of the block; then the same for i + 1
    threadgroup float* even = values + 4 * (i / 4 * kStagedSet + k / 32 * 2) + i % 4;
    even[0] = v.x;
    even[1] = v.z;
    even[4] = v.y;
    even[5] = v.w;
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

// sums += scale * p, the scale being 1 where the format has none or `scaled` is false.
template <u32 F, u32 R>
inline void add_scaled(thread float* sums, thread const float* p, thread const OutputRows& rows, uint scale, bool scaled) {
#pragma unroll
  for (uint o = 0; o < kOutputs; ++o) {
    const float s = has_scales(F) && scaled ? rows.scales[o][scale] : 1.0f;
#pragma unroll
    for (uint r = 0; r < R; ++r) sums[r * kOutputs + o] = metal::fma(s, p[r * kOutputs + o], sums[r * kOutputs + o]);
  }
}

// sums[r * kOutputs + o] += the lane's share of block b, which lies wholly inside the row. Whether vectors may be loaded is known
// at compile time, so that no branch stands between the loads.
template <u32 F, u32 R, bool Aligned, typename X>
inline void add_block(thread float* sums, thread const OutputRows& rows, thread const X& x, uint b, uint lane, uint scale) {
  Block<F> block[kOutputs];
  float p[R * kOutputs];
#pragma unroll
  for (uint o = 0; o < kOutputs; ++o) block[o].open(rows.data[o], b, lane % 2, Aligned);
#pragma unroll
  for (uint n = 0; n < R * kOutputs; ++n) p[n] = 0.0f;
#pragma unroll
  for (uint j = 0; j < 4; ++j) {
    float4 w[kOutputs];
#pragma unroll
    for (uint o = 0; o < kOutputs; ++o) w[o] = block[o].quad(j);
#pragma unroll
    for (uint r = 0; r < R; ++r) {
      const float4 v = x.quad(r, b, j, lane, Aligned);
#pragma unroll
      for (uint o = 0; o < kOutputs; ++o) {
        float sum = p[r * kOutputs + o];
        sum = metal::fma(w[o].x, v.x, sum);
        sum = metal::fma(w[o].y, v.y, sum);
        sum = metal::fma(w[o].z, v.z, sum);
        p[r * kOutputs + o] = metal::fma(w[o].w, v.w, sum);
      }
    }
  }
  add_scaled<F, R>(sums, p, rows, scale, true);
}

// The same one column at a time: for a block that ends or begins past the row, and for scales (one per `irregular` columns,
// when not 0) that change inside a block and are therefore applied to each weight.
template <u32 F, u32 R, typename X>
inline void add_columns(thread float* sums, thread const OutputRows& rows, thread const X& x, uint b, uint lane, uint scale,
                        uint irregular, uint cols) {
  if (32 * b >= cols) return;
  float p[R * kOutputs];
#pragma unroll
  for (uint n = 0; n < R * kOutputs; ++n) p[n] = 0.0f;
#pragma clang loop unroll(disable)
  for (uint i = 0; i < 16; ++i) {
    const uint k = 32 * b + 2 * i + lane % 2;
    const bool inside = k < cols;
    float w[kOutputs];
#pragma unroll
    for (uint o = 0; o < kOutputs; ++o) {
      w[o] = inside ? stored_value<F>(rows.data[o], k) : 0.0f;
      if (F == kStoredInt4 && irregular != 0 && inside) w[o] = w[o] * rows.scales[o][k / irregular];
    }
#pragma unroll
    for (uint r = 0; r < R; ++r) {
      const float v = inside ? x.one(r, k, i, lane) : 0.0f;
#pragma unroll
      for (uint o = 0; o < kOutputs; ++o) p[r * kOutputs + o] = metal::fma(w[o], v, p[r * kOutputs + o]);
    }
  }
  add_scaled<F, R>(sums, p, rows, scale, irregular == 0);
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
#pragma unroll
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
    if (32 * b + 32 <= cols && irregular == 0) {
      if (aligned)
        add_block<F, R, true>(sums, rows, x, b, lane, scale.entry);
      else
        add_block<F, R, false>(sums, rows, x, b, lane, scale.entry);
    } else {
      add_columns<F, R>(sums, rows, x, b, lane, scale.entry, irregular, cols);
    }
    scale.next();
  }
};

template <u32 F, u32 R>
inline void walk_device_rows(thread float* sums, thread const Weights& w, ulong first, ulong end, thread const DeviceRows<R>& x,
                             uint lane) {
  Walk<F> walk;
  walk.start(w, first, end, lane);
  walk.aligned = walk.aligned && x.aligned;
  const uint superblocks = (w.cols + 255) / 256;
  for (uint s = 0; s < superblocks; ++s) walk.template superblock<R>(sums, x, s, lane);
}

template <u32 F>
inline void walk_staged_rows(thread float* sums, thread const Weights& w, ulong first, ulong end, device const float* x,
                             bool x_aligned, uint index, threadgroup float4* quads) {
  const uint lane = index % 16;
  Walk<F> walk;
  walk.start(w, first, end, lane);
  StagedRows staged;
  staged.quads = quads;
  const uint superblocks = (w.cols + 255) / 256;
  for (uint s = 0; s < superblocks; ++s) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    stage(x, x_aligned, 256 * s, w.cols, index, quads);
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
    const float first = v[j], second = v[j + N / 2];
    v[j] = (upper ? second : first) + metal::simd_shuffle_xor(upper ? first : second, ushort(Distance));
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
#pragma unroll
  for (uint n = 0; n < R * kOutputs; ++n) v[n] = 0.0f;
#define COLI_WALK(F) walk_device_rows<F, R>(v, w, first, end, x, lane)
  COLI_FOR_FORMAT(format, COLI_WALK)
#undef COLI_WALK
  tree_sums<R * kOutputs>(v, lane);
}

// The same with kStagedRows rows through threadgroup memory: all threads of a threadgroup call it. x: the row that this thread
// helps to bring in, row index / 16. quads: kStagedQuads.
inline void dot_staged_rows(thread float* v, u32 format, thread const Weights& w, ulong first, ulong end, device const float* x,
                            bool x_aligned, uint index, threadgroup float4* quads) {
#pragma unroll
  for (uint n = 0; n < kStagedRows * kOutputs; ++n) v[n] = 0.0f;
#define COLI_WALK(F) walk_staged_rows<F>(v, w, first, end, x, x_aligned, index, quads)
  COLI_FOR_FORMAT(format, COLI_WALK)
#undef COLI_WALK
  tree_sums<kStagedRows * kOutputs>(v, index % 16);
}

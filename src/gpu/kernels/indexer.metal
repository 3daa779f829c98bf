#include "gpu/kernels/elementary.h"
#include "gpu/kernels/indexer.h"
#include "gpu/kernels/rotary.h"
#pragma METAL fp contract(off)
using namespace metal;

// Blocks of 32 dimensions that stand side by side in rule C2's lanes: 1, 2, 4 or 8. A row of queries is padded with zeros to a
// multiple of 32 * kBlocks.
constant uint kBlocks [[function_constant(0)]];

// ---- keys -------------------------------------------------------------------------------------------------------------------

inline float normed(constant IndexKeyArgs& a, device const float* x, u32 k, float mean, float r) {
  return fma((x[k] - mean) * r, a.weight[k], a.bias[k]);
}

// One simdgroup a row: rule C5's LayerNorm, then rule C9 for the first dimensions, into the row's cache.
kernel void index_keys(constant IndexKeyArgs& a [[buffer(0)]],
                       uint group [[threadgroup_position_in_grid]],
                       uint lane [[thread_position_in_threadgroup]]) {
  threadgroup float memory[kGroupSumFloats];
  const u32 row = group + a.first_group;
  device const float* x = a.keys + u64(row) * a.dims;
  const bool aligned = ((u64)x & 15) == 0;
  const float mean = precise::divide(group_sum<false>(x, a.dims, aligned, 0.0f, lane, 32, memory), float(a.dims));
  const float r = inverse_rms(group_sum<true>(x, a.dims, aligned, mean, lane, 32, memory), a.dims, a.eps);

  const u32 half_dims = a.rope / 2;
  device const float* cosine = a.step.cosine + u64(row) * half_dims;
  device const float* sine = a.step.sine + u64(row) * half_dims;
  device float* y = a.step.rows[row].keys + u64(a.step.rows[row].position) * a.dims;
  for (u32 j = lane; j < half_dims; j += 32) {
    const float2 turned = rotated_pair(normed(a, x, 2 * j, mean, r), normed(a, x, 2 * j + 1, mean, r), cosine[j], sine[j]);
    y[j] = turned.x;
    y[half_dims + j] = turned.y;
  }
  for (u32 k = a.rope + lane; k < a.dims; k += 32) y[k] = normed(a, x, k, mean, r);

  bool sound = true;
  for (u32 k = lane; k < a.dims; k += 32) sound = sound && is_finite(x[k]);
  if (!sound) mark_damage(a.step.damage, kDamageIndexer);
}

// ---- queries ----------------------------------------------------------------------------------------------------------------

// One simdgroup a row and head. Rows that see at most top_k positions are looked at and left alone.
kernel void index_queries(constant IndexArgs& a [[buffer(0)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint lane [[thread_position_in_threadgroup]]) {
  const u32 index = group + a.first_group;  // row in the wave, then head
  const u32 row = a.first_row + index / a.heads, head = index % a.heads;
  device const float* x = a.queries + (u64(row) * a.heads + head) * a.dims;
  bool sound = is_finite(a.head_weights[u64(row) * a.heads + head]);
  for (u32 k = lane; k < a.dims; k += 32) sound = sound && is_finite(x[k]);
  if (!sound) mark_damage(a.step.damage, kDamageIndexer);
  if (a.step.rows[row].position < a.top_k) return;

  const u32 half_dims = a.rope / 2;
  device const float* cosine = a.step.cosine + u64(row) * half_dims;
  device const float* sine = a.step.sine + u64(row) * half_dims;
  device float* y = a.rotated + u64(index) * a.padded;
  for (u32 j = lane; j < half_dims; j += 32) {
    const float2 turned = rotated_pair(x[2 * j], x[2 * j + 1], cosine[j], sine[j]);
    y[j] = turned.x;
    y[half_dims + j] = turned.y;
  }
  for (u32 k = a.rope + lane; k < a.padded; k += 32) y[k] = k < a.dims ? x[k] : 0.0f;
}

// ---- scores -----------------------------------------------------------------------------------------------------------------

// 32 dimensions of a key from `first` on, zeros past the end.
inline void load_block(device const float* key, u32 first, u32 dims, bool vectors, thread float4* block) {
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    const u32 k = first + 4 * i;
    if (vectors && k < dims)  // then dims is a multiple of 4
      block[i] = *(device const float4*)(key + k);
    else
      block[i] = float4(k < dims ? key[k] : 0.0f, k + 1 < dims ? key[k + 1] : 0.0f, k + 2 < dims ? key[k + 2] : 0.0f,
                        k + 3 < dims ? key[k + 3] : 0.0f);
  }
}

// C2's tree over the accumulators of one dot; those from count on are zero.
inline float tree_of(threadgroup const float* lanes, u32 step, u32 count) {
  float v[16];
  for (u32 i = 0; i < 16; ++i) v[i] = i < count ? lanes[i * step] : 0.0f;
  for (u32 n = 8; n > 0; n /= 2)
    for (u32 i = 0; i < n; ++i) v[i] = v[i] + v[i + n];
  return v[0];
}

// A tile of positions of one row, scored by all heads, so that a key is loaded once and no dot leaves the threadgroup. Simdgroup b
// of kBlocks takes block b of every 32 * kBlocks dimensions, its thread t the positions t and t + 32 of the tile: a simdgroup
// reads one query block, the same for all its threads. The lanes of a few heads at a time meet in threadgroup memory.
kernel void index_scores(constant IndexArgs& a [[buffer(0)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint index [[thread_index_in_threadgroup]]) {
  threadgroup float parts[kIndexPartFloats];  // [head][lane][position]
  threadgroup float totals[kIndexTile];       // each belongs to one thread
  const u32 row = a.first_row + group.y;
  const u32 visible = a.step.rows[row].position + 1, first = (group.x + a.first_group) * kIndexTile;
  if (visible <= a.top_k || first >= visible) return;

  const u32 block = index / 32, at = index % 32, lanes = 2 * kBlocks;
  device const float* keys = a.step.rows[row].keys;
  device const float* key0 = keys + u64(min(first + at, visible - 1)) * a.dims;
  device const float* key1 = keys + u64(min(first + at + 32, visible - 1)) * a.dims;
  const bool vectors = a.dims % 4 == 0 && ((u64)keys & 15) == 0;
  device const float* queries = a.rotated + u64(group.y) * a.heads * a.padded;
  device const float* weights = a.head_weights + u64(row) * a.heads;
  float4 block0[8], block1[8];
  if (a.padded <= 256) {  // every thread has one block of each key, for all heads
    load_block(key0, 32 * block, a.dims, vectors, block0);
    load_block(key1, 32 * block, a.dims, vectors, block1);
  }
  for (u32 head = 0; head < a.heads; head += 16 / kBlocks) {
    const u32 count = min(16 / kBlocks, a.heads - head);
    for (u32 base = 32 * block; base < a.padded; base += 256) {
      if (a.padded > 256) {
        load_block(key0, base, a.dims, vectors, block0);
        load_block(key1, base, a.dims, vectors, block1);
      }
      for (u32 h = 0; h < count; ++h) {
        device const float4* query = (device const float4*)(queries + u64(head + h) * a.padded + base);
        float2 p0 = float2(0.0f), p1 = float2(0.0f);  // even and odd dimensions
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
          const float4 q = query[i];
          p0 = fma(block0[i].xy, q.xy, p0);
          p1 = fma(block1[i].xy, q.xy, p1);
          p0 = fma(block0[i].zw, q.zw, p0);
          p1 = fma(block1[i].zw, q.zw, p1);
        }
        threadgroup float* even = parts + (h * lanes + 2 * block) * kIndexTile + at;
        threadgroup float* odd = even + kIndexTile;
        const bool begins = base < 256;
        even[0] = (begins ? 0.0f : even[0]) + p0.x;
        odd[0] = (begins ? 0.0f : odd[0]) + p0.y;
        even[32] = (begins ? 0.0f : even[32]) + p1.x;
        odd[32] = (begins ? 0.0f : odd[32]) + p1.y;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (u32 t = index; t < kIndexTile; t += 32 * kBlocks) {
      float total = head == 0 ? 0.0f : totals[t];
      for (u32 h = 0; h < count; ++h) {
        const float s = tree_of(parts + h * lanes * kIndexTile + t, kIndexTile, lanes) * a.dot_scale;
        total = fma(weights[head + h], 0.0f > s ? 0.0f : s, total);  // a NaN stays one
      }
      totals[t] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  device float* scores = a.scores + u64(group.y) * a.score_stride;
  for (u32 t = index; t < kIndexTile && first + t < visible; t += 32 * kBlocks) {
    const float score = totals[t] * a.head_scale;
    scores[first + t] = score;
    if (is_nan(score)) mark_damage(a.step.damage, kDamageIndexer);
  }
}

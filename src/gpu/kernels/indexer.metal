#include "gpu/kernels/elementary.h"
#include "gpu/kernels/indexer.h"
#include "gpu/kernels/order.h"
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
  device const float* cosine = a.cosine + u64(row) * half_dims;
  device const float* sine = a.sine + u64(row) * half_dims;
  device float* y = a.rows[row].keys + u64(a.rows[row].position) * a.dims;
  for (u32 j = lane; j < half_dims; j += 32) {
    const float2 turned = rotated_pair(normed(a, x, 2 * j, mean, r), normed(a, x, 2 * j + 1, mean, r), cosine[j], sine[j]);
    y[j] = turned.x;
    y[half_dims + j] = turned.y;
  }
  for (u32 k = a.rope + lane; k < a.dims; k += 32) y[k] = normed(a, x, k, mean, r);

  bool sound = true;
  for (u32 k = lane; k < a.dims; k += 32) sound = sound && is_finite(x[k]);
  if (!sound) mark_damage(a.damage, kDamageIndexer);
}

// ---- queries ----------------------------------------------------------------------------------------------------------------

// One simdgroup a row and head. Rows that see at most top_k positions are looked at and left alone.
kernel void index_queries(constant IndexQueryArgs& a [[buffer(0)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint lane [[thread_position_in_threadgroup]]) {
  const u32 index = group + a.first_group;  // row in the wave, then head
  const u32 row = a.first_row + index / a.heads, head = index % a.heads;
  device const float* x = a.queries + (u64(row) * a.heads + head) * a.dims;
  bool sound = is_finite(a.head_weights[u64(row) * a.heads + head]);
  for (u32 k = lane; k < a.dims; k += 32) sound = sound && is_finite(x[k]);
  if (!sound) mark_damage(a.damage, kDamageIndexer);
  if (a.rows[row].position < a.top_k) return;

  const u32 half_dims = a.rope / 2;
  device const float* cosine = a.cosine + u64(row) * half_dims;
  device const float* sine = a.sine + u64(row) * half_dims;
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
kernel void index_scores(constant IndexScoreArgs& a [[buffer(0)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint index [[thread_index_in_threadgroup]]) {
  threadgroup float parts[kIndexPartFloats];  // [head][lane][position]
  threadgroup float totals[kIndexTile];       // each belongs to one thread
  const u32 row = a.first_row + group.y;
  const u32 visible = a.rows[row].position + 1, first = (group.x + a.first_group) * kIndexTile;
  if (visible <= a.top_k || first >= visible) return;

  const u32 block = index / 32, at = index % 32, lanes = 2 * kBlocks;
  device const float* keys = a.rows[row].keys;
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
    if (is_nan(score)) mark_damage(a.damage, kDamageIndexer);
  }
}

// ---- selection --------------------------------------------------------------------------------------------------------------

// One threadgroup a row finds the key of the top_k-th best score, 11 bits of it at a time (a histogram of the keys that share
// the bits found so far), then writes the positions above it, and the first of those that equal it, in rising order.
kernel void index_select(constant IndexSelectArgs& a [[buffer(0)]],
                         uint group [[threadgroup_position_in_grid]],
                         uint index [[thread_position_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup atomic_uint bins[kSelectBins];
  threadgroup u32 sums[2 * kSelectThreads / 32];
  threadgroup u32 found[2];  // the bits of this pass, and how many keys with them are among the top_k
  const u32 slot = group + a.first_group, row = a.first_row + slot;
  const u32 visible = a.rows[row].position + 1;
  if (visible <= a.top_k) {
    if (index == 0) a.counts[row] = 0;
    return;
  }
  device const float4* scores = (device const float4*)(a.scores + u64(slot) * a.score_stride);
  const u32 quads = (visible + 3) / 4;

  // A thread looks after four neighbouring bins; bins count down from the best.
  const u32 per_thread = kSelectBins / kSelectThreads;
  const u32 best_bin = kSelectBins - 1 - per_thread * index;
  for (u32 c = 0; c < per_thread; ++c) atomic_store_explicit(&bins[best_bin - c], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  u32 known = 0, mask = 0, wanted = a.top_k;
  for (u32 pass = 0; pass < 3; ++pass) {
    const u32 shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;
    const u32 digit = pass == 2 ? 1023 : 2047;
    for (u32 i = index; i < quads; i += kSelectThreads) {
      const float4 four = scores[i];
      for (u32 c = 0; c < 4; ++c) {
        const u32 key = order_key(four[c]);
        if (4 * i + c < visible && (key & mask) == known)
          atomic_fetch_add_explicit(&bins[key >> shift & digit], 1u, memory_order_relaxed);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    u32 own = 0;
    for (u32 c = 0; c < per_thread; ++c) own += atomic_load_explicit(&bins[best_bin - c], memory_order_relaxed);
    const u32 better_here = simd_prefix_exclusive_sum(own);
    if (lane == 31) sums[simdgroup] = better_here + own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    u32 better = better_here;
    for (u32 s = 0; s < simdgroup; ++s) better += sums[s];
    if (better < wanted && wanted <= better + own) {
      u32 c = 0;
      for (;; ++c) {
        const u32 count = atomic_load_explicit(&bins[best_bin - c], memory_order_relaxed);
        if (wanted <= better + count) break;
        better += count;
      }
      found[0] = best_bin - c;
      found[1] = wanted - better;
    }
    for (u32 c = 0; c < per_thread; ++c) atomic_store_explicit(&bins[best_bin - c], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    known |= found[0] << shift;
    mask |= digit << shift;
    wanted = found[1];
  }

  // Now `known` is the key, and `wanted` of those that equal it are in. Each simdgroup takes a range of positions, counts, learns
  // where its part begins, and writes it 128 positions at a time.
  const u32 groups = kSelectThreads / 32;
  const u32 range = (quads + kSelectThreads - 1) / kSelectThreads * 32;
  const u32 begin = simdgroup * range, end = begin + range;
  u32 above = 0, equal = 0;
  for (u32 i = begin + lane; i < end && i < quads; i += 32) {
    const float4 four = scores[i];
    for (u32 c = 0; c < 4; ++c) {
      const u32 key = order_key(four[c]);
      above += 4 * i + c < visible && key > known;
      equal += 4 * i + c < visible && key == known;
    }
  }
  above = simd_sum(above);
  equal = simd_sum(equal);
  if (lane == 0) {
    sums[simdgroup] = above;
    sums[groups + simdgroup] = equal;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  above = 0;
  equal = 0;
  for (u32 s = 0; s < simdgroup; ++s) {
    above += sums[s];
    equal += sums[groups + s];
  }
  device int* chosen = a.chosen + u64(row) * a.chosen_stride;
  for (u32 first = begin; first < end && first < quads; first += 32) {
    const u32 i = first + lane;
    const float4 four = i < quads ? scores[i] : float4(0.0f);
    u32 keys[4];
    u32 counts = 0;  // above, and equal times 2^16
    for (u32 c = 0; c < 4; ++c) {
      keys[c] = order_key(four[c]);
      if (4 * i + c >= visible) continue;
      counts += keys[c] > known ? 1u : keys[c] == known ? 0x10000u : 0u;
    }
    const u32 before = simd_prefix_exclusive_sum(counts);
    u32 above_before = above + (before & 0xffff), equal_before = equal + (before >> 16);
    for (u32 c = 0; c < 4 && 4 * i + c < visible; ++c) {
      if (keys[c] > known) {
        chosen[above_before + min(equal_before, wanted)] = int(4 * i + c);
        ++above_before;
      } else if (keys[c] == known) {
        if (equal_before < wanted) chosen[above_before + equal_before] = int(4 * i + c);
        ++equal_before;
      }
    }
    const u32 all = simd_shuffle(before + counts, 31);
    above += all & 0xffff;
    equal += all >> 16;
  }
  if (index == 0) a.counts[row] = a.top_k;
}

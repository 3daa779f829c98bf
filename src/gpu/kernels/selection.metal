#include "gpu/kernels/order.h"
#include "gpu/kernels/selection.h"
#pragma METAL fp contract(off)
using namespace metal;

constant uint kStage [[function_constant(0)]];

// How many candidates a row of `visible` positions has.
inline u32 candidate_count(constant SelectArgs& a, u32 visible) {
  const u32 full = (visible - 1) / a.segment;
  return full * a.top_k + min(a.top_k, visible - full * a.segment);
}

// One threadgroup a row (or segment) finds the key of the score that is the last to be chosen, 11 bits at a time (a histogram of
// the keys that share the bits found so far), then writes the positions above it, and the first of those that equal it, in
// rising order. Rows that see at most top_k positions have nothing to choose.
kernel void select_best(constant SelectArgs& a [[buffer(0)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint index [[thread_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup atomic_uint bins[kSelectBins];
  threadgroup u32 sums[2 * kSelectThreads / 32];
  threadgroup u32 found[2];  // the bits of this pass, and how many keys with them are chosen
  const u32 segment = group.x + a.first_group, slot = group.y, row = a.first_row + slot;
  const u32 visible = a.rows[row].position + 1;
  if (visible <= a.top_k) {
    if (index == 0 && kStage != kSelectSegments) a.counts[row] = 0;
    return;
  }
  const u32 begin = segment * a.segment;  // 0 unless there are segments
  if (begin >= visible) return;
  const u64 from = kStage == kSelectCandidates ? u64(slot) * a.candidate_stride : u64(slot) * a.score_stride + begin;
  device const float4* scores =
      (device const float4*)((kStage == kSelectCandidates ? (device const float*)a.candidate_scores : a.scores) + from);
  const u32 count = kStage == kSelectCandidates ? candidate_count(a, visible)
                    : kStage == kSelectSegments ? min(a.segment, visible - begin)
                                                : visible;
  const u32 quads = (count + 3) / 4;

  // A thread looks after four neighbouring bins; bins count down from the best.
  const u32 per_thread = kSelectBins / kSelectThreads;
  const u32 best_bin = kSelectBins - 1 - per_thread * index;
  for (u32 c = 0; c < per_thread; ++c) atomic_store_explicit(&bins[best_bin - c], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  u32 known = 0, mask = 0, wanted = min(a.top_k, count);
  for (u32 pass = 0; pass < 3; ++pass) {
    const u32 shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;  // one bit is looked at twice
    for (u32 i = index; i < quads; i += kSelectThreads) {
      const float4 four = scores[i];
      for (u32 c = 0; c < 4; ++c) {
        const u32 key = order_key(four[c]);
        if (4 * i + c < count && (key & mask) == known)
          atomic_fetch_add_explicit(&bins[key >> shift & (kSelectBins - 1)], 1u, memory_order_relaxed);
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
    if (better < wanted && wanted <= better + own) {  // true for one thread
      u32 bin = best_bin;
      for (;; --bin) {
        const u32 in_bin = atomic_load_explicit(&bins[bin], memory_order_relaxed);
        if (wanted <= better + in_bin) break;
        better += in_bin;
      }
      found[0] = bin;
      found[1] = wanted - better;
    }
    for (u32 c = 0; c < per_thread; ++c) atomic_store_explicit(&bins[best_bin - c], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    known |= found[0] << shift;
    mask |= (kSelectBins - 1) << shift;
    wanted = found[1];
  }

  // Now `known` is the key, and `wanted` of those that equal it are in. Each simdgroup takes a range of positions, counts, learns
  // where its part begins, and writes it 128 positions at a time.
  const u32 groups = kSelectThreads / 32;
  const u32 range = (quads + kSelectThreads - 1) / kSelectThreads * 32;
  const u32 first_quad = simdgroup * range, last_quad = min(first_quad + range, quads);
  u32 above = 0, equal = 0;
  for (u32 i = first_quad + lane; i < last_quad; i += 32) {
    const float4 four = scores[i];
    for (u32 c = 0; c < 4; ++c) {
      const u32 key = order_key(four[c]);
      above += 4 * i + c < count && key > known;
      equal += 4 * i + c < count && key == known;
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
  const u64 candidates = u64(slot) * a.candidate_stride;
  for (u32 first = first_quad; first < last_quad; first += 32) {
    const u32 i = first + lane;
    const float4 four = i < last_quad ? scores[i] : float4(0.0f);
    u32 counts = 0;  // above, and equal times 2^16
    for (u32 c = 0; c < 4; ++c) {
      const u32 key = order_key(four[c]);
      if (i < last_quad && 4 * i + c < count) counts += key > known ? 1u : key == known ? 0x10000u : 0u;
    }
    const u32 before = simd_prefix_exclusive_sum(counts);
    u32 above_before = above + (before & 0xffff), equal_before = equal + (before >> 16);
    for (u32 c = 0; c < 4 && i < last_quad && 4 * i + c < count; ++c) {
      const u32 key = order_key(four[c]);
      const bool is_equal = key == known;
      if (key > known || (is_equal && equal_before < wanted)) {
        const u32 place = above_before + min(equal_before, wanted), at = 4 * i + c;
        if (kStage == kSelectSegments) {
          a.candidate_scores[candidates + segment * a.top_k + place] = four[c];
          a.candidates[candidates + segment * a.top_k + place] = int(begin + at);
        } else {
          a.chosen[u64(row) * a.chosen_stride + place] = kStage == kSelectCandidates ? a.candidates[candidates + at] : int(at);
        }
      }
      above_before += key > known;
      equal_before += is_equal;
    }
    const u32 all = simd_shuffle(before + counts, 31);
    above += all & 0xffff;
    equal += all >> 16;
  }
  if (index == 0 && kStage != kSelectSegments) a.counts[row] = a.top_k;
}

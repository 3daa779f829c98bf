#include "gpu/kernels/attention.h"
#include "gpu/kernels/elementary.h"

#pragma METAL fp contract(off)
using namespace metal;

constant uint kTileHeads [[function_constant(0)]];  // heads that share the entries one thread loads: 1, 2, 4 or 8
constant uint kVectors [[function_constant(1)]];    // widths and addresses are multiples of 4 floats

constant constexpr u32 kMostHeads = 8;
constant constexpr u32 kTileEntries = 32;   // of one threadgroup of the scores, one a lane
constant constexpr u32 kGroup = 2048;       // rule C6
constant constexpr u32 kChunk = 64;         // rule C6
constant constexpr u32 kScoreThreads = 128;
constant constexpr u32 kGroupThreads = 128;  // one for every half block of a group

// Rule C9: pair j of x to places j and half + j of y. False when a result is not finite.
inline bool rotate_pair(device const float* x, float c, float s, u32 j, u32 half_rope, device float* y) {
  const float a = x[2 * j], b = x[2 * j + 1];
  const float first = fma(a, c, -(b * s)), second = fma(b, c, a * s);
  y[j] = first;
  y[half_rope + j] = second;
  return is_finite(first) && is_finite(second);
}

kernel void write_cache_entries(constant CacheEntryArgs& a [[buffer(0)]],
                                uint group [[threadgroup_position_in_grid]],
                                uint t [[thread_index_in_threadgroup]]) {
  constexpr u32 kThreads = 256;
  threadgroup float memory[kGroupSumFloats];
  const ulong r = group + a.first_group, cache = a.latent + a.rope;
  const u32 half_rope = a.rope / 2;
  device const float* kv = a.kv + r * cache;
  device float* entry = a.step.rows[r].entries + a.step.rows[r].position * cache;
  const float inverse = inverse_rms(group_sum<true>(kv, a.latent, a.aligned != 0, 0.0f, t, kThreads, memory), a.latent, a.eps);
  bool sound = true;
  for (u32 k = t; k < a.latent; k += kThreads) {
    const float value = kv[k];
    sound = sound && is_finite(value);
    entry[k] = (value * inverse) * a.weight[k];
  }
  for (u32 j = t; j < half_rope; j += kThreads) {
    device const float* pairs = kv + a.latent;
    sound = sound && is_finite(pairs[2 * j]) && is_finite(pairs[2 * j + 1]);
    rotate_pair(pairs, a.step.cosine[r * half_rope + j], a.step.sine[r * half_rope + j], j, half_rope, entry + a.latent);
  }
  if (!sound) mark_damage(a.step.damage, kDamageAttention);
}

kernel void rotate_queries(constant RotateArgs& a [[buffer(0)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint t [[thread_index_in_threadgroup]]) {
  constexpr u32 kThreads = 128;
  const ulong index = group + a.first_group, r = index / a.heads;
  const u32 half_rope = a.rope / 2;
  device const float* query = a.queries + index * (a.nope + a.rope) + a.nope;
  device float* out = a.absorbed + index * (a.latent + a.rope);
  bool sound = true;
  for (u32 k = t; k < a.latent; k += kThreads) sound = sound && is_finite(out[k]);
  for (u32 j = t; j < half_rope; j += kThreads)
    sound = rotate_pair(query, a.step.cosine[r * half_rope + j], a.step.sine[r * half_rope + j], j, half_rope, out + a.latent) && sound;
  if (!sound) mark_damage(a.step.damage, kDamageAttention);
}

// What row r attends to: a list, or all of its sequence up to its own position.
inline u32 listed(constant AttendArgs& a, u32 r) { return a.counts ? a.counts[r] : 0u; }
inline u32 visible(constant AttendArgs& a, u32 r) {
  const u32 count = listed(a, r);
  return count > 0 ? count : a.rows[r].position + 1;
}
inline device const float* entry_at(device const float* entries, device const i32* list, u32 i, u32 cache) {
  return entries + ulong(list ? u32(list[i]) : i) * cache;
}
inline device const i32* list_of(constant AttendArgs& a, u32 r) {
  return listed(a, r) > 0 ? a.chosen + ulong(r) * a.top_k : (device const i32*)nullptr;
}

// Elements from k of n; zeros past n.
inline float4 load4(device const float* p, u32 k, u32 n) {
  if (kVectors) return k < n ? *(device const float4*)(p + k) : float4(0.0f);
  return float4(k < n ? p[k] : 0.0f, k + 1 < n ? p[k + 1] : 0.0f, k + 2 < n ? p[k + 2] : 0.0f, k + 3 < n ? p[k + 3] : 0.0f);
}
inline float2 load2(device const float* p, u32 k, u32 n) {
  if (kVectors) return *(device const float2*)(p + k);
  return float2(p[k], k + 1 < n ? p[k + 1] : 0.0f);
}

// What a thread holds for each head of its tile stays in registers only where every index is known.
#define EACH_HEAD(h) _Pragma("unroll") for (u32 h = 0; h < kHeads; ++h)

// The accumulators of rule C2 are a tree over g (the block's number mod 8) for even and for odd elements:
// ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)), then even + odd. A simdgroup sums blocks g and g + 4 of 32 entries, one a lane, for all
// heads of the tile, and leaves its level of the tree in its part of the threadgroup's memory, as [even, odd][heads][32 entries].
// Before that the part holds kColumns columns of the entries and of the queries: they are loaded side by side, and each is used
// by all lanes or for all heads.
constant constexpr u32 kColumns = 16;
constant constexpr u32 kEntryStride = kColumns + 4;  // lanes that read their entries' columns stay apart
constant constexpr u32 kPartFloats = kTileEntries * kEntryStride + kMostHeads * kColumns;

template <u32 kHeads>
inline void score_tile(device const float* entries, device const i32* list, u32 first, u32 last, device const float* query,
                       u32 cache, u32 heads, u32 g, u32 lane, threadgroup float* part) {
  constexpr u32 kLanes = kColumns / 4;  // that load one entry together; each loads of as many entries
  const u32 column = lane % kLanes * 4, row = lane / kLanes;
  threadgroup float* queries = part + kTileEntries * kEntryStride;
  device const float* loaded[kLanes];
  for (u32 i = 0; i < kLanes; ++i) loaded[i] = entry_at(entries, list, min(first + row + i * (32 / kLanes), last), cache);
  float2 level[kHeads];
  for (u32 step = 0; step < 2; ++step) {
    float2 acc[kHeads];
    EACH_HEAD(h) acc[h] = float2(0.0f);
    for (u32 block = 32 * (g + 4 * step); block < cache; block += 256) {
      float2 p[kHeads];
      EACH_HEAD(h) p[h] = float2(0.0f);
      for (u32 k = block; k < block + 32; k += kColumns) {
        simdgroup_barrier(mem_flags::mem_threadgroup);  // what is there has been used
        for (u32 i = 0; i < kLanes; ++i)
          *(threadgroup float4*)(part + (row + i * (32 / kLanes)) * kEntryStride + column) = load4(loaded[i], k + column, cache);
        for (u32 h = row; h < kHeads; h += 32 / kLanes)
          *(threadgroup float4*)(queries + h * kColumns + column) = load4(query + min(h, heads - 1) * cache, k + column, cache);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (u32 j = 0; j < kColumns; j += 4) {
          const float4 e = *(threadgroup const float4*)(part + lane * kEntryStride + j);
          EACH_HEAD(h) {
            const float4 q = *(threadgroup const float4*)(queries + h * kColumns + j);
            p[h] = fma(float2(e.x, e.y), float2(q.x, q.y), p[h]);
            p[h] = fma(float2(e.z, e.w), float2(q.z, q.w), p[h]);
          }
        }
      }
      EACH_HEAD(h) acc[h] = fma(float2(1.0f), p[h], acc[h]);
    }
    EACH_HEAD(h) level[h] = step == 0 ? acc[h] : level[h] + acc[h];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  EACH_HEAD(h) {
    part[h * kTileEntries + lane] = level[h].x;
    part[(kHeads + h) * kTileEntries + lane] = level[h].y;
  }
}

// x: tiles of entries, of each all tiles of heads; y: rows.
kernel void attention_scores(constant AttendArgs& a [[buffer(0)]],
                             uint3 group [[threadgroup_position_in_grid]],
                             uint t [[thread_index_in_threadgroup]]) {
  threadgroup float4 memory[kScoreThreads / 32 * kPartFloats / 4];
  threadgroup float* parts = (threadgroup float*)memory;
  const u32 x = group.x + a.first_group, r = group.y, tiles = (a.heads + kTileHeads - 1) / kTileHeads;
  const u32 first = x / tiles * kTileEntries, head = x % tiles * kTileHeads, n = visible(a, r);
  if (first >= n) return;
  const u32 heads = min(kTileHeads, a.heads - head), g = t / 32, lane = t % 32;
  threadgroup float* part = parts + g * kPartFloats;
  device const float* entries = a.rows[r].entries;
  device const i32* list = list_of(a, r);
  device const float* query = a.absorbed + (ulong(r) * a.heads + head) * a.cache;
  switch (kTileHeads) {
    case 1: score_tile<1>(entries, list, first, n - 1, query, a.cache, heads, g, lane, part); break;
    case 2: score_tile<2>(entries, list, first, n - 1, query, a.cache, heads, g, lane, part); break;
    case 4: score_tile<4>(entries, list, first, n - 1, query, a.cache, heads, g, lane, part); break;
    default: score_tile<8>(entries, list, first, n - 1, query, a.cache, heads, g, lane, part); break;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const u32 odd_at = kTileHeads * kTileEntries;
  for (u32 i = t; i < heads * kTileEntries; i += kScoreThreads) {
    if (first + i % kTileEntries >= n) continue;
    threadgroup const float* s = parts + i;
    const float even = (s[0] + s[2 * kPartFloats]) + (s[kPartFloats] + s[3 * kPartFloats]);
    s += odd_at;
    const float odd = (s[0] + s[2 * kPartFloats]) + (s[kPartFloats] + s[3 * kPartFloats]);
    a.scores[(ulong(r) * a.heads + head + i / kTileEntries) * a.stride + first + i % kTileEntries] = (even + odd) * a.scale;
  }
}

// The largest of what the threads hold, the same in all; -0 becomes +0, so the order of comparing cannot show.
inline float group_max(float m, u32 t, threadgroup float* memory) {
  m = simd_max(m);
  if (t % 32 == 0) memory[t / 32] = m;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (u32 i = 0; i < kGroupThreads / 32; ++i) m = memory[i] > m ? memory[i] : m;
  return m + 0.0f;
}

// x: groups of 2,048 entries of each head; y: rows. NaN is skipped.
kernel void attention_maxima(constant AttendArgs& a [[buffer(0)]],
                             uint3 group [[threadgroup_position_in_grid]],
                             uint t [[thread_index_in_threadgroup]]) {
  threadgroup float memory[kGroupThreads / 32];
  const u32 x = group.x + a.first_group, r = group.y, head = x / a.groups, g = x % a.groups, n = visible(a, r);
  if (g * kGroup >= n) return;
  const ulong row = ulong(r) * a.heads + head;
  device const float* scores = a.scores + row * a.stride;
  const u32 last = min(n, (g + 1) * kGroup);
  float m = -INFINITY;
  for (u32 i = g * kGroup + t; i < last; i += kGroupThreads) m = scores[i] > m ? scores[i] : m;
  m = group_max(m, t, memory);
  if (t == 0) a.maxima[row * a.groups + g] = m;
}

// Exponentials in the scores' place, and their sum. x and y as above; with one group the maximum is found here.
kernel void attention_exponentials(constant AttendArgs& a [[buffer(0)]],
                                   uint3 group [[threadgroup_position_in_grid]],
                                   uint t [[thread_index_in_threadgroup]]) {
  constexpr u32 kBlockStride = 34;  // of 32 exponentials: threads that walk a half block each stay apart
  threadgroup float memory[kGroupThreads / 32];
  threadgroup float exponentials[kGroup / 32 * kBlockStride];
  threadgroup float halves[kGroupThreads];
  threadgroup float lanes[16];
  const u32 x = group.x + a.first_group, r = group.y, head = x / a.groups, g = x % a.groups, n = visible(a, r);
  if (g * kGroup >= n) return;
  const ulong row = ulong(r) * a.heads + head;
  device float* scores = a.scores + row * a.stride + g * kGroup;
  const u32 count = min(n - g * kGroup, kGroup);
  float m = -INFINITY;
  if (a.groups == 1) {
    for (u32 i = t; i < count; i += kGroupThreads) m = scores[i] > m ? scores[i] : m;
  } else {
    device const float* maxima = a.maxima + row * a.groups;
    for (u32 i = t; i < (n + kGroup - 1) / kGroup; i += kGroupThreads) m = maxima[i] > m ? maxima[i] : m;
  }
  m = group_max(m, t, memory);
  for (u32 i = t; i < (count + 31) / 32 * 32; i += kGroupThreads) {
    float e = 0.0f;
    if (i < count) scores[i] = e = exp_c4(scores[i] - m);
    exponentials[i / 32 * kBlockStride + i % 32] = e;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const u32 half_blocks = 2 * ((count + 31) / 32);
  if (t < half_blocks) {
    threadgroup const float* e = exponentials + t / 2 * kBlockStride + t % 2;
    float p = 0.0f;
    for (u32 i = 0; i < 32; i += 2) p = fma(1.0f, e[i], p);
    halves[t] = p;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < 16) {
    float acc = 0.0f;
    for (u32 q = t; q < half_blocks; q += 16) acc = fma(1.0f, halves[q], acc);
    lanes[t] = acc;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) a.denominators[row * a.groups + g] = tree16(lanes);
}

// Two columns from c of the sums over entries [first, last), first being a multiple of 64: chunks of 64, added in order. The
// chunk's exponentials, which all threads use, go through the threadgroup's memory as [heads][64], and where its entries lie too.
template <u32 kHeads>
inline void weighted_sums(constant AttendArgs& a, device const float* exponentials, device const float* entries,
                          device const i32* list, u32 heads, u32 c, u32 first, u32 last, u32 t, u32 threads,
                          threadgroup float* shared, threadgroup u32* positions, device float* out) {
  float2 total[kHeads];
  EACH_HEAD(h) total[h] = float2(0.0f);
  for (u32 chunk = first; chunk < last; chunk += kChunk) {
    const u32 count = min(last - chunk, kChunk);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // what is there has been used
    for (u32 i = t; i < kHeads * kChunk; i += threads) {
      const u32 h = min(i / kChunk, heads - 1);
      shared[i] = i % kChunk < count ? exponentials[ulong(h) * a.stride + chunk + i % kChunk] : 0.0f;
    }
    for (u32 i = t; i < count; i += threads) positions[i] = list ? u32(list[chunk + i]) : chunk + i;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (c >= a.latent) continue;
    float2 s[kHeads];
    EACH_HEAD(h) s[h] = float2(0.0f);
    u32 i = 0;
    for (; i + 4 <= count; i += 4) {
      float2 v[4];
      for (u32 j = 0; j < 4; ++j) v[j] = load2(entries + ulong(positions[i + j]) * a.cache, c, a.latent);
      EACH_HEAD(h) {
        const float4 p = *(threadgroup const float4*)(shared + h * kChunk + i);
        s[h] = fma(float2(p.x), v[0], s[h]);
        s[h] = fma(float2(p.y), v[1], s[h]);
        s[h] = fma(float2(p.z), v[2], s[h]);
        s[h] = fma(float2(p.w), v[3], s[h]);
      }
    }
    for (; i < count; ++i) {
      const float2 v = load2(entries + ulong(positions[i]) * a.cache, c, a.latent);
      EACH_HEAD(h) s[h] = fma(float2(shared[h * kChunk + i]), v, s[h]);
    }
    EACH_HEAD(h) total[h] = total[h] + s[h];
  }
  EACH_HEAD(h) {
    if (h >= heads) continue;
    device float* to = out + ulong(h) * a.latent + c;
    if (c < a.latent) to[0] = total[h].x;
    if (c + 1 < a.latent) to[1] = total[h].y;
  }
}

// x: parts, of each all tiles of heads; y: rows; z: tiles of columns, two a thread.
kernel void attention_sums(constant AttendArgs& a [[buffer(0)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint t [[thread_index_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]]) {
  threadgroup float4 memory[kMostHeads * kChunk / 4];
  threadgroup u32 positions[kChunk];
  threadgroup float* shared = (threadgroup float*)memory;
  const u32 x = group.x + a.first_group, r = group.y, tiles = (a.heads + kTileHeads - 1) / kTileHeads;
  const u32 part = x / tiles, head = x % tiles * kTileHeads, n = visible(a, r);
  const u32 entries = kGroup / a.parts_per_group, first = part * entries, c = 2 * (group.z * threads + t);
  if (first >= n) return;
  const u32 last = min(n, first + entries), heads = min(kTileHeads, a.heads - head);
  device const float* p = a.scores + (ulong(r) * a.heads + head) * a.stride;
  device float* out = a.parts + ((ulong(r) * a.groups * a.parts_per_group + part) * a.heads + head) * a.latent;
  device const float* cache = a.rows[r].entries;
  device const i32* list = list_of(a, r);
  switch (kTileHeads) {
    case 1: weighted_sums<1>(a, p, cache, list, heads, c, first, last, t, threads, shared, positions, out); break;
    case 2: weighted_sums<2>(a, p, cache, list, heads, c, first, last, t, threads, shared, positions, out); break;
    case 4: weighted_sums<4>(a, p, cache, list, heads, c, first, last, t, threads, shared, positions, out); break;
    default: weighted_sums<8>(a, p, cache, list, heads, c, first, last, t, threads, shared, positions, out); break;
  }
}

// The parts of a group in order, the groups in order, times 1 / denominator. x: heads; y: rows; z: tiles of columns.
kernel void attention_context(constant AttendArgs& a [[buffer(0)]],
                              uint3 group [[threadgroup_position_in_grid]],
                              uint t [[thread_index_in_threadgroup]],
                              uint threads [[threads_per_threadgroup]]) {
  const u32 head = group.x + a.first_group, r = group.y, n = visible(a, r), entries = kGroup / a.parts_per_group;
  const ulong row = ulong(r) * a.heads + head;
  float denominator = 0.0f;
  for (u32 g = 0; g * kGroup < n; ++g) denominator = denominator + a.denominators[row * a.groups + g];
  const float inverse = precise::divide(1.0f, denominator);
  const u32 c = group.z * threads + t;
  if (c >= a.latent) return;
  device const float* part = a.parts + (ulong(r) * a.groups * a.parts_per_group * a.heads + head) * a.latent + c;
  float sum = 0.0f;
  for (u32 first = 0; first < n; first += kGroup) {
    float total = 0.0f;
    const u32 last = min(n, first + kGroup);
    for (u32 i = first; i < last; i += entries, part += ulong(a.heads) * a.latent) total = total + *part;
    sum = sum + total;
  }
  a.context[row * a.latent + c] = sum * inverse;
}

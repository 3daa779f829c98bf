// For kernels alone: exp, sigmoid and silu of rule C4 (docs/numerics.md), damage bits, and the plain sums of rule C2.
#pragma once

#include "gpu/kernels/shared.h"

#pragma METAL fp contract(off)

inline bool is_nan(float x) { return (as_type<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
inline bool is_finite(float x) { return (as_type<u32>(x) & 0x7f800000u) != 0x7f800000u; }

// Above 64 as 64; below -64 +0; NaN stays NaN.
inline float exp_c4(float x) {
  if (is_nan(x)) return x;
  if (x < -64.0f) return 0.0f;
  x = x > 64.0f ? 64.0f : x;
  const float t = metal::fma(x, 1.44269504f, 12582912.0f);  // x / ln 2, rounded to an integer in the low mantissa bits
  const float n = t - 12582912.0f;
  float r = metal::fma(n, -0.693145752f, x);  // ln 2 in two pieces
  r = metal::fma(n, -1.42860677e-6f, r);
  float p = 1.9875691500e-4f;
  p = metal::fma(p, r, 1.3981999507e-3f);
  p = metal::fma(p, r, 8.3334519073e-3f);
  p = metal::fma(p, r, 4.1665795894e-2f);
  p = metal::fma(p, r, 1.6666665459e-1f);
  p = metal::fma(p, r, 0.5f);
  p = metal::fma(p, r * r, r);
  p = p + 1.0f;
  return as_type<float>(as_type<u32>(p) + (u32(i32(n)) << 23));
}

inline float sigmoid(float x) { return metal::precise::divide(1.0f, 1.0f + exp_c4(-x)); }
inline float silu(float x) { return x * sigmoid(x); }

// What both norms multiply by: 1 / sqrt(sum_of_squares / n + eps).
inline float inverse_rms(float sum_of_squares, u32 n, float eps) {
  return metal::precise::divide(1.0f, metal::precise::sqrt(metal::precise::divide(sum_of_squares, float(n)) + eps));
}

// Sets a bit of a damage word (step.h). Threads call it once, after the last number they look at: sound numbers cost nothing.
inline void mark_damage(device u32* damage, u32 bit) {
  metal::atomic_fetch_or_explicit((device metal::atomic_uint*)damage, bit, metal::memory_order_relaxed);
}

// The fixed tree over the 16 accumulators of rule C2.
inline float tree16(threadgroup const float* acc) {
  float a[8];
  for (u32 i = 0; i < 8; ++i) a[i] = acc[i] + acc[i + 8];
  for (u32 i = 0; i < 4; ++i) a[i] = a[i] + a[i + 4];
  return (a[0] + a[2]) + (a[1] + a[3]);
}

// Sums over one row by a whole threadgroup. A "half block" is what one accumulator takes from one block of 32: 16 elements,
// every second one. Half block q = 2 * block + (0 or 1) belongs to accumulator q % 16.
constant constexpr u32 kHalfBlocks = 2048;                  // held at a time: rows of up to 32,768 floats go in one pass
constant constexpr u32 kGroupSumFloats = kHalfBlocks + 16;  // threadgroup memory that the sums need

// aligned: x is at a multiple of 16 bytes. shift is taken off every element first; 0 leaves them as they are.
inline float half_block_squares(device const float* x, u32 n, bool aligned, u32 q, float shift) {
  const u32 first = 32 * (q / 2);
  float p = 0.0f;
  if (aligned && first + 32 <= n) {
    device const float4* v = (device const float4*)(x + first);
    for (u32 i = 0; i < 8; ++i) {
      const float4 four = v[i];
      const float a = (q % 2 ? four.y : four.x) - shift, b = (q % 2 ? four.w : four.z) - shift;
      p = metal::fma(a, a, p);
      p = metal::fma(b, b, p);
    }
  } else {
    for (u32 i = first + q % 2; i < first + 32; i += 2) {
      const float c = i < n ? x[i] - shift : 0.0f;
      p = metal::fma(c, c, p);
    }
  }
  return p;
}

inline float half_block_sum(device const float* x, u32 n, u32 q) {
  const u32 first = 32 * (q / 2);
  float p = 0.0f;
  for (u32 i = first + q % 2; i < first + 32; i += 2) p = metal::fma(1.0f, i < n ? x[i] : 0.0f, p);
  return p;
}

// dot(c, c) of c = x - shift (kSquares), or dot(1, x), by rule C2, the same value in every thread. n floats; all threads of the
// threadgroup call it, at least 16, t being theirs. memory: kGroupSumFloats; further sums may follow in it at once.
template <bool kSquares>
inline float group_sum(device const float* x, u32 n, bool aligned, float shift, u32 t, u32 threads, threadgroup float* memory) {
  threadgroup float* lanes = memory + kHalfBlocks;
  const u32 halves = 2 * ((n + 31) / 32);
  float acc = 0.0f;  // of accumulator t, in the first 16 threads
  for (u32 first = 0; first < halves; first += kHalfBlocks) {
    const u32 last = metal::min(first + kHalfBlocks, halves);
    if (first > 0) metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);  // the memory is read before it is filled again
    for (u32 q = first + t; q < last; q += threads)
      memory[q - first] = kSquares ? half_block_squares(x, n, aligned, q, shift) : half_block_sum(x, n, q);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (t < 16)
      for (u32 q = first + t; q < last; q += 16) acc = metal::fma(1.0f, memory[q - first], acc);
  }
  if (t < 16) lanes[t] = acc;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  return tree16(lanes);
}

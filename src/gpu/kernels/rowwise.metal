#include "gpu/kernels/rowwise.h"
#include "gpu/kernels/elementary.h"

#pragma METAL fp contract(off)
using namespace metal;

constant constexpr u32 kThreads = 256;
constant constexpr u32 kElementsPerThread = 4;  // a threadgroup apart, so that neighbouring threads touch neighbouring floats

// Rule C5. out may be x: every thread reads an element only before it writes the same one, once the sum is known.
kernel void rms_norm(constant RmsNormArgs& a [[buffer(0)]],
                     uint group [[threadgroup_position_in_grid]],
                     uint t [[thread_index_in_threadgroup]]) {
  threadgroup float memory[kGroupSumFloats];
  const ulong row = group + a.first_group;
  device const float* x = a.x + row * a.stride;
  device float* out = a.out + row * a.out_stride;
  const float r = inverse_rms(group_sum<true>(x, a.cols, a.aligned != 0, 0.0f, t, kThreads, memory), a.cols, a.eps);
  for (u32 k = t; k < a.cols; k += kThreads) out[k] = (x[k] * r) * a.weight[k];
}

kernel void swiglu(constant ElementArgs& a [[buffer(0)]],
                   uint group [[threadgroup_position_in_grid]],
                   uint t [[thread_index_in_threadgroup]]) {
  const ulong first = ulong(group + a.first_group) * (kThreads * kElementsPerThread) + t;
  for (u32 j = 0; j < kElementsPerThread; ++j) {
    const ulong i = first + j * kThreads;
    if (i < a.n) a.out[i] = silu(a.a[i]) * a.b[i];
  }
}

kernel void add(constant ElementArgs& a [[buffer(0)]],
                uint group [[threadgroup_position_in_grid]],
                uint t [[thread_index_in_threadgroup]]) {
  const ulong first = ulong(group + a.first_group) * (kThreads * kElementsPerThread) + t;
  bool sound = true;
  for (u32 j = 0; j < kElementsPerThread; ++j) {
    const ulong i = first + j * kThreads;
    if (i >= a.n) break;
    const float sum = a.a[i] + a.b[i];
    a.out[i] = sum;
    sound = sound && is_finite(sum);
  }
  if (!sound && a.damage) mark_damage(a.damage, a.bit);
}

// Kernels of tests/gpu/device_test.cpp.
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

constant uint kFactor [[function_constant(0)]];
constant uint kTerm [[function_constant(1)]];

struct StepArgs {
  device uint* out;
  device const uint* in;
  uint count, first_group;
};

// out = in * factor + term, so that a chain of steps shows whether every one ran, once and in its place.
kernel void step_on(constant StepArgs& a [[buffer(0)]],
                    uint group [[threadgroup_position_in_grid]],
                    uint index [[thread_index_in_threadgroup]],
                    uint size [[threads_per_threadgroup]]) {
  const uint i = (group + a.first_group) * size + index;
  if (i < a.count) a.out[i] = a.in[i] * kFactor + kTerm;
}

// Every threadgroup reverses its part, through memory that the host gives it.
kernel void reverse(constant StepArgs& a [[buffer(0)]],
                    threadgroup uint* part [[threadgroup(0)]],
                    uint group [[threadgroup_position_in_grid]],
                    uint index [[thread_index_in_threadgroup]],
                    uint size [[threads_per_threadgroup]]) {
  const uint first = (group + a.first_group) * size;
  part[index] = a.in[first + index];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a.out[first + index] = part[size - 1 - index];
}

// Where a thread is, in all the words for it.
kernel void positions(constant StepArgs& a [[buffer(0)]],
                      uint3 group [[threadgroup_position_in_grid]],
                      uint3 groups [[threadgroups_per_grid]],
                      uint index [[thread_index_in_threadgroup]],
                      uint size [[threads_per_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint g = ((group.z * groups.y + group.y) * groups.x + group.x + a.first_group);
  const uint i = g * size + index;
  a.out[i] = simdgroup * 32 + lane == index ? i + 1 : 0;
}

// Operations of a simdgroup, one result each: for thread 32 s + l the value is 1000 s + l.
kernel void simd_operations(constant StepArgs& a [[buffer(0)]],
                            uint index [[thread_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint v = 1000 * simdgroup + lane;
  device uint* out = a.out + 8 * index;
  out[0] = simd_sum(v);
  out[1] = simd_max(v);
  out[2] = simd_shuffle_xor(v, 5);
  out[3] = lane < 28 ? simd_shuffle_down(v, 4) : simd_shuffle_down(v, 4) * 0;
  out[4] = simd_prefix_exclusive_sum(v);
  out[5] = simd_broadcast(v, 9);
  out[6] = simd_any(lane == 3) ? 1 : 0;
  out[7] = simd_all(lane < 31) ? 1 : 0;
}

// Results that tell a subnormal number from zero, a fused product from two roundings, and division from an estimate.
kernel void arithmetic(constant StepArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  const float x = as_type<float>(a.in[0]), y = as_type<float>(a.in[1]), z = as_type<float>(a.in[2]);
  if (index == 0) a.out[0] = as_type<uint>(x * y);
  if (index == 1) a.out[1] = as_type<uint>(x * y + z);
  if (index == 2) a.out[2] = as_type<uint>(fma(x, y, z));
  if (index == 3) a.out[3] = as_type<uint>(precise::divide(x, y));
  if (index == 4) a.out[4] = as_type<uint>(precise::sqrt(x));
}

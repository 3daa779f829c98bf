// Kernels with mistakes that only show when they run: softmetal_test.cpp says how each is caught.
#include <metal_stdlib>
#pragma METAL fp contract(off)
using namespace metal;

constant uint kNeeded [[function_constant(0)]];

struct MistakeArgs {
  device uint* out;
  device const uint* in;
  uint count, first_group;
};

// Without the barrier a thread reads what its partner may not have written yet.
kernel void missing_barrier(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup uint values[64];
  values[index] = a.in[index];
  a.out[index] = values[63 - index];
}

kernel void with_barrier(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup uint values[64];
  values[index] = a.in[index];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a.out[index] = values[63 - index];
}

kernel void divergent_barrier(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  if (index < 40)
    threadgroup_barrier(mem_flags::mem_threadgroup);
  else
    threadgroup_barrier(mem_flags::mem_device);
  a.out[index] = 1;
}

kernel void some_threads_leave(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  if (index >= a.count) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a.out[index] = 1;
}

kernel void divergent_simd(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  uint sum = 0;
  if (index % 32 < 16) sum = simd_sum(index);
  threadgroup_barrier(mem_flags::mem_none);
  a.out[index] = sum;
}

// What nobody wrote is not zero.
kernel void unwritten_memory(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup uint values[64];
  if (index != 7) values[index] = a.in[index];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a.out[index] = values[index];
}

kernel void past_a_region(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  a.out[a.count + index] = 1;
}

kernel void past_threadgroup_memory(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup uint values[64];
  values[index + a.count] = index;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a.out[index] = values[index];
}

kernel void past_dynamic_memory(constant MistakeArgs& a [[buffer(0)]],
                                threadgroup uint* values [[threadgroup(0)]],
                                uint index [[thread_index_in_threadgroup]]) {
  values[index + a.count] = index;
}

kernel void too_much_threadgroup_memory(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  threadgroup uint values[8193];
  values[index] = index;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  a.out[index] = values[index];
}

// The lint does not let this pass: the arguments are constant.
kernel void writes_its_arguments(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  ((device MistakeArgs*)&a)->count = index;
}

kernel void reads_a_host_pointer(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  a.out[index] = a.in[index];
}

inline uint needed() { return kNeeded; }
kernel void needs_a_constant(constant MistakeArgs& a [[buffer(0)]], uint index [[thread_index_in_threadgroup]]) {
  a.out[index] = needed();
}

kernel void ignores_first_group(constant MistakeArgs& a [[buffer(0)]], uint group [[threadgroup_position_in_grid]]) {
  a.out[group] = group + 1;
}

#include "gpu/kernels/probe.h"
#pragma METAL fp contract(off)
using namespace metal;

// Neighbouring threads read neighbouring 16 bytes; whole numbers, so the order of adding does not matter.
kernel void probe_read(constant ProbeArgs& a [[buffer(0)]],
                       uint group [[threadgroup_position_in_grid]],
                       uint index [[thread_position_in_threadgroup]],
                       uint size [[threads_per_threadgroup]]) {
  const uint t = (group + a.first_group) * size + index;
  if (t >= a.threads) return;
  device const uint4* data = (device const uint4*)a.data;
  uint4 sum = uint4(0u);
  for (ulong i = t; i < a.words / 4; i += a.threads) sum += data[i];
  a.out[t] = sum.x + sum.y + sum.z + sum.w;
}

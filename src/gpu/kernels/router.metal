#include "gpu/kernels/elementary.h"
#include "gpu/kernels/order.h"
#include "gpu/kernels/router.h"
#pragma METAL fp contract(off)
using namespace metal;

// Rule C10, one threadgroup a row. An expert's rank is the number of experts that are better, counted in tiles of the keys, so
// that any number of experts can be ranked. Keys and indices order all experts strictly: every rank is taken by one of them,
// whatever the logits are.
kernel void route_sigmoid(constant RouterArgs& a [[buffer(0)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint index [[thread_position_in_threadgroup]]) {
  threadgroup u32 keys[kRouterTile];
  const u32 row = group + a.first_group;
  device const float* logits = a.logits + u64(row) * a.experts;
  device int* chosen = a.chosen + u64(row) * a.per_token;
  device float* weights = a.weights + u64(row) * a.per_token;
  bool sound = true;
  for (u32 own = 0; own < a.experts; own += kRouterThreads) {
    const u32 e = own + index;
    const bool exists = e < a.experts;
    const float score = exists ? sigmoid(logits[e]) : 0.0f;
    const float choice = exists ? score + a.bias[e] : 0.0f;
    if (exists) sound = sound && is_finite(logits[e]) && !is_nan(choice);
    const u32 key = order_key(choice);
    u32 rank = 0;
    for (u32 first = 0; first < a.experts; first += kRouterTile) {
      const u32 count = min(u32(kRouterTile), a.experts - first);
      if (own == 0 || a.experts > kRouterTile) {  // a single tile stays where it is
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (u32 i = index; i < count; i += kRouterThreads)
          keys[i] = order_key(sigmoid(logits[first + i]) + a.bias[first + i]);
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      for (u32 i = 0; i < count; ++i) rank += keys[i] > key || (keys[i] == key && first + i < e);
    }
    if (exists && rank < a.per_token) {
      chosen[rank] = int(e);
      weights[rank] = score;
    }
  }
  if (!sound) mark_damage(a.damage, kDamageRouter);

  threadgroup_barrier(mem_flags::mem_device);  // the scores of the chosen, in rank order
  float sum = 0.0f;
  for (u32 r = 0; r < a.per_token; ++r) sum = sum + weights[r];
  sum = sum + 1e-20f;
  threadgroup_barrier(mem_flags::mem_device);
  for (u32 r = index; r < a.per_token; r += kRouterThreads)
    weights[r] = (a.renormalise ? precise::divide(weights[r], sum) : weights[r]) * a.factor;
}

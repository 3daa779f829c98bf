// The router's choice of experts: what its kernel is given.
#pragma once

#include "gpu/kernels/shared.h"
#include "gpu/kernels/step.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

enum : u32 { kRouterThreads = 256, kRouterTile = 1024 };

struct RouterArgs {
  COLI_IN(float) logits;    // [rows][experts]
  COLI_IN(float) bias;      // [experts]
  COLI_OUT(i32) chosen;     // [rows][per_token]
  COLI_OUT(float) weights;  // [rows][per_token]
  COLI_OUT(u32) damage;
  u32 experts, per_token;
  u32 renormalise;
  float factor;
  u32 first_group;
  u32 pad;
};
COLI_SHARED_STRUCT(RouterArgs, 64);

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

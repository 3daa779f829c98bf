// Rows of a step, and the damage bits that kernels set when a number is not finite.
#pragma once

#include "gpu/kernels/shared.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

// One row: its sequence's cache of this layer. 32 bytes.
struct RowArgs {
  COLI_OUT(float) entries;  // [positions][cache dim]: latent, then the rotated rope key
  COLI_OUT(float) keys;     // [positions][index head dim]: indexer keys; 0 without an indexer
  u32 position;
  u32 pad0, pad1, pad2;
};
COLI_SHARED_STRUCT(RowArgs, 32);

// What kernels of a step's rows share.
struct StepArgs {
  COLI_IN(RowArgs) rows;
  COLI_IN(float) cosine;  // [rows][rope / 2]: of each row's position
  COLI_IN(float) sine;
  COLI_OUT(u32) damage;
};
COLI_SHARED_STRUCT(StepArgs, 32);

// Bits of the damage word of a layer (u32, zero at its start, set by atomic or). The host then computes the layer itself,
// finds the same number and names the weight that it came from.
enum : u32 { kDamageAttention = 1, kDamageIndexer = 2, kDamageRouter = 4, kDamageFeedForward = 8, kDamageHead = 16 };

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

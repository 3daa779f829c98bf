// For kernels alone: rule C7 of docs/numerics.md in whole numbers. Kernels compare keys instead of floats.
#pragma once

#include "gpu/kernels/shared.h"

// Of two floats the larger has the larger key. Both zeros have one key, and subnormals, which count as zero (C1), share it
// whatever the GPU does with them. NaNs have keys too, so that every choice among keys is a valid one.
inline u32 order_key(float x) {
  u32 bits = as_type<u32>(x);
  if ((bits & 0x7f800000u) == 0) bits = 0;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

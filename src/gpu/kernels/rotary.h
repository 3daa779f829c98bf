// For kernels alone: rule C9 of docs/numerics.md.
#pragma once

#include "gpu/kernels/shared.h"

#pragma METAL fp contract(off)

// Where the pair (a, b) lies after the rotation. The inner products are rounded first.
inline float2 rotated_pair(float a, float b, float cosine, float sine) {
  return float2(metal::fma(a, cosine, -(b * sine)), metal::fma(b, cosine, a * sine));
}

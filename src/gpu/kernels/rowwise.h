// Arguments of rowwise.metal.
#pragma once

#include "gpu/kernels/shared.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

struct RmsNormArgs {  // one threadgroup of 256 threads a row
  COLI_IN(float) x;
  COLI_IN(float) weight;
  COLI_OUT(float) out;
  u64 stride, out_stride;
  u32 cols;
  float eps;
  u32 aligned;  // rows of x start at multiples of 16 bytes
  u32 first_group;
};
COLI_SHARED_STRUCT(RmsNormArgs, 56);

struct ElementArgs {  // one threadgroup of 256 threads takes 1,024 elements
  COLI_IN(float) a;
  COLI_IN(float) b;
  COLI_OUT(float) out;
  COLI_OUT(u32) damage;  // null: numbers are not looked at
  u64 n;
  u32 bit;
  u32 first_group;
};
COLI_SHARED_STRUCT(ElementArgs, 48);

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

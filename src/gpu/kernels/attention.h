// Arguments of attention.metal.
#pragma once

#include "gpu/kernels/step.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

struct CacheEntryArgs {  // one threadgroup of 256 threads a row
  StepArgs step;
  COLI_IN(float) kv;  // [rows][latent + rope]
  COLI_IN(float) weight;
  u32 latent, rope;
  float eps;
  u32 aligned;  // rows of kv start at multiples of 16 bytes
  u32 first_group, pad;
};
COLI_SHARED_STRUCT(CacheEntryArgs, 72);

struct RotateArgs {  // one threadgroup of 128 threads a row and head
  StepArgs step;
  COLI_IN(float) queries;    // [rows][heads][nope + rope]
  COLI_OUT(float) absorbed;  // [rows][heads][latent + rope]
  u32 heads, nope, latent, rope;
  u32 first_group, pad;
};
COLI_SHARED_STRUCT(RotateArgs, 72);

// All passes of attend() over one set of rows; the pointers are at the first of them. Entry i of a row is its position i, or
// the i-th of its list.
struct AttendArgs {
  COLI_IN(RowArgs) rows;
  COLI_IN(i32) chosen;  // [rows][top_k]
  COLI_IN(u32) counts;  // null: no row has a list
  COLI_IN(float) absorbed;
  COLI_OUT(float) scores;        // [rows][heads][stride]: scores, then their exponentials
  COLI_OUT(float) maxima;        // [rows][heads][groups]: of 2,048 entries each; unused with one group
  COLI_OUT(float) denominators;  // [rows][heads][groups]
  COLI_OUT(float) parts;         // [rows][groups * parts_per_group][heads][latent]: weighted sums
  COLI_OUT(float) context;       // [rows][heads][latent]
  u32 heads, latent, cache, top_k;
  u32 stride;           // a multiple of 64
  u32 groups;           // that the furthest row has
  u32 parts_per_group;  // 1, or 32: a part is one chunk of 64 entries
  float scale;
  u32 first_group, pad;
};
COLI_SHARED_STRUCT(AttendArgs, 112);

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

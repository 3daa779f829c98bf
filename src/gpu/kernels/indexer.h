// DSA's lightning indexer: what its kernels are given.
#pragma once

#include "gpu/kernels/shared.h"
#include "gpu/kernels/step.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

enum : u32 {
  kIndexTile = 64,          // positions that a threadgroup of index_scores takes
  kIndexPartFloats = 2048,  // of its threadgroup memory: lanes of 16 / blocks heads at all positions of the tile
};

struct IndexKeyArgs {
  StepArgs step;
  COLI_IN(float) keys;  // [rows][dims]
  COLI_IN(float) weight;
  COLI_IN(float) bias;
  u32 dims, rope;
  float eps;
  u32 first_group;
};
COLI_SHARED_STRUCT(IndexKeyArgs, 72);

// Queries and scores work on a wave of rows, the first of which is first_row; scratch is indexed by the row within the wave.
struct IndexArgs {
  StepArgs step;
  COLI_IN(float) queries;       // [rows][heads][dims]
  COLI_IN(float) head_weights;  // [rows][heads]
  COLI_OUT(float) rotated;      // [wave][heads][padded]: the queries, zeros past dims
  COLI_OUT(float) scores;       // [wave][score_stride]
  u32 heads, dims, padded, rope, top_k;
  u32 first_row;
  u32 score_stride;  // a multiple of 4
  float dot_scale, head_scale;
  u32 first_group;
};
COLI_SHARED_STRUCT(IndexArgs, 104);

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

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
  COLI_IN(RowArgs) rows;
  COLI_IN(float) keys;  // [rows][dims]
  COLI_IN(float) weight;
  COLI_IN(float) bias;
  COLI_IN(float) cosine;
  COLI_IN(float) sine;
  COLI_OUT(u32) damage;
  u32 dims, rope;
  float eps;
  u32 first_group;
};
COLI_SHARED_STRUCT(IndexKeyArgs, 72);

// The kernels below work on a wave of rows, the first of which is first_row; scratch is indexed by the row within the wave.
struct IndexQueryArgs {
  COLI_IN(RowArgs) rows;
  COLI_IN(float) queries;       // [rows][heads][dims]
  COLI_IN(float) head_weights;  // [rows][heads]
  COLI_IN(float) cosine;
  COLI_IN(float) sine;
  COLI_OUT(float) rotated;  // [wave][heads][padded]: zeros past dims
  COLI_OUT(u32) damage;
  u32 heads, dims, padded, rope, top_k;
  u32 first_row;
  u32 first_group;
  u32 pad;
};
COLI_SHARED_STRUCT(IndexQueryArgs, 88);

struct IndexScoreArgs {
  COLI_IN(RowArgs) rows;
  COLI_IN(float) rotated;
  COLI_IN(float) head_weights;
  COLI_OUT(float) scores;  // [wave][score_stride]
  COLI_OUT(u32) damage;
  u32 heads, dims, padded, top_k;
  u32 first_row;
  u32 score_stride;  // a multiple of 4
  float dot_scale, head_scale;
  u32 first_group;
  u32 pad;
};
COLI_SHARED_STRUCT(IndexScoreArgs, 80);

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

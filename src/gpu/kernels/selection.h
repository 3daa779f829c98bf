// The positions of a row's best scores: what the kernel is given.
#pragma once

#include "gpu/kernels/shared.h"
#include "gpu/kernels/step.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

enum : u32 {
  kSelectThreads = 512,
  kSelectBins = 2048,  // 11 bits of a key at a time
};

// Function constant 0. A long row goes through two stages so that many threadgroups share it: the best of each segment of the
// row become candidates, in order, and the best of the candidates are the best of the row.
enum : u32 { kSelectWhole = 0, kSelectSegments = 1, kSelectCandidates = 2 };

struct SelectArgs {
  COLI_IN(RowArgs) rows;
  COLI_IN(float) scores;             // [wave][score_stride]
  COLI_OUT(float) candidate_scores;  // [wave][candidate_stride]: top_k of every segment but the last
  COLI_OUT(i32) candidates;          // [wave][candidate_stride]: their positions
  COLI_OUT(i32) chosen;              // [rows][chosen_stride]
  COLI_OUT(u32) counts;              // [rows]
  u32 top_k, chosen_stride;
  u32 first_row;                       // of the wave
  u32 score_stride, candidate_stride;  // multiples of 4
  u32 segment;                         // positions, a multiple of 4, at least top_k
  u32 first_group;
  u32 pad;
};
COLI_SHARED_STRUCT(SelectArgs, 80);

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

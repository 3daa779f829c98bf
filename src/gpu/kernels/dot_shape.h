// How dot.h divides products among threads: what launches are planned by.
#pragma once

#include "gpu/kernels/shared.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

enum DotShape : u32 {
  kGroupThreads = 128,
  kOutputs = 4,                                   // output rows of 16 threads
  kGroupOutputs = kGroupThreads / 16 * kOutputs,  // of a threadgroup
  kStagedRows = kGroupThreads / 16,               // rows of activations that a threadgroup shares, 16 threads bringing in each
};

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

// What a GPU can do at best: reading memory, starting work.
#pragma once

#include "gpu/kernels/shared.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

struct ProbeArgs {
  COLI_IN(u32) data;
  COLI_OUT(u32) out;  // u32[threads]: every thread's sum, so that no read can be left out
  u64 words;          // of data, a multiple of 4
  u32 threads;        // in the whole grid
  u32 first_group;
};
COLI_SHARED_STRUCT(ProbeArgs, 32);

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

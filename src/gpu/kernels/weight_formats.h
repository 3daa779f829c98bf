// colibri::WeightFormat as kernels see it.
#pragma once

#include "gpu/kernels/shared.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

enum StoredFormat : u32 {
  kStoredF32 = 0,
  kStoredBF16 = 1,
  kStoredF16 = 2,
  kStoredInt8 = 3,
  kStoredInt4Row = 4,
  kStoredInt4 = 5,  // one scale per `group` columns; with a group of 0 or of at least the columns, one per row
  kStoredInt2 = 6,
  kStoredInt3 = 7,
  kStoredF8 = 8,
};

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

// The rows of one step as kernels see them: where each row's sequence keeps its cache, and where the row stands in it.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/encoder.h"
#include "gpu/kernels/step.h"

namespace colibri::gpu {

// A table RowArgs[count] in device memory that the host has filled, with what the host plans grids by.
struct StepTable {
  Address rows = 0;  // RowArgs[count]
  std::int64_t count = 0;
  std::int64_t longest = 0;      // entries that the furthest row sees without a selection: its position + 1
  Address cosine = 0, sine = 0;  // f32[count][rope / 2]: rotary tables of each row's position
};

// What the indexer chose. chosen[r * top_k ...]: positions in rising order; counts[r]: how many, 0 for every visible position.
struct SelectionTable {
  Address chosen = 0;  // i32[rows][top_k]
  Address counts = 0;  // u32[rows]
  std::int64_t top_k = 0;
};

}  // namespace colibri::gpu

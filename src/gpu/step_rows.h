// The rows of one step as kernels see them: where each row's sequence keeps its cache, and where the row stands in it.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/encoder.h"
#include "gpu/kernels/step.h"

namespace colibri::gpu {

// Neighbouring rows of one sequence and its cache of one layer.
struct SequenceRows {
  Address entries = 0, keys = 0;  // of position 0; keys 0: none
  std::int64_t first = 0, count = 0;
};

// Fills a table's part of them; returns where the next sequence's part begins. Kernels take every row by itself, so that one
// kernel serves rows of one and of several sequences: what rows could share, the heads of one row share already.
inline RowArgs* write_rows(const SequenceRows& rows, RowArgs* table) {
  for (std::int64_t r = 0; r < rows.count; ++r) *table++ = {rows.entries, rows.keys, static_cast<u32>(rows.first + r), 0, 0, 0};
  return table;
}

// A table RowArgs[count] in device memory that the host has filled, with what the host plans grids by.
struct StepTable {
  Address rows = 0;  // RowArgs[count]
  std::int64_t count = 0;
  std::int64_t longest = 0;      // entries that the furthest row sees without a selection: its position + 1
  Address cosine = 0, sine = 0;  // f32[count][rope / 2]: rotary tables of each row's position
};

inline StepArgs step_args(const StepTable& step, Address damage) { return {step.rows, step.cosine, step.sine, damage}; }

// What the indexer chose. chosen[r * top_k ...]: positions in rising order; counts[r]: how many, 0 for every visible position.
struct SelectionTable {
  Address chosen = 0;  // i32[rows][top_k]
  Address counts = 0;  // u32[rows]
  std::int64_t top_k = 0;
};

}  // namespace colibri::gpu

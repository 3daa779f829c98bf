// The rows of one step through the layers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "experts/expert_source.h"
#include "model/kv_cache.h"

namespace colibri {

// One token on its way: which sequence it belongs to and where it stands there. Rows of one sequence come in
// increasing position; rows of several sequences may share a step.
struct Row {
  KvCache* cache = nullptr;
  std::int64_t position = 0;
};

struct StepRows {
  std::span<const Row> rows;
  // Rotary cosines and sines of each row's position: rope dimensions / 2 floats a row.
  const float* cosine = nullptr;
  const float* sine = nullptr;

  std::int64_t count() const { return static_cast<std::int64_t>(rows.size()); }
};

// Asked again and again while a step is computed, by the thread that computes it: false gives the step up.
using KeepGoing = std::function<bool()>;
enum class StepEnd : std::uint8_t { kDone, kStopped };

// What the last full indexer layer chose, per row: positions in increasing order; empty means every visible position.
struct Selection {
  std::vector<std::vector<std::int32_t>> positions;
  void clear(std::size_t rows) {
    positions.resize(rows);
    for (auto& p : positions) p.clear();
  }
};

}  // namespace colibri

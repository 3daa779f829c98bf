// Random traces, small enough to see through.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>

#include "experts/trace.h"

namespace colibri {

// Mostly decode steps, some of several rows, and prefill chunks; a few favourite experts. Sparse layers 1 to layers - 1.
inline Trace random_trace(std::uint32_t seed, std::int64_t layers, std::int64_t experts, std::int64_t top_k, int steps) {
  std::mt19937 random(seed);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); };
  Trace trace;
  trace.model = {layers, experts, top_k, 1000};
  for (int i = 0; i < steps; ++i) {
    TraceStep step;
    step.phase = below(8) == 0 ? StepPhase::kPrefill : StepPhase::kDecode;
    step.rows = step.phase == StepPhase::kPrefill ? 1 + below(12) : 1 + below(8) / 6;
    step.tail_ns = below(1000);
    for (std::int64_t layer = 1; layer < layers; ++layer) {
      LayerAccess access{layer, below(1000), below(1000), below(1000), {}, {}, {}};
      for (std::int64_t row = 0; row < step.rows; ++row)
        for (std::int64_t k = 0; k < top_k; ++k) {
          const auto id = static_cast<std::int32_t>(below(3) == 0 ? below(experts) : below(1 + experts / 3));
          const auto at = std::find(access.needed.begin(), access.needed.end(), id);
          if (at == access.needed.end()) {
            access.needed.push_back(id);
            access.rows.push_back(1);
          } else if (auto& rows = access.rows[static_cast<std::size_t>(at - access.needed.begin())]; rows < step.rows) {
            ++rows;
          }
        }
      access.predicted.resize(static_cast<std::size_t>(experts));
      std::iota(access.predicted.begin(), access.predicted.end(), 0);
      std::shuffle(access.predicted.begin(), access.predicted.end(), random);
      access.predicted.resize(static_cast<std::size_t>(below(top_k + 1)));
      step.accesses.push_back(std::move(access));
    }
    trace.steps.push_back(std::move(step));
  }
  return trace;
}

inline LayerAccess need(std::int64_t layer, std::vector<std::int32_t> ids) {
  const std::vector<std::int32_t> rows(ids.size(), 1);
  return {layer, 0, 0, 0, std::move(ids), rows, {}};
}

}  // namespace colibri

// A policy's hit rate on a recorded trace, and the comparison table of `coli replay`.
#pragma once

#include <string>
#include <vector>

#include "experts/belady.h"
#include "experts/cache_directory.h"
#include "experts/usage_history.h"

namespace colibri {

inline CacheShape cache_shape(const TraceModel& model) { return {model.layers, model.experts, model.top_k}; }

// Drives the directory as a source without prediction would: what a request misses is read in its order, everything is
// held until the request is done or until the place is needed by the rest of it.
ReplayHits replay(const Trace& trace, CacheDirectory& directory);

struct ReplayRow {
  std::string cache;  // the policy, and how its slots are shared out
  ReplayHits hits;
  // Share of the way from LRU to Belady's optimum on decode steps; NaN where the two are equal.
  double gap_closed = 0;
};
struct ReplaySize {
  std::int64_t slots = 0;
  double fraction = 0;  // of all experts in the layers that the trace has
  ReplayHits optimum;
  std::vector<ReplayRow> rows;  // LRU first
};

// Distinct layers with routed experts times experts.
std::int64_t count_experts(const Trace& trace);
// The most experts one decode step needs (any step where there is no decode step): less cannot even keep one token.
std::int64_t experts_of_one_step(const Trace& trace);

// At these sizes: every policy with all slots for whoever is worth most; LRU and the default with slots shared out
// equally among the layers, and the default with half of that as a floor; with a history, LRU and the default with its
// pins, which are in memory from the start.
std::vector<ReplaySize> compare_caches(const Trace& trace, const std::vector<std::int64_t>& slots, const UsageHistory* history);

}  // namespace colibri

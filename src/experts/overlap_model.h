// How fast a run could have been: the time of every step if disk and processor wait for each other only where one
// needs what the other makes. A recorded run is compared with it (`coli replay --overlap`).
//
// The model. Computing is serial: one team of processors works on one thing at a time, at the speed the trace recorded.
// The disk serves one byte after the other at its measured rate, without pause between requests. A step goes through its
// layers in order:
//
//   1. `before` is computed: the rest of the layer before, attention, the router. Now the layer's demand is known: every
//      needed expert that is neither in memory nor fully read. A predicted expert that is partly read needs only the rest.
//   2. The disk reads the demand in order, whatever was begun for predictions first. It starts at once: work on
//      predictions is interrupted without loss.
//   3. Meanwhile `shared` is computed, then the experts in memory, then each missing one as it arrives. The layer is done
//      when the last is.
//   4. When the demand has been read, the disk turns to the experts predicted for the next layer, the most likely first,
//      until that layer's demand is known. Predictions that then prove wrong and are not fully read are forgotten.
//
// Which experts are in memory is the cache directory's business, with the policy and the slots it is given; a step's
// tail is computed at its end, and the disk is idle then, because nothing predicts the first layer of a step.
//
// It is a lower bound for a run with the same policy, predictions, times and disk rate: real reads have latency, are not
// interrupted, and wait for slots; real processors share the memory with the disk. It is no bound over other policies.
#pragma once

#include "experts/cache_directory.h"
#include "experts/trace.h"

namespace colibri {

struct OverlapOptions {
  double disk_bytes_per_second = 0;  // above 0
  bool predictions = true;           // read ahead
  std::int64_t skip = 0;             // decode steps at the start that only warm the cache and are not counted
};

// Sums over the counted steps of one phase; times in nanoseconds.
struct OverlapTimes {
  std::int64_t steps = 0;
  double wall = 0;     // by the model
  double compute = 0;  // computing alone
  double disk = 0;     // reading alone: demand, predictions, right and wrong
  double waiting = 0;  // computing stands still
  std::uint64_t needed = 0;
  std::uint64_t in_memory = 0;    // of the needed: there without a read in this step
  std::uint64_t read_ahead = 0;   // fully read before it was asked for
  std::uint64_t begun_ahead = 0;  // partly read before it was asked for
  std::uint64_t wrong = 0;        // predicted, fully read, not needed
  double max_of_both() const { return std::max(disk, compute); }
};

struct OverlapResult {
  OverlapTimes prefill, decode;
  OverlapTimes& of(StepPhase phase) { return phase == StepPhase::kPrefill ? prefill : decode; }
};

OverlapResult model_overlap(const Trace& trace, CacheDirectory& directory, const OverlapOptions& options);

}  // namespace colibri

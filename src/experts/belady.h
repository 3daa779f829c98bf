// Belady's optimum: the most hits any cache of a given size could have had on a trace, knowing the future. A bound to
// measure policies against, not something that can be run.
#pragma once

#include <cstdint>

#include "experts/trace.h"

namespace colibri {

struct PhaseHits {
  std::uint64_t needed = 0, hits = 0;
  double rate() const { return needed == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(needed); }
};
struct ReplayHits {
  PhaseHits prefill, decode;
  PhaseHits& of(StepPhase phase) { return phase == StepPhase::kPrefill ? prefill : decode; }
};

// Hits of all phases together are the largest possible when `slots` experts stay from one request to the next, a
// request hits what is there when it comes, and nothing is read before it is needed. Which phase gets them follows.
ReplayHits belady_hits(const Trace& trace, std::int64_t slots);

}  // namespace colibri

// How many slots of the expert arena may be used, given what the system says about memory: a function of the samples seen so
// far, without memory, files or a clock of its own, so that it can be tested on recorded counters.
//
// Slots are given up when
// - the process takes more than its budget and 3 %: as many as it is too much;
// - the compressor or swap has taken parts of the process: as many as it took. Expert memory that must come back from there
//   is worse than none;
// - the system swaps heavily, or is in critical pressure: a quarter of those in use, every few seconds;
// - it compresses and decompresses much at once, or warns: an eighth, down to half of the arena. A warning may last for hours.
// They come back by sixteenths of the arena, each after a time in which no sign was more than half of what it takes to give
// some up; what was displaced before and stays so is none. A number of slots that brought the pressure back is tried again only
// after twice the time.
#pragma once

#include <cstdint>
#include <optional>

#include "base/memory_sample.h"

namespace colibri {

struct ArenaLimits {
  std::int64_t slots = 0;  // of the whole arena
  std::int64_t least = 0;  // that a run needs
  std::uint64_t slot_bytes = 0;
  std::uint64_t budget = 0;  // of the process, in bytes
};

class ArenaGovernor {
 public:
  explicit ArenaGovernor(const ArenaLimits& limits);

  // Slots that may be used from now on, from least to slots of the limits. Samples come in order of time.
  std::int64_t update(const MemorySample& sample);
  std::int64_t slots() const { return slots_; }

 private:
  // What a sample says. Strength: 1 is what it takes to give slots up.
  struct Signs {
    double budget = 0, displaced = 0, swapping = 0, thrashing = 0;
    double displacing = 0;  // since the sample before
    double unrest() const;
  };
  Signs read(const MemorySample& sample) const;
  std::int64_t slots_of(std::uint64_t bytes) const;
  std::int64_t to_give(const MemorySample& sample, const Signs& signs);
  void give(std::int64_t count, double now);
  void grow(const MemorySample& sample);

  ArenaLimits limits_;
  std::int64_t slots_;
  bool first_ = true;
  MemorySample last_;
  std::uint64_t displaced_ = 0;  // that was answered already
  std::int64_t ceiling_;         // growing to so many slots was answered by pressure
  double wait_;                  // calm seconds before the ceiling is tried again
  double calm_since_ = 0;
  double yielded_at_ = 0;           // when the system's state as a whole was last answered
  std::optional<double> grown_at_;  // the last growth, if no slots were given up since
};

}  // namespace colibri

// What this machine can do at most, measured: the figures that achieved rates are held against.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/aligned.h"
#include "base/thread_team.h"

namespace colibri {

// Reads a buffer much larger than any cache with all threads of the team.
class ReadProbe {
 public:
  explicit ReadProbe(ThreadTeam& team);
  double bytes_per_second();  // one pass: some tens of milliseconds

 private:
  ThreadTeam& team_;
  std::int64_t bytes_;
  AlignedBytes buffer_;
};

// One run of some milliseconds: floating-point operations per second (a fused multiply-add counts two) with the vectors
// of the kernel table `isa` ("scalar", "avx2", ...; it must be usable here), all threads of the team busy.
double fma_per_second(ThreadTeam& team, std::string_view isa);

// The best of several passes and runs.
double measure_read_bandwidth(ThreadTeam& team);
double measure_fma_peak(ThreadTeam& team, std::string_view isa);

}  // namespace colibri

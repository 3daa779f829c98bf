// What this machine can do at most, measured: the figures that achieved rates are held against.
#pragma once

#include <string_view>

#include "base/thread_team.h"

namespace colibri {

// Bytes per second that the team reads from memory (a buffer much larger than any cache), the best of a few passes.
// Takes about half a second.
double measure_read_bandwidth(ThreadTeam& team);

// Floating-point operations per second (a fused multiply-add counts two) with the vectors of the kernel table `isa`
// ("scalar", "avx2", ...; it must be usable here), all threads of the team busy, the best of a few runs.
double measure_fma_peak(ThreadTeam& team, std::string_view isa);

}  // namespace colibri

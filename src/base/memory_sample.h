// What the system says about memory while a run goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace colibri {

enum class MemoryPressure : std::uint8_t { kNormal, kWarning, kCritical };

// Counters at one moment, in bytes.
struct MemorySample {
  double seconds = 0;           // of a clock that only goes forward
  std::uint64_t footprint = 0;  // what this process takes, compressed or swapped out parts included
  std::uint64_t displaced = 0;  // of the footprint: compressed or swapped out
  // The whole system's traffic since it started: into the compressor and back, and from there to the disk. On Linux, which
  // has swap in place of a compressor: written to swap (twice) and read back.
  std::uint64_t compressed = 0, decompressed = 0, swapped_out = 0;
  MemoryPressure pressure = MemoryPressure::kNormal;
};

// Nullopt: nothing new, or a system that does not tell.
using MemorySamples = std::function<std::optional<MemorySample>()>;

std::optional<MemorySample> sample_memory();
// sample_memory() for a caller that asks often: a sample at most once per interval, in seconds.
MemorySamples memory_samples(double interval);

}  // namespace colibri

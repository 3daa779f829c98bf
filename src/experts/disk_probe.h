// Which way of reading is the fastest on this disk. Machines disagree (uncached reads win by a factor on one and lose
// on the next), so a short measurement decides and is remembered beside the model, per device.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experts/record_reader.h"

namespace colibri {

// One way of reading and how fast it was.
struct DiskSample {
  ReadBackend backend = ReadBackend::kThreads;
  bool direct = false;
  int in_flight = 1;
  double bytes_per_second = 0;
};

// What the user has fixed (DIRECT, PIPE_WORKERS, PIPE=0 as in_flight 0); the rest is chosen.
struct DiskWishes {
  std::optional<bool> direct;
  std::optional<int> in_flight;
  std::optional<ReadBackend> backend;
};

struct ProbeLimits {
  double seconds = 0.35;
  std::uint64_t bytes = 300'000'000;
  // Distance of the reads from a multiple of kDirectAlignment. The model's own (ReadRun::offset) makes the
  // measurement include the copies that its records need.
  std::uint64_t offset_phase = 0;
};

struct DiskChoice {
  ReaderOptions options;
  double bytes_per_second = 0;  // of cold data, of the way chosen or its nearest relative; 0: not known
  std::string source;           // "measured", "remembered" or "default", for a person
  std::string notice;           // what could not be done, or empty
};

// Measures every way on bytes that the page cache does not hold, and leaves the cache as it was. Empty when too few
// such bytes are left to say anything, or when the system does not tell what is cached.
std::vector<DiskSample> measure_disk(std::span<const std::filesystem::path> files, const ProbeLimits& limits);

// The fastest sample among those that fit the wishes; within 5 % uncached reads are preferred, then fewer at a time.
// nullptr: none fits.
const DiskSample* best_sample(std::span<const DiskSample> samples, const DiskWishes& wishes);

// The choice that follows from samples (none: the default) and wishes. Pure.
DiskChoice disk_choice(std::span<const DiskSample> samples, const DiskWishes& wishes);

// The file of remembered samples, `.coli_ssd`: lines "device 259:1" and below each "threads direct 4 1.312 GB/s".
// Lines that make no sense are passed over.
using DiskMemory = std::map<std::string, std::vector<DiskSample>>;  // by device
DiskMemory parse_disk_memory(std::string_view text);
std::string disk_memory_text(const DiskMemory& memory);
std::string device_of(std::span<const std::filesystem::path> files);  // "259:1"; several joined by '+'

// Remembered or measured (and then remembered, if the folder can be written). Never fails: without an answer the
// default stands.
DiskChoice choose_disk_mode(const std::filesystem::path& dir, std::span<const std::filesystem::path> files,
                            const DiskWishes& wishes, const ProbeLimits& limits = {});

}  // namespace colibri

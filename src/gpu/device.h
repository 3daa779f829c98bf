// What the engine needs of a GPU, small enough that Metal, CUDA and the software device all offer it: host memory used
// where it lies, kernels compiled from text, command buffers. Everything above this header is portable C++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gpu/region_table.h"

namespace colibri::gpu {

struct DeviceInfo {
  std::string name;                  // "Apple M4 Max"
  std::string api;                   // "Metal"
  bool software = false;             // computes on the CPU, for tests: its times say nothing about any GPU
  bool residency_set = false;        // residency is declared once for all (macOS 15 and later)
  std::uint64_t longest_buffer = 0;  // bytes of one region at most
  std::uint64_t working_set = 0;     // bytes the device can use at once without slowing down
  std::uint32_t threadgroup_bytes = 0;
};

// A compiled kernel. Threads come in simdgroups of 32 lanes.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual std::uint32_t max_threads() const = 0;  // in one threadgroup
};

class Library {
 public:
  virtual ~Library() = default;
  // constants[i] is the 32-bit value of function constant i. Errors carry the compiler's text.
  virtual Result<std::unique_ptr<Kernel>> kernel(const std::string& function, std::span<const std::uint32_t> constants) = 0;
};

struct Grid {  // in threadgroups
  std::uint32_t x = 1, y = 1, z = 1;
};

struct Dispatch {
  const Kernel* kernel = nullptr;
  std::span<const std::byte> args;      // becomes buffer 0, copied; at most kMaxArgsBytes
  Grid groups;                          // every extent at least 1
  std::uint32_t threads = 32;           // of one threadgroup, a multiple of 32
  std::uint32_t threadgroup_bytes = 0;  // becomes threadgroup memory 0; a multiple of 16
};
inline constexpr std::size_t kMaxArgsBytes = 4096;

enum class Fault : std::uint8_t { kNone, kError, kTimeout, kMemory, kResidency, kCompile };
std::string_view fault_name(
    Fault fault);  // "command-buffer error", "timeout", "out of memory", "not resident", "compile failure"

// How a command buffer ended. With a fault its outputs mean nothing; its inputs are as they were.
struct Completion {
  Fault fault = Fault::kNone;
  std::string message;     // what the device said
  double gpu_seconds = 0;  // from its first kernel's start to its last one's end
};

// One command buffer. Dispatches between two barriers may run at the same time; those after a barrier see what those
// before it wrote. Command buffers of one device run in the order they were committed, each seeing what earlier ones wrote.
// Destroying one that was committed waits for it.
class Commands {
 public:
  virtual ~Commands() = default;
  virtual void dispatch(const Dispatch& dispatch) = 0;
  virtual void barrier() = 0;
  virtual void commit() = 0;             // once, after the last dispatch
  virtual const Completion& wait() = 0;  // after commit; the calling thread blocks, it does not spin
  virtual bool done() const = 0;         // after commit; without waiting
};

struct DeviceMemory {
  std::uint64_t used = 0;   // bytes this process has on the device
  std::uint64_t total = 0;  // bytes it can use: the working set
};

struct ResidencyStats {
  std::uint64_t allocations = 0;  // in the set
  std::uint64_t bytes = 0;
  std::uint64_t flushes = 0;  // times that additions were committed to it
  double flush_seconds = 0;
};

// All calls from one thread at a time, except address().
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  virtual Result<std::unique_ptr<Library>> compile(std::string_view name, std::string_view text) = 0;

  // Makes [base, base + bytes) usable by kernels without a copy; base and bytes are multiples of kRegionAlignment, bytes at
  // most info().longest_buffer, and no part is registered already. It stays resident until it is unregistered.
  virtual Result<void> register_region(void* base, std::uint64_t bytes) = 0;
  // Waits for command buffers in flight; afterwards the memory may be freed. base as it was registered.
  virtual Result<void> unregister_region(void* base) = 0;
  // Where a kernel finds this byte of host memory; 0 when it lies in no region.
  Address address(const void* p) const { return regions_.address(p); }
  const RegionTable& regions() const { return regions_; }

  virtual Result<std::unique_ptr<Commands>> begin() = 0;

  virtual DeviceMemory memory() const = 0;
  virtual ResidencyStats residency() const = 0;

 protected:
  RegionTable regions_;
};

// The system's Metal device. Fails with the reason where there is none; on systems other than macOS there never is.
Result<std::unique_ptr<Device>> open_metal();

// The software Metal device of tests/softmetal, loaded on demand from a library beside the program (or from the path in
// COLI_SOFT_METAL). It runs the same kernels on the CPU, for tests.
Result<std::unique_ptr<Device>> open_software_metal();

}  // namespace colibri::gpu

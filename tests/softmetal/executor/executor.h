// Runs compute kernels on the CPU as a GPU would: every thread of a threadgroup is a fiber with its own stack, barriers and
// simdgroup operations are real, and what hardware leaves open (the order of threads, of threadgroups) is shuffled. A kernel
// that breaks a rule ends the process with a message: see violation().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "executor/kernel_abi.h"

namespace softmetal {

inline constexpr unsigned kSimdWidth = 32;

struct MemoryRange {  // that a kernel may touch
  std::uintptr_t begin = 0, end = 0;
  bool writable = false;
};

struct Launch {
  const KernelEntry* kernel = nullptr;
  void* buffers[31] = {};
  unsigned threadgroup_bytes[8] = {};
  unsigned groups[3] = {1, 1, 1};
  unsigned threads[3] = {1, 1, 1};
  std::vector<MemoryRange> memory;  // by rising begin, disjoint
  std::uint64_t seed = 0;           // of the order of threads; 0 is the natural order
};

struct Counters {
  std::uint64_t dispatches = 0, threadgroups = 0, threads = 0, barriers = 0, simd_operations = 0, switches = 0;
};

class Worker;

// Threads that run the threadgroups of a launch. One launch at a time.
class Executor {
 public:
  explicit Executor(unsigned threads);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void run(const Launch& launch);
  Counters take_counters();  // since the last call

 private:
  struct Pool;
  void work(Worker& worker);

  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Pool> pool_;
  const Launch* launch_ = nullptr;
  std::atomic<std::uint64_t> next_group_{0};
  Counters counters_;
};

// A mistake of a kernel or of the code that uses the device: says what it was and ends the process.
[[noreturn]] void violation(const std::string& what);

}  // namespace softmetal

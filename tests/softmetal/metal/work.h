// What a command buffer does, apart from Objective-C: dispatches, the memory they may touch, and the thread that runs them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "executor/executor.h"
#include "soft_metal.h"

namespace softmetal {

// The memory of a buffer.
struct Region {
  char* data = nullptr;
  std::size_t bytes = 0;
  std::atomic<int> in_flight{0};  // command buffers, committed and not complete, for which it is resident
};
using RegionPtr = std::shared_ptr<Region>;

struct Binding {
  RegionPtr region;  // or
  std::vector<char> bytes;
  std::size_t offset = 0;
};

struct Specialised {  // a function with its constants
  const CompiledText* text = nullptr;
  const KernelEntry* kernel = nullptr;
  std::vector<std::pair<int, unsigned>> constants;
};

struct DispatchWork {
  std::shared_ptr<const Specialised> function;
  std::vector<std::pair<int, Binding>> bindings;
  unsigned threadgroup_bytes[8] = {};
  unsigned groups[3] = {}, threads[3] = {};
  std::vector<RegionPtr> used;  // by useResource: and setBuffer:
};

struct Work {
  std::vector<std::vector<DispatchWork>> stages;  // a barrier between two
  std::vector<RegionPtr> resident;                // through residency sets
  std::set<const void*> waits, updates;           // fences

  std::mutex mutex;
  std::condition_variable done;
  bool complete = false;
  int error = 0;  // an MTLCommandBufferError
  std::string message;
  double start = 0, end = 0;  // seconds
};

// Runs command buffers one after another on a thread of its own, in the order of their commits; two that no fence orders may
// change places.
class WorkQueue {
 public:
  WorkQueue();
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  void commit(std::shared_ptr<Work> work);
  void hold(bool on);  // what is committed waits until it is off again

 private:
  void run_all();
  void run(Work& work);
  void run(DispatchWork& dispatch, const Work& work, std::uint64_t seed);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Work>> queue_;
  bool stop_ = false, held_ = false;
  std::unique_ptr<Executor> executor_;
  unsigned executor_threads_ = 0;
  std::uint64_t launches_ = 0;
  std::thread thread_;
};

bool should_fail(SoftMetalFault fault);  // one occasion
double seconds_now();

}  // namespace softmetal

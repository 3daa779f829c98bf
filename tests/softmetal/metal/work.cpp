#include "metal/work.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>

namespace softmetal {
namespace {

struct Armed {
  int after = 0, count = 0;
};

struct Controls {
  std::mutex mutex;
  Armed faults[kSoftMetalFaults];
  std::uint64_t seed = 1;
  unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  SoftMetalCounters counters{};

  Controls() {
    if (const char* s = std::getenv("COLI_SOFT_METAL_SEED"); s != nullptr) seed = std::strtoull(s, nullptr, 10);
    if (const char* s = std::getenv("COLI_SOFT_METAL_FAULT"); s != nullptr) arm_all(s);
  }
  void arm_all(std::string_view list) {
    static constexpr std::string_view kNames[kSoftMetalFaults] = {"error",   "timeout",    "memory",       "residency",
                                                                  "compile", "allocation", "residency-set"};
    while (!list.empty()) {
      const std::string item(list.substr(0, list.find(',')));
      list.remove_prefix(std::min(list.size(), item.size() + 1));
      const std::size_t first = item.find(':'), second = first == item.npos ? item.npos : item.find(':', first + 1);
      const auto* name = std::find(std::begin(kNames), std::end(kNames), item.substr(0, first));
      if (name == std::end(kNames)) violation("COLI_SOFT_METAL_FAULT names an unknown fault: '" + item + "'");
      Armed& a = faults[name - std::begin(kNames)];
      a.after = first == item.npos ? 0 : std::atoi(item.c_str() + first + 1);
      a.count = second == item.npos ? 1 : std::atoi(item.c_str() + second + 1);
    }
  }
};

Controls& controls() {
  static Controls& c = *new Controls;  // outlives devices that statics hold
  return c;
}

std::uint64_t next_random(std::uint64_t& state) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return state >> 33;
}

}  // namespace

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool should_fail(SoftMetalFault fault) {
  Controls& c = controls();
  const std::lock_guard lock(c.mutex);
  Armed& a = c.faults[fault];
  if (a.count == 0) return false;
  if (a.after > 0) {
    --a.after;
    return false;
  }
  if (a.count > 0) --a.count;
  return true;
}

WorkQueue::WorkQueue() : thread_([this] { run_all(); }) {}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void WorkQueue::commit(std::shared_ptr<Work> work) {
  for (const RegionPtr& r : work->resident) ++r->in_flight;
  for (const auto& stage : work->stages) {
    for (const DispatchWork& d : stage) {
      for (const RegionPtr& r : d.used) ++r->in_flight;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  wake_.notify_all();
}

void WorkQueue::hold(bool on) {
  {
    const std::lock_guard lock(mutex_);
    held_ = on;
  }
  wake_.notify_all();
}

void WorkQueue::run_all() {
  for (;;) {
    std::shared_ptr<Work> work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || (!held_ && !queue_.empty()); });
      if (queue_.empty()) return;
      // Without a fence a later command buffer may overtake an earlier one.
      if (queue_.size() > 1 && controls().seed != 0) {
        const Work &a = *queue_[0], &b = *queue_[1];
        const bool ordered = std::any_of(b.waits.begin(), b.waits.end(), [&](const void* f) { return a.updates.count(f) != 0; });
        if (!ordered) std::swap(queue_[0], queue_[1]);
      }
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    run(*work);
  }
}

void WorkQueue::run(Work& work) {
  Controls& c = controls();
  std::uint64_t seed = 0;
  unsigned threads = 1;
  {
    const std::lock_guard lock(c.mutex);
    seed = c.seed;
    threads = c.threads;
    ++c.counters.command_buffers;
  }
  if (executor_ == nullptr || executor_threads_ != threads) {
    executor_ = std::make_unique<Executor>(threads);
    executor_threads_ = threads;
  }
  struct Kind {
    SoftMetalFault fault;
    int code;
    const char* message;
  };
  static constexpr Kind kKinds[] = {
      {kSoftMetalError, 1, "Internal Error (a fault that a test injected)"},
      {kSoftMetalTimeout, 2, "Caused GPU Timeout Error (a fault that a test injected)"},
      {kSoftMetalMemory, 8, "Insufficient Memory (a fault that a test injected)"},
      {kSoftMetalResidency, 3, "Caused GPU Address Fault Error (a fault that a test injected)"},
  };
  int error = 0;
  std::string message;
  for (const Kind& k : kKinds) {
    if (should_fail(k.fault) && error == 0) {
      error = k.code;
      message = k.message;
    }
  }

  const double start = seconds_now();
  std::size_t total = 0, ran = 0;
  for (const auto& stage : work.stages) total += stage.size();
  const std::size_t limit = error != 0 ? (total + 1) / 2 : total;
  for (auto& stage : work.stages) {
    std::vector<DispatchWork*> order;
    for (DispatchWork& d : stage) order.push_back(&d);
    std::uint64_t random = seed ^ (launches_ * 0x9E3779B97F4A7C15ull);
    if (seed != 0) {
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random(random) % i]);
    }
    for (DispatchWork* d : order) {
      if (ran == limit) break;
      ++ran;
      ++launches_;
      run(*d, work, seed == 0 ? 0 : (seed ^ (launches_ * 0xD1342543DE82EF95ull)) | 1);
    }
  }
  const double end = seconds_now();

  const Counters counters = executor_->take_counters();
  {
    const std::lock_guard lock(c.mutex);
    c.counters.dispatches += counters.dispatches;
    c.counters.threadgroups += counters.threadgroups;
    c.counters.threads += counters.threads;
    c.counters.barriers += counters.barriers;
    c.counters.simd_operations += counters.simd_operations;
    c.counters.switches += counters.switches;
  }
  for (const RegionPtr& r : work.resident) --r->in_flight;
  for (const auto& stage : work.stages) {
    for (const DispatchWork& d : stage) {
      for (const RegionPtr& r : d.used) --r->in_flight;
    }
  }
  const std::lock_guard lock(work.mutex);
  work.stages.clear();
  work.resident.clear();
  work.error = error;
  work.message = std::move(message);
  work.start = start;
  work.end = end;
  work.complete = true;
  work.done.notify_all();
}

void WorkQueue::run(DispatchWork& dispatch, const Work& work, std::uint64_t seed) {
  Launch launch;
  launch.kernel = dispatch.function->kernel;
  launch.seed = seed;
  std::copy(std::begin(dispatch.groups), std::end(dispatch.groups), launch.groups);
  std::copy(std::begin(dispatch.threads), std::end(dispatch.threads), launch.threads);
  std::copy(std::begin(dispatch.threadgroup_bytes), std::end(dispatch.threadgroup_bytes), launch.threadgroup_bytes);

  std::vector<MemoryRange>& memory = launch.memory;
  const auto allow = [&](const void* begin, std::size_t bytes, bool writable) {
    const auto b = reinterpret_cast<std::uintptr_t>(begin);
    memory.push_back({b, b + bytes, writable});
  };
  for (const RegionPtr& r : work.resident) allow(r->data, r->bytes, true);
  for (const RegionPtr& r : dispatch.used) allow(r->data, r->bytes, true);
  for (auto& [index, binding] : dispatch.bindings) {
    if (binding.region != nullptr) {
      launch.buffers[index] = binding.region->data + binding.offset;
    } else {
      launch.buffers[index] = binding.bytes.data();
      allow(binding.bytes.data(), binding.bytes.size(), false);
    }
  }
  std::sort(memory.begin(), memory.end(), [](const MemoryRange& a, const MemoryRange& b) { return a.begin < b.begin; });
  memory.erase(
      std::unique(memory.begin(), memory.end(), [](const MemoryRange& a, const MemoryRange& b) { return a.begin == b.begin; }),
      memory.end());

  // Constants are globals of the compiled text: one launch at a time in the whole process.
  static std::mutex launching;
  const std::lock_guard lock(launching);
  for (const auto& [index, value] : dispatch.function->constants) {
    for (const ConstantEntry* k = dispatch.function->text->constants; k->value != nullptr; ++k) {
      if (k->index == index) *k->value = value;
    }
  }
  executor_->run(launch);
}

}  // namespace softmetal

using softmetal::controls;

#define SOFT_METAL_EXPORT extern "C" __attribute__((visibility("default")))

SOFT_METAL_EXPORT void soft_metal_arm(SoftMetalFault fault, int after, int count) {
  const std::lock_guard lock(controls().mutex);
  controls().faults[fault] = {after, count};
}
SOFT_METAL_EXPORT void soft_metal_disarm(void) {
  const std::lock_guard lock(controls().mutex);
  for (auto& f : controls().faults) f = {};
}
SOFT_METAL_EXPORT void soft_metal_counters(SoftMetalCounters* out) {
  const std::lock_guard lock(controls().mutex);
  *out = controls().counters;
}
SOFT_METAL_EXPORT void soft_metal_set_seed(std::uint64_t seed) {
  const std::lock_guard lock(controls().mutex);
  controls().seed = seed;
}
SOFT_METAL_EXPORT void soft_metal_set_threads(unsigned threads) {
  const std::lock_guard lock(controls().mutex);
  controls().threads = std::max(1u, threads);
}

#include "base/thread_team.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>
#include <system_error>

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "base/fp_mode.h"

namespace colibri {
namespace {

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Long enough to bridge the serial pieces between two loops of one layer, short enough not to matter
// for power: a blocked thread takes about this long to wake.
constexpr auto kSpin = std::chrono::microseconds(60);

// Returns once value differs from `old`.
void wait_change(std::atomic<std::uint32_t>& value, std::uint32_t old, WaitMode mode) {
  if (mode == WaitMode::kAdaptive) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 64; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_cpu();
      }
    } while (std::chrono::steady_clock::now() < deadline);
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

#if defined(__linux__)
// CPUs a cgroup v2 or v1 quota allows, or a large number.
int cgroup_cpus() {
  double quota = -1, period = 100000;
  std::string first;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> first >> period) {
    if (first != "max") quota = std::strtod(first.c_str(), nullptr);
  } else if (std::ifstream q("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"); q >> quota) {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return 1 << 20;
  return std::max(1, static_cast<int>(std::lround(quota / period)));
}
#endif

}  // namespace

int available_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::min(CPU_COUNT(&set), cgroup_cpus());
#elif defined(__APPLE__)
  int cores = 0;
  size_t size = sizeof cores;
  if (sysctlbyname("hw.perflevel0.physicalcpu", &cores, &size, nullptr, 0) == 0 && cores > 0) return cores;
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

ThreadTeam::ThreadTeam(int size, WaitMode wait) : wait_(wait) {
  try {
    for (int worker = 1; worker < size; ++worker) workers_.emplace_back([this, worker] { worker_loop(worker); });
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): nothing is wrong
    // The system gives no more threads: those that exist do the work.
  }
}

ThreadTeam::~ThreadTeam() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadTeam::run(const Job& job) {
  if (job.count <= 0) return;
  FlushDenormals flush;
  if (workers_.empty() || job.count <= job.grain) {
    for (std::int64_t begin = 0; begin < job.count; begin += job.grain)
      job.call(job.body, begin, std::min(begin + job.grain, job.count), 0);
    return;
  }
  job_ = job;
  next_.store(0, std::memory_order_relaxed);
  pending_.store(static_cast<std::uint32_t>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  work(0);
  for (std::uint32_t left; (left = pending_.load(std::memory_order_acquire)) != 0;) wait_change(pending_, left, wait_);
}

void ThreadTeam::work(int worker) {
  const Job job = job_;
  for (;;) {
    const std::int64_t begin = next_.fetch_add(job.grain, std::memory_order_relaxed);
    if (begin >= job.count) return;
    job.call(job.body, begin, std::min(begin + job.grain, job.count), worker);
  }
}

void ThreadTeam::worker_loop(int worker) {
  FlushDenormals flush;
  std::uint32_t seen = 0;
  for (;;) {
    wait_change(generation_, seen, wait_);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    work(worker);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

}  // namespace colibri

// A small team of threads that run one loop together and wait for the next without hurting the machine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace colibri {

// How a thread waits for work: kAdaptive spins for some microseconds (work inside a token comes that
// fast) and then blocks; kBlock blocks at once, which is what a machine with a working GPU wants.
enum class WaitMode { kAdaptive, kBlock };

// CPUs this process may run on: the affinity mask and cgroup limits, or performance cores on macOS.
int available_cpus();

class ThreadTeam {
 public:
  // size counts the calling thread; it is cut to at least 1, and to what the system gives. Results never depend on it.
  explicit ThreadTeam(int size, WaitMode wait = WaitMode::kAdaptive);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, worker) over [0, count) in pieces of at most `grain`, each exactly once, and
  // returns when all are done. worker is in [0, size()): use it to pick scratch memory. Pieces go to
  // whoever is free, so the body must not depend on the order. Called from one thread at a time; a
  // body must not call back into the team.
  template <class Body>
  void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run({[](void* b, std::int64_t begin, std::int64_t end, int worker) { (*static_cast<Plain*>(b))(begin, end, worker); },
         const_cast<void*>(static_cast<const void*>(&body)), count, grain < 1 ? 1 : grain});
  }

 private:
  struct Job {
    void (*call)(void*, std::int64_t, std::int64_t, int) = nullptr;
    void* body = nullptr;
    std::int64_t count = 0;
    std::int64_t grain = 1;
  };
  void run(const Job& job);
  void work(int worker);
  void worker_loop(int worker);

  WaitMode wait_;
  Job job_;
  // Separate cache lines: every thread writes next_ and pending_ while others read generation_.
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::uint32_t> pending_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace colibri

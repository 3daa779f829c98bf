#include "executor/executor.h"

#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "executor/worker.h"

namespace softmetal {

struct Executor::Pool {
  std::mutex mutex;
  std::condition_variable start, done;
  std::uint64_t round = 0;
  unsigned busy = 0;
  bool stop = false;
  std::vector<std::thread> threads;
};

Executor::Executor(unsigned threads) : pool_(std::make_unique<Pool>()) {
  if (threads == 0) threads = 1;
  for (unsigned i = 0; i < threads; ++i) workers_.push_back(std::make_unique<Worker>());
  for (unsigned i = 1; i < threads; ++i) {
    pool_->threads.emplace_back([this, i] {
      std::uint64_t seen = 0;
      for (;;) {
        {
          std::unique_lock lock(pool_->mutex);
          pool_->start.wait(lock, [&] { return pool_->stop || pool_->round != seen; });
          if (pool_->stop) return;
          seen = pool_->round;
        }
        work(*workers_[i]);
        const std::lock_guard lock(pool_->mutex);
        if (--pool_->busy == 0) pool_->done.notify_all();
      }
    });
  }
}

Executor::~Executor() {
  {
    const std::lock_guard lock(pool_->mutex);
    pool_->stop = true;
  }
  pool_->start.notify_all();
  for (std::thread& t : pool_->threads) t.join();
}

void Executor::work(Worker& worker) {
  const Launch& launch = *launch_;
  const std::uint64_t total = std::uint64_t{launch.groups[0]} * launch.groups[1] * launch.groups[2];
  // Groups in an order of their own: position i is group (i * step + first) mod total, with step coprime to total.
  std::uint64_t step = 1, first = 0;
  if (launch.seed != 0 && total > 2) {
    first = launch.seed * 0x9E3779B97F4A7C15ull % total;
    step = (launch.seed * 0xD1342543DE82EF95ull >> 16) % 65536 + 1;
    while (std::gcd(step, total) != 1) ++step;
  }
  bool begun = false;
  for (;;) {
    const std::uint64_t i = next_group_.fetch_add(1, std::memory_order_relaxed);
    if (i >= total) break;
    if (!begun) worker.begin(launch);
    begun = true;
    worker.run_group((i % total * (step % total) + first) % total);
  }
}

void Executor::run(const Launch& launch) {
  launch_ = &launch;
  next_group_ = 0;
  const std::uint64_t groups = std::uint64_t{launch.groups[0]} * launch.groups[1] * launch.groups[2];
  const bool alone = groups == 1 || pool_->threads.empty();
  if (!alone) {
    const std::lock_guard lock(pool_->mutex);
    ++pool_->round;
    pool_->busy = static_cast<unsigned>(pool_->threads.size());
  }
  if (!alone) pool_->start.notify_all();
  work(*workers_[0]);
  if (!alone) {
    std::unique_lock lock(pool_->mutex);
    pool_->done.wait(lock, [&] { return pool_->busy == 0; });
  }
  ++counters_.dispatches;
  for (auto& worker : workers_) {
    const Counters c = worker->take_counters();
    counters_.threadgroups += c.threadgroups;
    counters_.threads += c.threads;
    counters_.barriers += c.barriers;
    counters_.simd_operations += c.simd_operations;
    counters_.switches += c.switches;
  }
}

Counters Executor::take_counters() { return std::exchange(counters_, {}); }

}  // namespace softmetal

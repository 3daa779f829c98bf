// One CPU thread that runs threadgroups. Kernel threads run on carriers (stacks): a carrier runs one kernel thread after
// another and changes to another carrier only when its thread has to wait, so that kernels without barriers never switch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "executor/executor.h"
#include "executor/memory_check.h"

namespace softmetal {

class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void begin(const Launch& launch);  // before the first group of a launch
  void run_group(std::uint64_t group);
  Counters take_counters();

  // What kernels call, on the worker of the calling thread.
  static Worker& here() { return *current_; }
  void barrier(int line);
  const char* exchange(const void* in, std::size_t bytes, int line, std::uint32_t* lanes);
  unsigned lane() const { return running_ % kSimdWidth; }
  void* threadgroup_array(int id, std::size_t bytes);

  // Ends the process unless the running thread may touch these bytes; remembers in known() that it may.
  void check(std::uintptr_t address, std::size_t bytes, bool write);

 private:
  enum class State : std::uint8_t { kFresh, kReady, kBarrier, kSimd, kDone };
  struct Fiber {
    void* sp = nullptr;
    State state = State::kFresh;
    int line = 0;
  };
  struct SimdGroup {
    alignas(64) char slots[2][kSimdWidth][64];
    std::uint32_t lanes[2];
    unsigned epoch, arrived, alive;
    int line;
  };
  struct Block {  // of threadgroup memory; ends at the end of its pages
    char* pages = nullptr;
    std::size_t page_bytes = 0;
    char* data = nullptr;
    std::size_t bytes = 0;
    bool live = false;  // in this launch
  };
  static constexpr std::size_t kSimdBytes = (32 * sizeof(SimdGroup) + kPage - 1) / kPage * kPage;

  static void carrier_main();
  void run_thread();
  void finish();
  bool take_next(std::uint32_t& next);  // the next kernel thread that can run
  void* carrier();                      // an idle one, or a new one
  void wait_for_others();
  void release_simd(unsigned simd);
  void release_barrier();
  void make_ready(std::uint32_t first, std::uint32_t count, State waiting);
  void allocate(Block& block, std::size_t bytes);
  [[noreturn]] void fail(const std::string& what) const;
  std::string where() const;

  __attribute__((tls_model("initial-exec"))) static __thread Worker* current_;

  const Launch* launch_ = nullptr;
  std::uint64_t group_ = 0;
  std::uint32_t count_ = 0, alive_ = 0, at_barrier_ = 0;
  int barrier_line_ = 0;
  std::uint32_t running_ = 0;
  ThreadContext context_{};
  std::vector<Fiber> fibers_;
  SimdGroup* simds_ = nullptr;  // in pages of their own: kernels read the slots
  unsigned simd_count_ = 0;
  std::vector<std::uint32_t> order_;  // of the threads of a group
  std::vector<std::uint32_t> ready_;  // a ring
  std::uint32_t ready_first_ = 0, ready_count_ = 0;
  void* main_sp_ = nullptr;
  std::vector<void*> idle_;    // carriers that wait for a thread to run
  std::vector<char*> stacks_;  // all of them
  char* stack_area_ = nullptr;
  Block dynamic_[8];
  std::vector<Block> arrays_;
  KnownMemory known_;
  Counters counters_;
};

}  // namespace softmetal

#include "executor/worker.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "executor/context.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace softmetal {
namespace {

constexpr std::size_t kStackBytes = 128 << 10;  // of a carrier, with a page at its low end that nobody may touch
constexpr std::size_t kMaxThreads = 1024;       // of a threadgroup
constexpr std::size_t kMaxStacks = kMaxThreads + 1;
constexpr std::size_t kGuard = kPage;

char* map_pages(std::size_t bytes) {
  void* p = ::mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) violation("no memory for the stacks of a threadgroup");
  const auto begin = reinterpret_cast<std::uintptr_t>(p), aligned = (begin + kPage - 1) / kPage * kPage;
  if (aligned > begin) ::munmap(p, aligned - begin);
  ::munmap(reinterpret_cast<void*>(aligned + bytes), kPage - (aligned - begin));
  return reinterpret_cast<char*>(aligned);
}

// Subnormal numbers count as zero in kernels (contract C1), as on a GPU.
void flush_subnormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
  std::uint64_t fpcr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  asm volatile("msr fpcr, %0" : : "r"(fpcr | (std::uint64_t{1} << 24)));
#endif
}

std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));
extern "C" const char _end __attribute__((visibility("hidden")));

}  // namespace

__attribute__((tls_model("initial-exec"))) __thread Worker* Worker::current_ = nullptr;

Worker::Worker() : stack_area_(map_pages(kMaxStacks * kStackBytes)) {
  static_assert(std::is_trivially_copyable_v<SimdGroup>);
  simds_ = reinterpret_cast<SimdGroup*>(map_pages(kSimdBytes));
}

Worker::~Worker() {
  ::munmap(stack_area_, kMaxStacks * kStackBytes);
  ::munmap(simds_, kSimdBytes);
  for (Block& b : dynamic_) {
    if (b.pages != nullptr) ::munmap(b.pages, b.page_bytes);
  }
  for (Block& b : arrays_) {
    if (b.pages != nullptr) ::munmap(b.pages, b.page_bytes);
  }
}

void Worker::begin(const Launch& launch) {
  current_ = this;
  softmetal_known = &known_;
  flush_subnormals();
  launch_ = &launch;
  known_ = KnownMemory{};
  count_ = launch.threads[0] * launch.threads[1] * launch.threads[2];
  fibers_.resize(std::max<std::size_t>(fibers_.size(), count_));
  simd_count_ = (count_ + kSimdWidth - 1) / kSimdWidth;
  ready_.resize(count_);
  order_.resize(count_);
  for (std::uint32_t i = 0; i < count_; ++i) order_[i] = i;
  for (Block& b : arrays_) b.live = false;
  std::memcpy(context_.buffers, launch.buffers, sizeof context_.buffers);
  for (int i = 0; i < 8; ++i) {
    dynamic_[i].live = launch.threadgroup_bytes[i] != 0;
    if (dynamic_[i].live) allocate(dynamic_[i], launch.threadgroup_bytes[i]);
    context_.threadgroup_memory[i] = dynamic_[i].live ? dynamic_[i].data : nullptr;
  }
  for (int d = 0; d < 3; ++d) {
    context_.threads[d] = launch.threads[d];
    context_.groups[d] = launch.groups[d];
  }
}

Counters Worker::take_counters() { return std::exchange(counters_, {}); }

void Worker::run_group(std::uint64_t group) {
  group_ = group;
  const std::uint64_t x = launch_->groups[0], y = launch_->groups[1];
  context_.group[0] = static_cast<unsigned>(group % x);
  context_.group[1] = static_cast<unsigned>(group / x % y);
  context_.group[2] = static_cast<unsigned>(group / x / y);

  // What no thread has written yet is not a number.
  for (Block& b : dynamic_) {
    if (b.live) std::memset(b.data, 0xff, b.bytes);
  }
  for (Block& b : arrays_) {
    if (b.live) std::memset(b.data, 0xff, b.bytes);
  }
  for (std::uint32_t i = 0; i < count_; ++i) fibers_[i] = Fiber{};
  for (unsigned s = 0; s < simd_count_; ++s) {
    SimdGroup& g = simds_[s];
    g.lanes[0] = g.lanes[1] = 0;
    g.epoch = g.arrived = 0;
    g.alive = std::min<std::uint32_t>(kSimdWidth, count_ - s * kSimdWidth);
    g.line = 0;
  }
  alive_ = count_;
  at_barrier_ = 0;
  barrier_line_ = 0;
  if (launch_->seed != 0) {
    std::uint64_t random = mix(launch_->seed ^ (group * 0x632BE59BD9B4E019ull));
    for (std::uint32_t i = count_; i > 1; --i) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      std::swap(order_[i - 1], order_[(random >> 33) % i]);
    }
  }
  std::copy(order_.begin(), order_.end(), ready_.begin());
  ready_first_ = 0;
  ready_count_ = count_;

  ++counters_.threadgroups;
  counters_.threads += count_;
  if (take_next(running_)) softmetal_switch(&main_sp_, carrier());
  if (alive_ != 0) fail("deadlock: no thread can go on");
}

void Worker::carrier_main() {
  for (;;) here().run_thread();
}

void Worker::run_thread() {
  const std::uint32_t me = running_;
  ThreadContext context = context_;
  const unsigned x = launch_->threads[0], y = launch_->threads[1];
  context.place[0] = me % x;
  context.place[1] = me / x % y;
  context.place[2] = me / x / y;
  context.index = me;
  launch_->kernel->run(context);
  finish();
}

// The running kernel thread is done: on with the next one, on this carrier where that one has not started.
void Worker::finish() {
  fibers_[running_].state = State::kDone;
  --alive_;
  --simds_[running_ / kSimdWidth].alive;
  if (at_barrier_ != 0)
    fail("divergent threadgroup_barrier: this thread ended, others wait at line " + std::to_string(barrier_line_));
  release_simd(running_ / kSimdWidth);
  std::uint32_t next = 0;
  void* to = main_sp_;
  if (take_next(next)) {
    running_ = next;
    if (fibers_[next].state == State::kFresh) return;
    to = fibers_[next].sp;
  } else if (alive_ != 0) {
    fail("deadlock: thread " + std::to_string(running_) + " ended, and the others wait for something it did not do");
  }
  ++counters_.switches;
  idle_.push_back(nullptr);
  softmetal_switch(&idle_.back(), to);  // comes back when carrier() has taken this one and set running_
}

bool Worker::take_next(std::uint32_t& next) {
  if (ready_count_ == 0) return false;
  next = ready_[ready_first_];
  ready_first_ = ready_first_ + 1 == count_ ? 0 : ready_first_ + 1;
  --ready_count_;
  return true;
}

void* Worker::carrier() {
  if (!idle_.empty()) {
    void* sp = idle_.back();
    idle_.pop_back();
    return sp;
  }
  if (stacks_.size() == kMaxStacks) fail("a threadgroup has more threads than the device takes");
  char* stack = stack_area_ + stacks_.size() * kStackBytes;
  if (::mprotect(stack, kGuard, PROT_NONE) != 0) fail("no guard page for a stack");
  // Stacks begin at different places of their pages, or all their first lines would share a few sets of the cache.
  const std::size_t shift = stacks_.size() * 37 % 128 * 64;
  stacks_.push_back(stack);
  return prepare_stack(stack + kStackBytes - shift, &Worker::carrier_main);
}

// The running thread waits; it goes on when somebody has made it ready.
void Worker::wait_for_others() {
  const std::uint32_t me = running_;
  std::uint32_t next = 0;
  if (!take_next(next)) {
    fail("deadlock: thread " + std::to_string(me) + " waits at line " + std::to_string(fibers_[me].line) +
         " and all others have ended or wait elsewhere");
  }
  ++counters_.switches;
  running_ = next;
  softmetal_switch(&fibers_[me].sp, fibers_[next].state == State::kFresh ? carrier() : fibers_[next].sp);
}

void Worker::make_ready(std::uint32_t first, std::uint32_t count, State waiting) {
  const auto add = [&](std::uint32_t i) {
    if (fibers_[i].state != waiting || i == running_) return;
    fibers_[i].state = State::kReady;
    std::uint32_t at = ready_first_ + ready_count_;
    if (at >= count_) at -= count_;
    ready_[at] = i;
    ++ready_count_;
  };
  if (count == count_) {
    for (std::uint32_t k = 0; k < count; ++k) add(order_[k]);
    return;
  }
  const std::uint32_t turn = launch_->seed != 0 ? static_cast<std::uint32_t>(mix(launch_->seed + first + group_)) : 0;
  for (std::uint32_t k = 0; k < kSimdWidth; ++k) {
    const std::uint32_t i = first + ((k * (turn * 2 + 1) + turn / 32) % kSimdWidth);
    if (i < first + count) add(i);
  }
}

void Worker::release_simd(unsigned simd) {
  SimdGroup& g = simds_[simd];
  if (g.arrived == 0 || g.arrived != g.alive) return;
  g.arrived = 0;
  ++g.epoch;
  g.lanes[g.epoch % 2] = 0;
  g.line = 0;
  const std::uint32_t first = simd * kSimdWidth;
  make_ready(first, std::min(kSimdWidth, count_ - first), State::kSimd);
}

void Worker::release_barrier() {
  at_barrier_ = 0;
  barrier_line_ = 0;
  make_ready(0, count_, State::kBarrier);
}

void Worker::barrier(int line) {
  Fiber& me = fibers_[running_];
  ++counters_.barriers;
  if (at_barrier_ != 0 && barrier_line_ != line) {
    fail("divergent threadgroup_barrier: some threads are at line " + std::to_string(barrier_line_) + ", thread " +
         std::to_string(running_) + " at line " + std::to_string(line));
  }
  if (alive_ != count_) fail("divergent threadgroup_barrier at line " + std::to_string(line) + ": other threads have ended");
  barrier_line_ = line;
  me.line = line;
  me.state = State::kBarrier;
  if (++at_barrier_ == count_) {
    release_barrier();
    me.state = State::kReady;
    return;
  }
  wait_for_others();
}

const char* Worker::exchange(const void* in, std::size_t bytes, int line, std::uint32_t* lanes) {
  const unsigned simd = running_ / kSimdWidth, lane = running_ % kSimdWidth;
  SimdGroup& g = simds_[simd];
  Fiber& me = fibers_[running_];
  ++counters_.simd_operations;
  if (g.arrived != 0 && g.line != line) {
    fail("divergent simdgroup operation: some lanes are at line " + std::to_string(g.line) + ", thread " +
         std::to_string(running_) + " at line " + std::to_string(line));
  }
  const unsigned e = g.epoch % 2;
  std::memcpy(g.slots[e][lane], in, bytes);
  g.lanes[e] |= 1u << lane;
  g.line = line;
  me.line = line;
  me.state = State::kSimd;
  if (++g.arrived == g.alive) {
    release_simd(simd);
    me.state = State::kReady;
  } else {
    wait_for_others();
  }
  *lanes = g.lanes[e];
  return g.slots[e][0];
}

void Worker::allocate(Block& block, std::size_t bytes) {
  if (block.page_bytes < bytes) {
    if (block.pages != nullptr) ::munmap(block.pages, block.page_bytes);
    block.page_bytes = (bytes + kPage - 1) / kPage * kPage;
    block.pages = map_pages(block.page_bytes);
  }
  block.bytes = bytes;
  block.data = block.pages + (block.page_bytes - bytes) / 16 * 16;
}

void* Worker::threadgroup_array(int id, std::size_t bytes) {
  if (static_cast<std::size_t>(id) >= arrays_.size()) arrays_.resize(static_cast<std::size_t>(id) + 1);
  Block& block = arrays_[static_cast<std::size_t>(id)];
  if (!block.live) {
    allocate(block, bytes);
    block.live = true;
    std::memset(block.data, 0xff, bytes);
    std::size_t total = 0;
    for (const Block& b : arrays_) total += b.live ? b.bytes : 0;
    for (const Block& b : dynamic_) total += b.live ? b.bytes : 0;
    if (total > 32768) fail("more than 32 KiB of threadgroup memory: " + std::to_string(total) + " bytes");
  }
  return block.data;
}

// Everything a kernel touches must be a resident region, threadgroup memory of this group, its arguments, its own stack or a
// constant of the program.
void Worker::check(std::uintptr_t address, std::size_t bytes, bool write) {
  const std::uintptr_t end = address + bytes;
  const auto inside = [&](const void* begin, std::size_t size, bool writable) {
    const auto b = reinterpret_cast<std::uintptr_t>(begin);
    if (address < b || end > b + size || end < address || (write && !writable)) return false;
    known_.slot(address, write) = {b, b + size};
    return true;
  };
  for (const Block& b : dynamic_) {
    if (b.live && inside(b.data, b.bytes, true)) return;
  }
  for (const Block& b : arrays_) {
    if (b.live && inside(b.data, b.bytes, true)) return;
  }
  if (inside(stack_area_, kMaxStacks * kStackBytes, true) || inside(simds_, kSimdBytes, false)) return;
  const auto& memory = launch_->memory;
  auto r =
      std::upper_bound(memory.begin(), memory.end(), address, [](std::uintptr_t a, const MemoryRange& m) { return a < m.begin; });
  if (r != memory.begin()) {
    --r;
    const auto* begin = reinterpret_cast<const void*>(r->begin);
    if (inside(begin, r->end - r->begin, r->writable)) return;
    if (address < r->end && end <= r->end) fail("write to memory that is only readable (constant arguments?)");
  }
  const auto image = reinterpret_cast<std::uintptr_t>(&__ehdr_start);
  if (inside(&__ehdr_start, reinterpret_cast<std::uintptr_t>(&_end) - image, false)) return;
  char text[160];
  std::snprintf(text, sizeof text,
                "%s of %zu bytes at 0x%llx, which is in no resident region, nor in threadgroup memory: out of bounds, not "
                "registered, or not declared resident",
                write ? "write" : "read", bytes, static_cast<unsigned long long>(address));
  fail(text);
}

std::string Worker::where() const {
  std::string s = "kernel ";
  s += launch_->kernel->name;
  s += ", threadgroup (" + std::to_string(context_.group[0]) + ", " + std::to_string(context_.group[1]) + ", " +
       std::to_string(context_.group[2]) + "), thread " + std::to_string(running_);
  return s;
}

void Worker::fail(const std::string& what) const { violation(where() + ": " + what); }

void violation(const std::string& what) {
  std::fprintf(stderr, "software Metal device: %s\n", what.c_str());
  std::abort();
}

}  // namespace softmetal

using softmetal::Worker;

extern "C" {

void softmetal_barrier(int line) { Worker::here().barrier(line); }
const char* softmetal_exchange(const void* in, unsigned long bytes, int line, unsigned* lanes) {
  return Worker::here().exchange(in, bytes, line, lanes);
}
unsigned softmetal_lane(void) { return Worker::here().lane(); }
void* softmetal_threadgroup_array(int id, unsigned long bytes) { return Worker::here().threadgroup_array(id, bytes); }

}  // extern "C"

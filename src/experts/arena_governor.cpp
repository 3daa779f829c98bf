#include "experts/arena_governor.h"

#include <algorithm>
#include <cassert>

namespace colibri {
namespace {

constexpr double kMargin = 0.03;                              // of the budget, that a process may take more
constexpr std::uint64_t kDisplacedShare = 64;                 // of the budget, that may be displaced unanswered
constexpr double kSwapping = 32.0 * (1 << 20);                // bytes a second
constexpr double kThrashing = 128.0 * (1 << 20);              // bytes a second in both directions
constexpr double kSettle = 5;                                 // seconds until the whole system has felt what was given up
constexpr double kShortestWait = 10, kLongestWait = 64 * 10;  // calm seconds before slots come back
constexpr double kEcho = 60;                                  // seconds in which pressure is taken for the answer to a growth
constexpr std::int64_t kGrowth = 16;                          // a growth is this part of the arena
constexpr double kCalm = 0.5;                                 // the strongest sign at which it is calm

double growth(std::uint64_t now, std::uint64_t before) { return now > before ? static_cast<double>(now - before) : 0; }

}  // namespace

ArenaGovernor::ArenaGovernor(const ArenaLimits& limits)
    : limits_(limits), slots_(limits.slots), ceiling_(limits.slots + 1), wait_(kShortestWait) {
  assert(limits.least > 0 && limits.least <= limits.slots && limits.slot_bytes > 0 && limits.budget > 0);
}

double ArenaGovernor::Signs::unrest() const { return std::max({budget, displacing, swapping, thrashing}); }

ArenaGovernor::Signs ArenaGovernor::read(const MemorySample& sample) const {
  Signs signs;
  signs.budget = growth(sample.footprint, limits_.budget) / (kMargin * static_cast<double>(limits_.budget));
  const auto unanswered = static_cast<double>(std::max(limits_.slot_bytes, limits_.budget / kDisplacedShare));
  signs.displaced = growth(sample.displaced, displaced_) / unanswered;
  signs.displacing = growth(sample.displaced, last_.displaced) / unanswered;
  const double seconds = sample.seconds - last_.seconds;
  if (seconds <= 0) return signs;
  signs.swapping = growth(sample.swapped_out, last_.swapped_out) / seconds / kSwapping;
  const double both_ways = std::min(growth(sample.compressed, last_.compressed), growth(sample.decompressed, last_.decompressed));
  signs.thrashing = both_ways / seconds / kThrashing;
  return signs;
}

std::int64_t ArenaGovernor::slots_of(std::uint64_t bytes) const {
  return static_cast<std::int64_t>((bytes + limits_.slot_bytes - 1) / limits_.slot_bytes);
}

// The largest of what the signs ask for, not the sum: they show the same shortage.
std::int64_t ArenaGovernor::to_give(const MemorySample& sample, const Signs& signs) {
  std::int64_t count = 0;
  if (signs.budget > 1) count = slots_of(sample.footprint - limits_.budget);
  if (signs.displaced > 1) {
    count = std::max(count, slots_of(sample.displaced - displaced_));
    displaced_ = sample.displaced;
  }
  const bool critical = sample.pressure == MemoryPressure::kCritical || signs.swapping > 1;
  const bool warning = sample.pressure == MemoryPressure::kWarning || signs.thrashing > 1;
  if ((critical || warning) && sample.seconds - yielded_at_ >= kSettle) {
    std::int64_t share = critical ? (slots_ + 3) / 4 : (slots_ + 7) / 8;
    if (!critical) share = std::min(share, std::max<std::int64_t>(0, slots_ - (limits_.slots + 1) / 2));
    yielded_at_ = sample.seconds;
    count = std::max(count, share);
  }
  return count;
}

std::int64_t ArenaGovernor::update(const MemorySample& sample) {
  if (first_) {  // what the system did before is none of ours
    first_ = false;
    last_ = sample;
    displaced_ = sample.displaced;
    calm_since_ = sample.seconds;
    yielded_at_ = sample.seconds - kSettle;
  }
  displaced_ = std::min(displaced_, sample.displaced);
  const Signs signs = read(sample);
  const std::int64_t count = to_give(sample, signs);
  last_ = sample;
  if (signs.unrest() > kCalm || sample.pressure != MemoryPressure::kNormal) calm_since_ = sample.seconds;
  if (count > 0)
    give(count, sample.seconds);
  else
    grow(sample);
  return slots_;
}

void ArenaGovernor::give(std::int64_t count, double now) {
  if (grown_at_ && now - *grown_at_ <= kEcho) {
    ceiling_ = std::min(ceiling_, slots_);
    wait_ = std::min(2 * wait_, kLongestWait);
  }
  grown_at_.reset();
  slots_ = std::max(limits_.least, slots_ - count);
}

void ArenaGovernor::grow(const MemorySample& sample) {
  std::int64_t count = std::min(std::max<std::int64_t>(1, limits_.slots / kGrowth), limits_.slots - slots_);
  const bool above = slots_ >= ceiling_;
  const double needed = above ? kEcho : slots_ + count >= ceiling_ ? wait_ : kShortestWait;
  if (sample.seconds - calm_since_ < needed) return;
  if (above) {  // there is room now where there was none
    ceiling_ = limits_.slots + 1;
    wait_ = kShortestWait;
  }
  const std::uint64_t room = sample.footprint < limits_.budget ? limits_.budget - sample.footprint : 0;
  count = std::min(count, static_cast<std::int64_t>(room / limits_.slot_bytes));
  if (count == 0) return;
  slots_ += count;
  calm_since_ = sample.seconds;
  grown_at_ = sample.seconds;
}

}  // namespace colibri

// Lays out one part after another in a block of device memory.
#pragma once

#include "base/aligned.h"
#include "gpu/region_table.h"

namespace colibri::gpu {

class Placer {
 public:
  explicit Placer(Address memory) : memory_(memory) {}  // 0: only to count
  Address take(std::uint64_t bytes) {
    const Address at = memory_ + used_;
    used_ += round_up(bytes, kPartAlignment);
    return at;
  }
  Address floats(std::int64_t count) { return take(static_cast<std::uint64_t>(count) * sizeof(float)); }
  std::uint64_t used() const { return used_; }

 private:
  static constexpr std::uint64_t kPartAlignment = 256;
  Address memory_;
  std::uint64_t used_ = 0;
};

}  // namespace colibri::gpu

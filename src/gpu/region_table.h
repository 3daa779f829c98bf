// Which host memory a device can use, and where the device sees it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace colibri::gpu {

// Of a byte, as a kernel sees it; 0 is nowhere.
using Address = std::uint64_t;

// A multiple of the page size of every system we run on (16 KiB on Apple silicon).
inline constexpr std::uint64_t kRegionAlignment = 16384;

class RegionTable {
 public:
  struct Region {
    const std::byte* base = nullptr;
    std::uint64_t bytes = 0;
    Address address = 0;
  };
  // Refuses what is empty, unaligned or overlaps a region that is there.
  Result<void> check(const void* base, std::uint64_t bytes, std::uint64_t longest) const;
  void add(const void* base, std::uint64_t bytes, Address address);  // after check()
  bool remove(const void* base);                                     // false when no region starts there
  Address address(const void* p) const;                              // 0 when in no region

  const std::vector<Region>& regions() const { return regions_; }  // by rising base
  std::uint64_t total_bytes() const;

 private:
  std::vector<Region> regions_;
};

}  // namespace colibri::gpu

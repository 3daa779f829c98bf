#include "gpu/region_table.h"

#include <algorithm>

namespace colibri::gpu {

Result<void> RegionTable::check(const void* base, std::uint64_t bytes, std::uint64_t longest) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  if (bytes == 0 || begin % kRegionAlignment != 0 || bytes % kRegionAlignment != 0)
    return fail("memory at {} of {} bytes cannot be registered with the GPU: expected start and length in multiples of {}", base,
                bytes, kRegionAlignment);
  if (bytes > longest) return fail("a region of {} bytes is longer than the {} that the GPU takes in one buffer", bytes, longest);
  for (const Region& r : regions_) {
    const auto other = reinterpret_cast<std::uintptr_t>(r.base);
    if (begin < other + r.bytes && other < begin + bytes)
      return fail("memory at {} of {} bytes is registered with the GPU already, at {} with {} bytes", base, bytes,
                  static_cast<const void*>(r.base), r.bytes);
  }
  return {};
}

void RegionTable::add(const void* base, std::uint64_t bytes, Address address) {
  const Region region{static_cast<const std::byte*>(base), bytes, address};
  const auto at = std::upper_bound(regions_.begin(), regions_.end(), region,
                                   [](const Region& a, const Region& b) { return a.base < b.base; });
  regions_.insert(at, region);
}

bool RegionTable::remove(const void* base) {
  const auto it = std::find_if(regions_.begin(), regions_.end(), [base](const Region& r) { return r.base == base; });
  if (it == regions_.end()) return false;
  regions_.erase(it);
  return true;
}

Address RegionTable::address(const void* p) const {
  const auto* byte = static_cast<const std::byte*>(p);
  const auto after =
      std::upper_bound(regions_.begin(), regions_.end(), byte, [](const std::byte* b, const Region& r) { return b < r.base; });
  if (after == regions_.begin()) return 0;
  const Region& r = *std::prev(after);
  const auto offset = static_cast<std::uint64_t>(byte - r.base);
  return offset < r.bytes ? r.address + offset : 0;
}

std::uint64_t RegionTable::total_bytes() const {
  std::uint64_t total = 0;
  for (const Region& r : regions_) total += r.bytes;
  return total;
}

}  // namespace colibri::gpu

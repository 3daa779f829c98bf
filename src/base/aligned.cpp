#include "base/aligned.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace colibri {
namespace {

constexpr std::size_t kMapThreshold = std::size_t{1} << 20;

}  // namespace

AlignedBytes::AlignedBytes(std::size_t bytes, std::size_t alignment) : size_(bytes) {
  const std::size_t total = round_up(bytes + kReadSlack, std::max(alignment, kWeightAlignment));
  if (total >= kMapThreshold && alignment <= kPageAlignment) {
    map(total);
    return;
  }
  data_ = static_cast<std::byte*>(std::aligned_alloc(std::max(alignment, kWeightAlignment), total));
  if (!data_) throw std::bad_alloc();
  std::memset(data_, 0, total);
}

AlignedBytes AlignedBytes::pages(std::size_t bytes) {
  AlignedBytes result;
  result.size_ = bytes;
  result.map(bytes + kReadSlack);
  return result;
}

// Systems with small pages align to those, so more is mapped than needed and the ends are given back.
void AlignedBytes::map(std::size_t bytes) {
  mapped_ = round_up(bytes, kPageAlignment);
  const std::size_t taken = mapped_ + kPageAlignment;
  void* p = ::mmap(nullptr, taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(p);
  const std::size_t before =
      round_up(reinterpret_cast<std::uintptr_t>(begin), kPageAlignment) - reinterpret_cast<std::uintptr_t>(begin);
  if (before > 0) ::munmap(begin, before);
  if (before < kPageAlignment) ::munmap(begin + before + mapped_, kPageAlignment - before);
  data_ = begin + before;
#ifdef MADV_HUGEPAGE
  ::madvise(data_, mapped_, MADV_HUGEPAGE);
#endif
}

AlignedBytes::~AlignedBytes() {
  if (mapped_)
    ::munmap(data_, mapped_);
  else
    std::free(data_);
}

}  // namespace colibri

#include "base/aligned.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace colibri {
namespace {

constexpr std::size_t kMapThreshold = std::size_t{1} << 20;
constexpr std::size_t kPage = 16384;  // the largest page size of the systems we run on

}  // namespace

AlignedBytes::AlignedBytes(std::size_t bytes, std::size_t alignment) : size_(bytes) {
  const std::size_t total = round_up(bytes + kReadSlack, std::max(alignment, kWeightAlignment));
  if (total >= kMapThreshold && alignment <= 4096) {
    mapped_ = round_up(total, kPage);
    void* p = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    ::madvise(p, mapped_, MADV_HUGEPAGE);
#endif
    data_ = static_cast<std::byte*>(p);
    return;
  }
  data_ = static_cast<std::byte*>(std::aligned_alloc(std::max(alignment, kWeightAlignment), total));
  if (!data_) throw std::bad_alloc();
  std::memset(data_, 0, total);
}

AlignedBytes::~AlignedBytes() {
  if (mapped_)
    ::munmap(data_, mapped_);
  else
    std::free(data_);
}

}  // namespace colibri

#include "experts/disk_probe_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#ifdef __linux__
#include <sys/syscall.h>
#endif

namespace colibri {
namespace {

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

#ifdef __linux__
// cachestat of Linux 6.5, which the C library does not know yet. The number is the same on every architecture.
constexpr long kCachestat = 451;
struct CacheRange {
  std::uint64_t offset, bytes;
};
struct CacheCounts {
  std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
};
#endif

// A mapping that is never read: mincore wants one. It lives for the question only and covers some megabytes.
std::optional<std::uint64_t> ask_mincore(int fd, std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t page = page_bytes();
  const std::uint64_t first = offset / page * page;
  const std::uint64_t length = offset + bytes - first;
  void* const mapping = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(first));
  if (mapping == MAP_FAILED) return std::nullopt;
#ifdef __APPLE__
  using PageState = char;
#else
  using PageState = unsigned char;
#endif
  std::vector<PageState> pages((length + page - 1) / page);
  const int result = ::mincore(mapping, length, pages.data());
  ::munmap(mapping, length);
  if (result != 0) return std::nullopt;
  return page * static_cast<std::uint64_t>(std::count_if(pages.begin(), pages.end(), [](PageState state) { return state & 1; }));
}

}  // namespace

std::optional<std::uint64_t> cached_bytes(int fd, std::uint64_t offset, std::uint64_t bytes) {
#ifdef __linux__
  CacheRange range{offset, bytes};
  CacheCounts counts = {};
  if (::syscall(kCachestat, fd, &range, &counts, 0u) == 0) return counts.cached * page_bytes();
#endif
  return ask_mincore(fd, offset, bytes);
}

void drop_cached([[maybe_unused]] int fd, [[maybe_unused]] std::uint64_t offset, [[maybe_unused]] std::uint64_t bytes) {
#ifdef POSIX_FADV_DONTNEED
  ::posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
#endif
}

}  // namespace colibri

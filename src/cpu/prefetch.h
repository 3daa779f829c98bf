// Asking for memory before it is read. Included by each instruction set's file, which makes its own copy (see superblock.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace colibri::cpu {
namespace {

inline constexpr std::int64_t kCacheLine = 64;  // bytes; a core with longer lines is asked twice for the same

// The line at p into the first-level cache. As an instruction of its own: for the compiler's builtin a function that does
// nothing else has no effect, and GCC 12 leaves the calls out.
inline void prefetch_line(const std::byte* p) {
#if defined(__x86_64__)
  asm volatile("prefetcht0 %0" : : "m"(*p));
#elif defined(__aarch64__)
  asm volatile("prfm pldl1keep, %0" : : "Q"(*p));
#endif
}

// All lines of a range, as far as they begin before `end`.
inline void prefetch_range(const std::byte* from, std::int64_t bytes, const std::byte* end) {
  const std::int64_t left = end - from;
  const std::int64_t count = bytes < left ? bytes : left;
  for (std::int64_t b = 0; b < count; b += kCacheLine) prefetch_line(from + b);
}

}  // namespace
}  // namespace colibri::cpu

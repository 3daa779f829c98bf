// Asking for memory before it is read. Included by each instruction set's file, which makes its own copy (see superblock.h).
#pragma once

#include <cstdint>

namespace colibri::cpu {
namespace {

inline constexpr std::int64_t kCacheLine = 64;  // bytes; a core with longer lines is asked twice for the same

// What is asked for may lie past the end of what is read, or of anything: an address, then, and no pointer.
using Address = std::intptr_t;
inline Address address_of(const void* p) { return reinterpret_cast<Address>(p); }

// The line at an address into the first-level cache. As an instruction of its own: for the compiler's builtin a function
// that does nothing else has no effect, and GCC 12 leaves the calls out.
inline void prefetch_line(Address at) {
#if defined(__x86_64__)
  asm volatile("prefetcht0 (%0)" : : "r"(at));
#elif defined(__aarch64__)
  asm volatile("prfm pldl1keep, [%0]" : : "r"(at));
#endif
}

// All lines of a range, as far as they begin before `end`.
inline void prefetch_range(Address from, std::int64_t bytes, Address end) {
  for (std::int64_t b = 0; b < bytes && from < end; b += kCacheLine, from += kCacheLine) prefetch_line(from);
}

}  // namespace
}  // namespace colibri::cpu

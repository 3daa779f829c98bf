// Rule C1 of docs/numerics.md: subnormals count as zero on every thread that computes.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace colibri {

// Sets flush-to-zero (and denormals-are-zero) for the life of the guard and puts the caller's mode back.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(read()) { write(saved_ | kBits); }
  ~FlushDenormals() { write(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr std::uint64_t kBits = 0x8040;  // FTZ and DAZ of MXCSR
  static std::uint64_t read() { return _mm_getcsr(); }
  static void write(std::uint64_t v) { _mm_setcsr(static_cast<unsigned>(v)); }
#elif defined(__aarch64__)
  static constexpr std::uint64_t kBits = std::uint64_t{1} << 24;  // FZ of FPCR
  static std::uint64_t read() {
    std::uint64_t v;
    asm volatile("mrs %0, fpcr" : "=r"(v));
    return v;
  }
  static void write(std::uint64_t v) { asm volatile("msr fpcr, %0" : : "r"(v)); }
#else
#error "colibri supports x86-64 and AArch64"
#endif
  std::uint64_t saved_;
};

}  // namespace colibri

// Which tables this machine can use, decided once.
#include "cpu/kernels.h"

#include <algorithm>

#include "base/aligned.h"
#include "cpu/tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace colibri {
namespace {

#if defined(__x86_64__)
struct X86Features {
  bool avx2 = false;    // AVX2, FMA and F16C
  bool avx512 = false;  // F, BW, DQ and VL besides
};

// An instruction set counts only when the system saves its registers too: XCR0 says so.
X86Features x86_features() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return {};
  constexpr unsigned kFma = 1u << 12, kXsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
  constexpr unsigned kNeeded = kFma | kXsave | kAvx | kF16c;
  if ((c & kNeeded) != kNeeded) return {};
  unsigned xcr0 = 0, high = 0;
  asm volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
  constexpr unsigned kYmm = 0x06, kZmm = 0xe6;
  if ((xcr0 & kYmm) != kYmm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  constexpr unsigned kAvx2 = 1u << 5, kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  X86Features f;
  f.avx2 = b & kAvx2;
  f.avx512 = f.avx2 && (b & kAvx512) == kAvx512 && (xcr0 & kZmm) == kZmm;
  return f;
}
#endif

std::vector<const Kernels*> usable_tables() {
  std::vector<const Kernels*> tables;
#if defined(__x86_64__)
  const X86Features f = x86_features();
  if (f.avx512) tables.push_back(&cpu::kAvx512Kernels);
  if (f.avx2) tables.push_back(&cpu::kAvx2Kernels);
#elif defined(__aarch64__)
  tables.push_back(&cpu::kNeonKernels);
#endif
  tables.push_back(&cpu::kScalarKernels);
  return tables;
}

}  // namespace

std::int64_t kernel_scratch_bytes(std::int64_t cols) {
  // The scalar products: a chunk of 32 decoded rows, as many scaled inputs, and a row of scales. The vector products need
  // less than kVectorBytes, but for one row of x (ProductScratch and TransposedScratch).
  constexpr std::int64_t kVectorBytes = 256 * 1024;
  const std::int64_t padded = static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(cols), 32));
  return std::max(kVectorBytes, static_cast<std::int64_t>(sizeof(float)) * 65 * padded);
}

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> tables = usable_tables();
  return tables;
}

const Kernels& best_kernels() { return *available_kernels().front(); }

const Kernels* find_kernels(std::string_view name) {
  for (const Kernels* k : available_kernels())
    if (k->name == name) return k;
  return nullptr;
}

}  // namespace colibri

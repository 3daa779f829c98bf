// The calls that -fsanitize=kernel-address puts before every access to memory. They are there when it does so, and inlined by
// a second run of the compiler (see CMakeLists.txt).
#pragma once

#include "../executor/memory_check.h"

#define MSL_CHECK inline __attribute__((used, always_inline, no_sanitize("kernel-address")))

namespace msl {
MSL_CHECK void check(unsigned long address, unsigned long bytes, bool write) {
  const softmetal::KnownMemory::Range& known = softmetal_known->slot(address, write);
  if (__builtin_expect(address < known.begin || address + bytes > known.end, 0)) softmetal_check(address, bytes, write);
}
}  // namespace msl

#define MSL_ACCESS(bytes)                                                                            \
  MSL_CHECK void __softmetal_load##bytes##_noabort(unsigned long a) { msl::check(a, bytes, false); } \
  MSL_CHECK void __softmetal_store##bytes##_noabort(unsigned long a) { msl::check(a, bytes, true); }

extern "C" {
MSL_ACCESS(1)
MSL_ACCESS(2)
MSL_ACCESS(4)
MSL_ACCESS(8)
MSL_ACCESS(16)
MSL_CHECK void __softmetal_loadN_noabort(unsigned long a, unsigned long bytes) { msl::check(a, bytes, false); }
MSL_CHECK void __softmetal_storeN_noabort(unsigned long a, unsigned long bytes) { msl::check(a, bytes, true); }
}

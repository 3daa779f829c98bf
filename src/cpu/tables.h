// The tables that kernels.cpp chooses from, one per instruction set compiled into this program.
#pragma once

#include "cpu/kernels.h"

namespace colibri::cpu {

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;    // x86-64
extern const Kernels kAvx512Kernels;  // x86-64
extern const Kernels kNeonKernels;    // AArch64

// Weight rows the vector products widen at a time at most, and rows of x they hold sums for.
inline constexpr std::int64_t kLargestOutputBlock = 24;
inline constexpr std::int64_t kRowPanel = 64;

// Outputs that the scalar products decode at a time, so that a row of x is unpacked once for all of them.
inline constexpr std::int64_t kScalarBlock = 8;

}  // namespace colibri::cpu

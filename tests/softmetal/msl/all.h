// Metal Shading Language, the part that compute kernels of this project use, as C++ for clang. Two ways:
//   kernels that run   address spaces are nothing, threads are fibers of ../executor
//   MSL_LINT           device, constant and threadgroup are address spaces that do not mix, for -fsyntax-only
// No header of the C library comes in: its names (exp, max, uint) are Metal's here.
#pragma once

#include "types.h"
// In this order.
#include "atomic.h"
#include "math.h"
#include "simd.h"
#ifdef MSL_LINT
namespace msl {
template <class T, int kId>
threadgroup T& threadgroup_array();
}
#else
#include "checks.h"
#include "entry.h"
#endif

// Relaxed atomics, the only order that device memory offers.
#pragma once

#include "simd.h"

namespace metal {

enum memory_order { memory_order_relaxed };

template <class T>
struct atomic {
  T value;
};
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;

#ifdef MSL_LINT
// Declared for the address spaces that Metal has them in.
#define MSL_DECLARE(space, name)                                                       \
  uint atomic_##name##_explicit(volatile space atomic_uint* at, uint x, memory_order); \
  int atomic_##name##_explicit(volatile space atomic_int* at, int x, memory_order);
#define MSL_DECLARE_ALL(space)                                                      \
  MSL_DECLARE(space, fetch_add)                                                     \
  MSL_DECLARE(space, fetch_sub)                                                     \
  MSL_DECLARE(space, fetch_max)                                                     \
  MSL_DECLARE(space, fetch_min)                                                     \
  MSL_DECLARE(space, fetch_or)                                                      \
  MSL_DECLARE(space, fetch_and)                                                     \
  MSL_DECLARE(space, fetch_xor)                                                     \
  MSL_DECLARE(space, exchange)                                                      \
  uint atomic_load_explicit(const volatile space atomic_uint* at, memory_order);    \
  int atomic_load_explicit(const volatile space atomic_int* at, memory_order);      \
  void atomic_store_explicit(volatile space atomic_uint* at, uint x, memory_order); \
  void atomic_store_explicit(volatile space atomic_int* at, int x, memory_order);
MSL_DECLARE_ALL(device)
MSL_DECLARE_ALL(threadgroup)
#else
template <class T>
struct Plain {
  using Type = T;
};
#define MSL_FETCH(name, result)                                                                                \
  template <class T>                                                                                           \
  MSL_INLINE T atomic_##name##_explicit(volatile atomic<T>* at, typename Plain<T>::Type x, memory_order) {     \
    T old = __atomic_load_n(&at->value, __ATOMIC_RELAXED);                                                     \
    while (!__atomic_compare_exchange_n(&at->value, &old, result, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { \
    }                                                                                                          \
    return old;                                                                                                \
  }
MSL_FETCH(fetch_add, old + x)
MSL_FETCH(fetch_sub, old - x)
MSL_FETCH(fetch_max, old > x ? old : x)
MSL_FETCH(fetch_min, old < x ? old : x)
MSL_FETCH(fetch_or, old | x)
MSL_FETCH(fetch_and, old& x)
MSL_FETCH(fetch_xor, old ^ x)
MSL_FETCH(exchange, x)
#undef MSL_FETCH
template <class T>
MSL_INLINE T atomic_load_explicit(const volatile atomic<T>* at, memory_order) {
  return __atomic_load_n(&at->value, __ATOMIC_RELAXED);
}
template <class T>
MSL_INLINE void atomic_store_explicit(volatile atomic<T>* at, typename Plain<T>::Type x, memory_order) {
  __atomic_store_n(&at->value, x, __ATOMIC_RELAXED);
}
#endif

}  // namespace metal

using metal::atomic_int;
using metal::atomic_uint;

// Barriers and what the 32 lanes of a simdgroup do together. Sums over a simdgroup are offered for whole numbers only: Apple
// does not say in what order a simd_sum of floats adds, so the arithmetic contract has no use for it.
#pragma once

#include "../executor/kernel_abi.h"
#include "math.h"

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
MSL_INLINE mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }

#define MSL_LINE int line = __builtin_LINE()

MSL_INLINE void threadgroup_barrier(mem_flags, MSL_LINE) { softmetal_barrier(line); }
MSL_INLINE void simdgroup_barrier(mem_flags, MSL_LINE) {
  uint lanes;
  const char nothing = 0;
  softmetal_exchange(&nothing, 1, line, &lanes);
}

// What every lane of the simdgroup gave.
template <class T>
struct Lanes {
  const char* slots;
  uint mask;
  MSL_INLINE_MEMBER Lanes(T mine, int line) { slots = softmetal_exchange(&mine, sizeof mine, line, &mask); }
  MSL_INLINE_MEMBER bool has(int i) const { return mask >> i & 1; }
  MSL_INLINE_MEMBER T operator[](int i) const {
    T t;
    __builtin_memcpy(&t, slots + i * 64, sizeof t);
    return t;
  }
  template <class F>
  MSL_INLINE_MEMBER T fold(T start, F f) const {
    for (int i = 0; i < 32; ++i) {
      if (has(i)) start = f(start, (*this)[i]);
    }
    return start;
  }
};

template <class T>
MSL_INLINE T simd_sum(T x, MSL_LINE) {
  static_assert((T)0.5f == (T)0, "simd_sum of floats has no defined order");
  return Lanes<T>(x, line).fold(T(0), [](T a, T b) { return T(a + b); });
}
template <class T>
MSL_INLINE T simd_max(T x, MSL_LINE) {
  return Lanes<T>(x, line).fold(x, [](T a, T b) { return max(a, b); });
}
template <class T>
MSL_INLINE T simd_min(T x, MSL_LINE) {
  return Lanes<T>(x, line).fold(x, [](T a, T b) { return min(a, b); });
}
template <class T>
MSL_INLINE T simd_or(T x, MSL_LINE) {
  return Lanes<T>(x, line).fold(x, [](T a, T b) { return T(a | b); });
}
template <class T>
MSL_INLINE T simd_and(T x, MSL_LINE) {
  return Lanes<T>(x, line).fold(x, [](T a, T b) { return T(a & b); });
}
MSL_INLINE bool simd_any(bool x, MSL_LINE) { return simd_or((uint)x, line) != 0; }
MSL_INLINE bool simd_all(bool x, MSL_LINE) { return simd_and((uint)x, line) != 0; }
MSL_INLINE ulong simd_ballot_mask(bool x, int line) {
  const Lanes<uchar> l((uchar)x, line);
  ulong r = 0;
  for (int i = 0; i < 32; ++i) r |= l.has(i) && l[i] ? 1ul << i : 0;
  return r;
}
struct simd_vote {
  typedef ulong vote_t;
  vote_t bits;
  MSL_INLINE_MEMBER explicit operator vote_t() const { return bits; }
  MSL_INLINE_MEMBER bool all() const { return bits == 0xfffffffful; }
  MSL_INLINE_MEMBER bool any() const { return bits != 0; }
};
MSL_INLINE simd_vote simd_ballot(bool x, MSL_LINE) { return simd_vote{simd_ballot_mask(x, line)}; }

// A lane that has ended or is out of range leaves nothing to read: its value is not defined, here all bits are set.
template <class T>
MSL_INLINE T simd_from(const Lanes<T>& lanes, int i) {
  T t;
  __builtin_memset(&t, 0xff, sizeof t);
  return i >= 0 && i < 32 && lanes.has(i) ? lanes[i] : t;
}
template <class T>
MSL_INLINE T simd_shuffle(T x, ushort i, MSL_LINE) {
  return simd_from(Lanes<T>(x, line), i);
}
template <class T>
MSL_INLINE T simd_broadcast(T x, ushort i, MSL_LINE) {
  return simd_from(Lanes<T>(x, line), i);
}
template <class T>
MSL_INLINE T simd_broadcast_first(T x, MSL_LINE) {
  const Lanes<T> l(x, line);
  return l[__builtin_ctz(l.mask)];
}
template <class T>
MSL_INLINE T simd_shuffle_xor(T x, ushort bits, MSL_LINE) {
  return simd_from(Lanes<T>(x, line), (int)(softmetal_lane() ^ bits));
}
template <class T>
MSL_INLINE T simd_shuffle_down(T x, ushort by, MSL_LINE) {
  return simd_from(Lanes<T>(x, line), (int)softmetal_lane() + by);
}
template <class T>
MSL_INLINE T simd_shuffle_up(T x, ushort by, MSL_LINE) {
  return simd_from(Lanes<T>(x, line), (int)softmetal_lane() - by);
}
template <class T>
MSL_INLINE T simd_prefix_exclusive_sum(T x, MSL_LINE) {
  static_assert((T)0.5f == (T)0, "sums of floats over a simdgroup have no defined order");
  const Lanes<T> l(x, line);
  T sum = T(0);
  for (int i = 0; i < (int)softmetal_lane(); ++i) sum += l.has(i) ? l[i] : T(0);
  return sum;
}
template <class T>
MSL_INLINE T simd_prefix_inclusive_sum(T x, MSL_LINE) {
  return T(simd_prefix_exclusive_sum(x, line) + x);
}
MSL_INLINE bool simd_is_first(MSL_LINE) {
  const Lanes<uchar> l(0, line);
  return softmetal_lane() == (uint)__builtin_ctz(l.mask);
}

}  // namespace metal

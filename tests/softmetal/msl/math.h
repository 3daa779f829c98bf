// Arithmetic. Every function rounds as safe mode and contract C1 ask: fma is fused and nothing else is.
#pragma once

#include "types.h"

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT 3.402823466e+38f
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define M_PI_F 3.14159265358979323846f
#define M_LN2_F 0.69314718055994530942f
#define M_LOG2E_F 1.44269504088896340736f

namespace metal {

template <class A, class B>
struct is_same {
  static constexpr bool value = false;
};
template <class A>
struct is_same<A, A> {
  static constexpr bool value = true;
};
template <class A, class B>
constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, class T, class F>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;

#define MSL_EACH(name, builtin) \
  template <class T>            \
  MSL_INLINE T name(T x) {      \
    return builtin(x);          \
  }
MSL_EACH(floor, __builtin_elementwise_floor)
MSL_EACH(ceil, __builtin_elementwise_ceil)
MSL_EACH(trunc, __builtin_elementwise_trunc)
MSL_EACH(rint, __builtin_elementwise_rint)
MSL_EACH(round, __builtin_elementwise_round)
MSL_EACH(abs, __builtin_elementwise_abs)
MSL_EACH(fabs, __builtin_elementwise_abs)
#undef MSL_EACH

// Of two types, the one that their sum has; a vector's with a scalar is the vector's.
template <class A, class B>
struct Common {
  using T = decltype(A() + B());
};
template <class A>
struct Common<A, A> {
  using T = A;
};
#define MSL_PAIR(name, builtin)                        \
  template <class A, class B>                          \
  MSL_INLINE typename Common<A, B>::T name(A a, B b) { \
    using T = typename Common<A, B>::T;                \
    return builtin((T)a, (T)b);                        \
  }
MSL_PAIR(max, __builtin_elementwise_max)
MSL_PAIR(min, __builtin_elementwise_min)
MSL_PAIR(fmax, __builtin_elementwise_max)
MSL_PAIR(fmin, __builtin_elementwise_min)
#undef MSL_PAIR

template <class T, class L, class H>
MSL_INLINE T clamp(T x, L low, H high) {
  return __builtin_elementwise_min(__builtin_elementwise_max(x, (T)low), (T)high);
}
template <class T>
MSL_INLINE T sign(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0);
}
template <class T>
MSL_INLINE T fma(T a, T b, T c) {
  return __builtin_elementwise_fma(a, b, c);
}
template <class T, int N>
MSL_INLINE T dot(vec<T, N> a, vec<T, N> b) {
  T s = a[0] * b[0];
  for (int i = 1; i < N; ++i) s += a[i] * b[i];
  return s;
}
template <class T>
MSL_INLINE T select(T a, T b, bool second) {
  return second ? b : a;
}
template <class T, int N, class C>
MSL_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<C, N> second) {
  for (int i = 0; i < N; ++i) a[i] = second[i] ? b[i] : a[i];
  return a;
}
template <class T, int N>
MSL_INLINE bool any(vec<T, N> v) {
  bool r = false;
  for (int i = 0; i < N; ++i) r |= v[i] != 0;
  return r;
}
template <class T, int N>
MSL_INLINE bool all(vec<T, N> v) {
  bool r = true;
  for (int i = 0; i < N; ++i) r &= v[i] != 0;
  return r;
}
MSL_INLINE bool isnan(float x) { return __builtin_isnan(x); }
MSL_INLINE bool isinf(float x) { return __builtin_isinf(x); }
MSL_INLINE bool isfinite(float x) { return __builtin_isfinite(x); }
MSL_INLINE float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
MSL_INLINE float copysign(float x, float s) { return __builtin_copysignf(x, s); }

MSL_INLINE int popcount(int x) { return __builtin_popcount((uint)x); }
MSL_INLINE uint popcount(uint x) { return (uint)__builtin_popcount(x); }
MSL_INLINE ulong popcount(ulong x) { return (ulong)__builtin_popcountl(x); }
MSL_INLINE uint clz(uint x) { return x != 0 ? (uint)__builtin_clz(x) : 32u; }
MSL_INLINE uint ctz(uint x) { return x != 0 ? (uint)__builtin_ctz(x) : 32u; }
MSL_INLINE uint extract_bits(uint x, uint offset, uint bits) { return (x >> offset) & (bits >= 32 ? ~0u : (1u << bits) - 1); }
MSL_INLINE uint mulhi(uint a, uint b) { return (uint)(((ulong)a * b) >> 32); }
MSL_INLINE uint reverse_bits(uint x) { return __builtin_bitreverse32(x); }

// Correctly rounded, the only division and square root that the contract allows.
namespace precise {
template <class T>
MSL_INLINE T sqrt(T x) {
  return __builtin_elementwise_sqrt(x);
}
template <class T>
MSL_INLINE T divide(T a, T b) {
  return a / b;
}
template <class A, class B>
MSL_INLINE typename Common<A, B>::T fmax(A a, B b) {
  return metal::fmax(a, b);
}
template <class A, class B>
MSL_INLINE typename Common<A, B>::T fmin(A a, B b) {
  return metal::fmin(a, b);
}
}  // namespace precise

}  // namespace metal

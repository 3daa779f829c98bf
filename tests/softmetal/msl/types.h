// Address spaces, scalar, vector and packed types.
#pragma once

#ifdef MSL_LINT
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2))) const
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif
#define thread
#define kernel

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

#define MSL_INLINE static inline __attribute__((always_inline))
#define MSL_INLINE_MEMBER inline __attribute__((always_inline))

namespace metal {

template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));

// A vector that is aligned like its elements.
template <class T, int N>
struct packed_vec {
  T v[N];
  packed_vec() = default;
  packed_vec(vec<T, N> x) {
    for (int i = 0; i < N; ++i) v[i] = x[i];
  }
  operator vec<T, N>() const {
    vec<T, N> r;
    for (int i = 0; i < N; ++i) r[i] = v[i];
    return r;
  }
  T& operator[](int i) { return v[i]; }
  const T& operator[](int i) const { return v[i]; }
};

}  // namespace metal

namespace msl {

using metal::vec;

template <class T>
struct Shape {
  using Element = T;
  static constexpr int kWidth = 1;
};
template <class T, int N>
struct Shape<vec<T, N>> {
  using Element = T;
  static constexpr int kWidth = N;
};

// A vector's constructor: one value for all, another vector converted, or parts side by side.
template <class T, class... Parts>
MSL_INLINE T make(Parts... parts) {
  using E = typename Shape<T>::Element;
  constexpr int kParts = (0 + ... + Shape<Parts>::kWidth);
  if constexpr (sizeof...(Parts) == 1 && kParts == Shape<T>::kWidth) {
    return (__builtin_convertvector(parts, T), ...);
  } else if constexpr (sizeof...(Parts) == 1 && kParts == 1) {
    return T((E)(parts, ...));
  } else {
    static_assert(kParts == Shape<T>::kWidth, "a vector's constructor has too few or too many components");
    T r;
    int k = 0;
    const auto put = [&](auto part) __attribute__((always_inline)) {
      if constexpr (Shape<decltype(part)>::kWidth == 1) {
        r[k++] = (E)part;
      } else {
        for (int i = 0; i < Shape<decltype(part)>::kWidth; ++i) r[k++] = (E)part[i];
      }
    };
    (put(parts), ...);
    return r;
  }
}

}  // namespace msl

#define MSL_VECTORS(T)                                \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
MSL_VECTORS(char)
MSL_VECTORS(uchar)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(long)
MSL_VECTORS(ulong)
MSL_VECTORS(half)
MSL_VECTORS(bfloat)
MSL_VECTORS(float)
MSL_VECTORS(bool)
#undef MSL_VECTORS

#ifdef MSL_LINT
// Layout does not matter to the lint, and a class with members would not take address spaces.
#define MSL_PACKED(T)         \
  typedef T##2 packed_##T##2; \
  typedef T##3 packed_##T##3; \
  typedef T##4 packed_##T##4;
#define double metal_has_no_double
#else
#define MSL_PACKED(T)                            \
  typedef metal::packed_vec<T, 2> packed_##T##2; \
  typedef metal::packed_vec<T, 3> packed_##T##3; \
  typedef metal::packed_vec<T, 4> packed_##T##4;
#endif
MSL_PACKED(char)
MSL_PACKED(uchar)
MSL_PACKED(short)
MSL_PACKED(ushort)
MSL_PACKED(int)
MSL_PACKED(uint)
MSL_PACKED(half)
MSL_PACKED(float)
#undef MSL_PACKED

// Only a name before a parenthesis is a macro's: float4 v, float4* p and vec<float, 4> are untouched.
#define char2(...) msl::make<char2>(__VA_ARGS__)
#define char3(...) msl::make<char3>(__VA_ARGS__)
#define char4(...) msl::make<char4>(__VA_ARGS__)
#define uchar2(...) msl::make<uchar2>(__VA_ARGS__)
#define uchar3(...) msl::make<uchar3>(__VA_ARGS__)
#define uchar4(...) msl::make<uchar4>(__VA_ARGS__)
#define short2(...) msl::make<short2>(__VA_ARGS__)
#define short3(...) msl::make<short3>(__VA_ARGS__)
#define short4(...) msl::make<short4>(__VA_ARGS__)
#define ushort2(...) msl::make<ushort2>(__VA_ARGS__)
#define ushort3(...) msl::make<ushort3>(__VA_ARGS__)
#define ushort4(...) msl::make<ushort4>(__VA_ARGS__)
#define int2(...) msl::make<int2>(__VA_ARGS__)
#define int3(...) msl::make<int3>(__VA_ARGS__)
#define int4(...) msl::make<int4>(__VA_ARGS__)
#define uint2(...) msl::make<uint2>(__VA_ARGS__)
#define uint3(...) msl::make<uint3>(__VA_ARGS__)
#define uint4(...) msl::make<uint4>(__VA_ARGS__)
#define long2(...) msl::make<long2>(__VA_ARGS__)
#define long4(...) msl::make<long4>(__VA_ARGS__)
#define ulong2(...) msl::make<ulong2>(__VA_ARGS__)
#define ulong4(...) msl::make<ulong4>(__VA_ARGS__)
#define half2(...) msl::make<half2>(__VA_ARGS__)
#define half3(...) msl::make<half3>(__VA_ARGS__)
#define half4(...) msl::make<half4>(__VA_ARGS__)
#define bfloat2(...) msl::make<bfloat2>(__VA_ARGS__)
#define bfloat4(...) msl::make<bfloat4>(__VA_ARGS__)
#define float2(...) msl::make<float2>(__VA_ARGS__)
#define float3(...) msl::make<float3>(__VA_ARGS__)
#define float4(...) msl::make<float4>(__VA_ARGS__)
#define bool2(...) msl::make<bool2>(__VA_ARGS__)
#define bool4(...) msl::make<bool4>(__VA_ARGS__)

template <class T, class U>
MSL_INLINE T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "as_type between types of different sizes");
  T t;
  __builtin_memcpy(&t, &u, sizeof t);
  return t;
}

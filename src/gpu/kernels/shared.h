// Seen by both sides: the host fills these structs and the kernels read them. Pointers are addresses of the device.
#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
#define COLI_IN(T) device const T*  // what a kernel reads
#define COLI_OUT(T) device T*       // what it writes
#define COLI_SHARED_STRUCT(name, bytes) static_assert(sizeof(name) == (bytes), "layout")
using u32 = uint;
using i32 = int;
using u64 = ulong;
#else
#include <cstddef>
#include <cstdint>
#define COLI_IN(T) std::uint64_t
#define COLI_OUT(T) std::uint64_t
// The same layout on both sides, or nothing works: sizes are fixed where a struct is declared.
#define COLI_SHARED_STRUCT(name, bytes) \
  static_assert(sizeof(name) == (bytes) && (bytes) <= 4096 && std::is_trivially_copyable_v<name>, "layout of " #name)
#include <type_traits>
namespace colibri::gpu {
using u32 = std::uint32_t;
using i32 = std::int32_t;
using u64 = std::uint64_t;
#endif

// A weight matrix in its stored format (colibri::Matrix), at the device's addresses.
struct MatrixArgs {
  COLI_IN(unsigned char) data;
  COLI_IN(float) scales;
  u64 row_bytes;     // distance of two rows in data
  u32 scale_stride;  // distance of two rows (fp8: of two blocks of 128 rows) in scales
  u32 group;         // columns per scale of int4-grouped, int3 and fp8
  u32 rows, cols;
  u32 row_origin;  // index of row 0 within the stored tensor: fp8 blocks count from there
  u32 format;      // colibri::WeightFormat
  u32 aligned;     // rows start at multiples of 16 bytes: vector loads are allowed
  u32 pad;
};
COLI_SHARED_STRUCT(MatrixArgs, 56);

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

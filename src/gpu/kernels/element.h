// For kernels alone: one weight of a matrix in its stored format, as format/matrix.cpp defines it. For kernels that read a row or
// two; products decode whole blocks.
#pragma once

#include "gpu/kernels/shared.h"

#pragma METAL fp contract(off)

// colibri::WeightFormat
constant constexpr u32 kElementF32 = 0, kElementBF16 = 1, kElementF16 = 2, kElementInt8 = 3, kElementInt4 = 4,
                       kElementInt4Grouped = 5, kElementInt2 = 6, kElementInt3 = 7, kElementF8 = 8;

// By its bits: a GPU may flush the halves that are no normal half but a normal float.
inline float element_f16(u32 bits) {
  const u32 sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
  if (exponent == 31) return as_type<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) return as_type<float>(sign | as_type<u32>(float(fraction) * 0x1p-24f));
  return as_type<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

inline float element_e4m3(u32 bits) {
  const u32 sign = (bits & 0x80u) << 24, exponent = (bits >> 3) & 15u, fraction = bits & 7u;
  if (exponent == 15 && fraction == 7) return as_type<float>(sign | 0x7fc00000u);
  if (exponent == 0) return as_type<float>(sign | as_type<u32>(float(fraction) * 0x1p-9f));
  return as_type<float>(sign | ((exponent + 120) << 23) | (fraction << 20));
}

// The exact float of the value stored for column k, without its scale. row: the row's first byte.
inline float element(device const uchar* row, u32 format, u64 k) {
  switch (format) {
    case kElementF32: return ((device const float*)row)[k];
    case kElementBF16: return as_type<float>(u32(((device const ushort*)row)[k]) << 16);
    case kElementF16: return element_f16(((device const ushort*)row)[k]);
    case kElementInt8: return float(as_type<char>(row[k]));
    case kElementInt4:
    case kElementInt4Grouped: return float(i32((row[k / 2] >> (4 * (k % 2))) & 15) - 8);
    case kElementInt2: return float(i32((row[k / 4] >> (2 * (k % 4))) & 3) - 2);
    case kElementInt3: {
      device const uchar* packed = row + k / 64 * 24;
      const u32 i = u32(k % 64);
      return float(i32(((packed[i / 4] >> (2 * (i % 4))) & 3) | (((packed[16 + i / 8] >> (i % 8)) & 1) << 2)) - 4);
    }
    case kElementF8: return element_e4m3(row[k]);
    default: return 0.0f;
  }
}

// Columns that share one scale; 0 when the format has none.
inline u32 element_span(u32 format, u32 cols, u32 group) {
  switch (format) {
    case kElementInt8:
    case kElementInt4:
    case kElementInt2: return metal::max(cols, 1u);
    case kElementInt4Grouped: return group;
    case kElementInt3: return 64;
    case kElementF8: return 128;
    default: return 0;
  }
}

// The scales of row o: entry 0 belongs to column 0.
inline device const float* element_scales(device const float* scales, u32 format, u64 scale_stride, u32 row_origin, u32 o) {
  return scales + (format == kElementF8 ? (row_origin + o) / 128 - row_origin / 128 : o) * scale_stride;
}

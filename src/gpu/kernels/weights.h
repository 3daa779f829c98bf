// Weight matrices in their stored formats (docs/containers.md), as kernels read them: one value, or the values of one lane in a
// block of 32 columns. For kernels only.
#pragma once

#include "gpu/kernels/weight_formats.h"

#pragma METAL fp contract(off)

// A matrix in the thread's own memory: the fields of MatrixArgs, whatever address space they came from.
struct Weights {
  device const uchar* data;
  device const float* scales;
  ulong row_bytes;
  uint scale_stride, group, rows, cols, row_origin;
  bool aligned;
};

template <typename Args>  // a pointer to MatrixArgs in any address space
inline Weights weights_of(Args m) {
  return {m->data, m->scales, m->row_bytes, m->scale_stride, m->group, m->rows, m->cols, m->row_origin, m->aligned != 0};
}

// The scales of row o: entry 0 belongs to column 0.
template <u32 F>
inline device const float* scales_of_row(thread const Weights& w, ulong o) {
  const ulong row = F == kStoredF8 ? (w.row_origin + o) / 128 - w.row_origin / 128 : o;
  return w.scales + row * w.scale_stride;
}

// Columns that share one scale; 0: the whole row.
template <u32 F>
inline uint columns_per_scale(thread const Weights& w) {
  return F == kStoredInt3 ? 64 : F == kStoredF8 ? 128 : F == kStoredInt4 && w.group < w.cols ? w.group : 0;
}

constexpr bool has_scales(u32 format) { return format >= kStoredInt8; }

// For a stored format known at run time or, better, through a function constant.
#define COLI_FOR_FORMAT(format, CALL)           \
  switch (format) {                             \
    case kStoredF32: CALL(kStoredF32); break;   \
    case kStoredBF16: CALL(kStoredBF16); break; \
    case kStoredF16: CALL(kStoredF16); break;   \
    case kStoredInt8: CALL(kStoredInt8); break; \
    case kStoredInt4Row:                        \
    case kStoredInt4: CALL(kStoredInt4); break; \
    case kStoredInt2: CALL(kStoredInt2); break; \
    case kStoredInt3: CALL(kStoredInt3); break; \
    default: CALL(kStoredF8); break;            \
  }

// Small stored integers become floats without a conversion: 2^23 + code is exact, and so is what remains without 2^23 + zero.
inline float integer(uint code, float zero) { return as_type<float>(code | 0x4b000000u) - (8388608.0f + zero); }

// Subnormals of these types are normal floats; they are built without one passing through arithmetic, where it would be flushed.
inline float widen_f16(uint bits) {
  const uint magnitude = (bits & 0x7fffu) << 13, exponent = bits & 0x7c00u;
  const float small = as_type<float>(magnitude + (113u << 23)) - as_type<float>(113u << 23);
  const uint large = magnitude + (exponent == 0x7c00u ? 224u << 23 : 112u << 23);
  return as_type<float>((exponent == 0 ? as_type<uint>(small) : large) | (bits & 0x8000u) << 16);
}
inline float widen_e4m3(uint bits) {
  const uint code = bits & 0x7fu;
  const float small = as_type<float>((code << 20) + (121u << 23)) - as_type<float>(121u << 23);
  const uint large = code == 0x7fu ? 0x7fc00000u : (code << 20) + (120u << 23);
  return as_type<float>((code < 8 ? as_type<uint>(small) : large) | (bits & 0x80u) << 24);
}

// The stored value of column k as an exact float, without its scale.
template <u32 F>
inline float stored_value(device const uchar* row, uint k) {
  if (F == kStoredF32) return ((device const float*)row)[k];
  if (F == kStoredBF16) return as_type<float>(uint(((device const ushort*)row)[k]) << 16);
  if (F == kStoredF16) return widen_f16(((device const ushort*)row)[k]);
  if (F == kStoredInt8) return integer(row[k] ^ 0x80u, 128.0f);
  if (F == kStoredInt4) return integer((uint(row[k / 2]) >> (4 * (k % 2))) & 15, 8.0f);
  if (F == kStoredInt2) return integer((uint(row[k / 4]) >> (2 * (k % 4))) & 3, 2.0f);
  if (F == kStoredInt3) {
    device const uchar* group = row + k / 64 * 24;
    const uint j = k % 64, low = (uint(group[j / 4]) >> (2 * (j % 4))) & 3, high = (uint(group[16 + j / 8]) >> (j % 8)) & 1;
    return integer(low | high << 2, 4.0f);
  }
  return widen_e4m3(row[k]);
}

inline uint word_at(device const uchar* p, bool aligned) {
  return aligned ? *(device const uint*)p : p[0] | uint(p[1]) << 8 | uint(p[2]) << 16 | uint(p[3]) << 24;
}
inline uint2 two_words_at(device const uchar* p, bool aligned) {
  return aligned ? *(device const uint2*)p : uint2(word_at(p, false), word_at(p + 4, false));
}
inline uint4 four_words_at(device const uchar* p, bool aligned) {
  return aligned ? *(device const uint4*)p : uint4(two_words_at(p, false), two_words_at(p + 8, false));
}

// A whole block of 32 columns as one lane sees it: quad(j) is the stored values of columns 8 j + h, + 2, + 4, + 6. The two lanes
// of a block (h = 0 and 1) load the same bytes and each takes its half.
template <u32 F>
struct Block;

template <>
struct Block<kStoredF32> {
  device const float* first;
  void open(device const uchar* row, uint b, uint h, bool) { first = (device const float*)row + 32 * b + h; }
  float4 quad(uint j) const { return float4(first[8 * j], first[8 * j + 2], first[8 * j + 4], first[8 * j + 6]); }
};

// Two columns a word.
struct HalfWords {
  device const uchar* first;
  uint shift;
  bool aligned;
  void open(device const uchar* row, uint b, uint h, bool rows_aligned) {
    first = row + 64 * b;
    shift = 16 * h;
    aligned = rows_aligned;
  }
  uint4 codes(uint j) const {
    if (aligned) return (*(device const uint4*)(first + 16 * j) >> shift) & 0xffffu;
    device const ushort* p = (device const ushort*)first + 8 * j + shift / 16;
    return uint4(p[0], p[2], p[4], p[6]);
  }
};
template <>
struct Block<kStoredBF16> {
  HalfWords words;
  void open(device const uchar* row, uint b, uint h, bool aligned) { words.open(row, b, h, aligned); }
  float4 quad(uint j) const { return as_type<float4>(words.codes(j) << 16); }
};
template <>
struct Block<kStoredF16> {
  HalfWords words;
  void open(device const uchar* row, uint b, uint h, bool aligned) { words.open(row, b, h, aligned); }
  float4 quad(uint j) const {
    const uint4 c = words.codes(j);
    return float4(widen_f16(c.x), widen_f16(c.y), widen_f16(c.z), widen_f16(c.w));
  }
};

// One column a byte.
struct Bytes {
  uint4 lower, upper;
  void open(device const uchar* row, uint b, uint h, bool aligned) {
    lower = four_words_at(row + 32 * b, aligned) >> (8 * h);
    upper = four_words_at(row + 32 * b + 16, aligned) >> (8 * h);
  }
  uint4 codes(uint j) const {
    const uint4 half_block = j < 2 ? lower : upper;
    const uint2 w = j % 2 == 0 ? half_block.xy : half_block.zw;
    return uint4(w.x, w.x >> 16, w.y, w.y >> 16) & 0xffu;
  }
};
template <>
struct Block<kStoredInt8> {
  Bytes bytes;
  void open(device const uchar* row, uint b, uint h, bool aligned) { bytes.open(row, b, h, aligned); }
  float4 quad(uint j) const {
    const uint4 c = bytes.codes(j) ^ 0x80u;
    return float4(integer(c.x, 128.0f), integer(c.y, 128.0f), integer(c.z, 128.0f), integer(c.w, 128.0f));
  }
};
template <>
struct Block<kStoredF8> {
  Bytes bytes;
  void open(device const uchar* row, uint b, uint h, bool aligned) { bytes.open(row, b, h, aligned); }
  float4 quad(uint j) const {
    const uint4 c = bytes.codes(j);
    return float4(widen_e4m3(c.x), widen_e4m3(c.y), widen_e4m3(c.z), widen_e4m3(c.w));
  }
};

template <>
struct Block<kStoredInt4> {
  uint4 words;
  void open(device const uchar* row, uint b, uint h, bool aligned) { words = four_words_at(row + 16 * b, aligned) >> (4 * h); }
  float4 quad(uint j) const {
    const uint w = words[j];
    return float4(integer(w & 15, 8.0f), integer((w >> 8) & 15, 8.0f), integer((w >> 16) & 15, 8.0f),
                  integer((w >> 24) & 15, 8.0f));
  }
};

// Two bits a column: 8 columns are 16 bits.
inline uint4 pairs_of_bits(uint2 words, uint j) {
  const uint w = (j < 2 ? words.x : words.y) >> (16 * (j % 2));
  return uint4(w, w >> 4, w >> 8, w >> 12) & 3u;
}
template <>
struct Block<kStoredInt2> {
  uint2 words;
  void open(device const uchar* row, uint b, uint h, bool aligned) { words = two_words_at(row + 8 * b, aligned) >> (2 * h); }
  float4 quad(uint j) const {
    const uint4 c = pairs_of_bits(words, j);
    return float4(integer(c.x, 2.0f), integer(c.y, 2.0f), integer(c.z, 2.0f), integer(c.w, 2.0f));
  }
};
template <>
struct Block<kStoredInt3> {
  uint2 low;
  uint high;
  void open(device const uchar* row, uint b, uint h, bool aligned) {
    device const uchar* group = row + b / 2 * 24;
    low = two_words_at(group + b % 2 * 8, aligned) >> (2 * h);
    high = word_at(group + 16 + b % 2 * 4, aligned) >> h;
  }
  float4 quad(uint j) const {
    const uint bits = high >> (8 * j);
    const uint4 c = pairs_of_bits(low, j) | (uint4(bits << 2, bits, bits >> 2, bits >> 4) & 4u);
    return float4(integer(c.x, 4.0f), integer(c.y, 4.0f), integer(c.z, 4.0f), integer(c.w, 4.0f));
  }
};

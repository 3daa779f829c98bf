// Widening of one superblock, AVX2: the stored bytes of 256 columns of a row to 16 steps of 16 floats in PackedRows
// order (even columns of the 8 blocks, then the odd ones). Every value is exact. Included by the AVX2 and AVX-512 files,
// each of which makes its own copy (see superblock.h).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "format/matrix.h"

namespace colibri::cpu {
namespace {

using WidenFunction = void (*)(const std::byte* source, float* out);

struct Dwords4 {
  __m256i d[4];
};

inline __m128i load16(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256i load32(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// d[j] lane g = 32-bit word j at source + g * stride: four words of each of the 8 blocks, transposed.
inline Dwords4 transpose_dwords(const std::byte* source, std::ptrdiff_t stride) {
  const __m256i a0 = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(source)), load16(source + 4 * stride), 1);
  const __m256i a1 = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(source + stride)), load16(source + 5 * stride), 1);
  const __m256i a2 = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(source + 2 * stride)), load16(source + 6 * stride), 1);
  const __m256i a3 = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(source + 3 * stride)), load16(source + 7 * stride), 1);
  const __m256i b0 = _mm256_unpacklo_epi32(a0, a1), b1 = _mm256_unpackhi_epi32(a0, a1);
  const __m256i b2 = _mm256_unpacklo_epi32(a2, a3), b3 = _mm256_unpackhi_epi32(a2, a3);
  return {{_mm256_unpacklo_epi64(b0, b2), _mm256_unpackhi_epi64(b0, b2), _mm256_unpacklo_epi64(b1, b3),
           _mm256_unpackhi_epi64(b1, b3)}};
}

inline __m256 as_float(__m256i v) { return _mm256_castsi256_ps(v); }

// Bits s .. s + width of each word as a float, without a shift: or-ed into a float of value 2^(23-s) they count as an
// integer above it; `offset` is that float plus the code's zero, so one exact subtraction is left.
template <int kShift, unsigned kMask>
inline __m256 code_at(__m256i v, float zero) {
  constexpr unsigned kMagic = (127u + 23u - kShift) << 23;
  const __m256i bits = _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(kMask << kShift))),
                                       _mm256_set1_epi32(static_cast<int>(kMagic)));
  return _mm256_sub_ps(as_float(bits), _mm256_set1_ps(static_cast<float>(1 << (23 - kShift)) + zero));
}

inline void widen_f32(const std::byte* source, float* out) {
  for (int q = 0; q < 8; ++q) {
    const Dwords4 t = transpose_dwords(source + 16 * q, 128);
    for (int j = 0; j < 4; ++j) _mm256_store_ps(out + 32 * q + 8 * j, as_float(t.d[j]));
  }
}

inline void widen_bf16(const std::byte* source, float* out) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (int q = 0; q < 4; ++q) {
    const Dwords4 t = transpose_dwords(source + 16 * q, 64);
    for (int j = 0; j < 4; ++j) {
      _mm256_store_ps(out + 64 * q + 16 * j, as_float(_mm256_slli_epi32(t.d[j], 16)));
      _mm256_store_ps(out + 64 * q + 16 * j + 8, as_float(_mm256_and_si256(t.d[j], high)));
    }
  }
}

// Four halves of each of the 8 blocks to floats, transposed, times `factor`.
inline void widen_halves(const std::byte* source, __m256 factor, float* out) {
  for (int q = 0; q < 8; ++q) {
    __m128 v[8];
    for (int g = 0; g < 8; ++g) v[g] = _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(source + 64 * g + 8 * q)));
    __m256 a[4];
    for (int g = 0; g < 4; ++g) a[g] = _mm256_mul_ps(_mm256_insertf128_ps(_mm256_castps128_ps256(v[g]), v[g + 4], 1), factor);
    const __m256 b0 = _mm256_unpacklo_ps(a[0], a[1]), b1 = _mm256_unpackhi_ps(a[0], a[1]);
    const __m256 b2 = _mm256_unpacklo_ps(a[2], a[3]), b3 = _mm256_unpackhi_ps(a[2], a[3]);
    _mm256_store_ps(out + 32 * q, _mm256_shuffle_ps(b0, b2, 0x44));
    _mm256_store_ps(out + 32 * q + 8, _mm256_shuffle_ps(b0, b2, 0xee));
    _mm256_store_ps(out + 32 * q + 16, _mm256_shuffle_ps(b1, b3, 0x44));
    _mm256_store_ps(out + 32 * q + 24, _mm256_shuffle_ps(b1, b3, 0xee));
  }
}

inline void widen_f16(const std::byte* source, float* out) { widen_halves(source, _mm256_set1_ps(1.0f), out); }

// e4m3 has the fields of a half with a shorter exponent: moved into place it is the value times 2^-8, subnormals
// included (the conversion from half takes them exactly whatever the denormal mode).
inline void widen_e4m3(const std::byte* source, float* out) {
  alignas(32) std::byte halves[512];
  const __m256i keep = _mm256_set1_epi16(static_cast<short>(0xbf80)), magnitude = _mm256_set1_epi16(0x7fff);
  const __m256i nan = _mm256_set1_epi16(0x3f80), exponent = _mm256_set1_epi16(0x7c00);
  for (int q = 0; q < 16; ++q) {
    const __m256i bytes = _mm256_cvtepu8_epi16(load16(source + 16 * q));
    const __m256i h = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 1), keep);
    const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(h, magnitude), nan);
    _mm256_store_si256(reinterpret_cast<__m256i*>(halves + 32 * q), _mm256_or_si256(h, _mm256_and_si256(is_nan, exponent)));
  }
  widen_halves(halves, _mm256_set1_ps(256.0f), out);
}

inline void widen_int8(const std::byte* source, float* out) {
  const __m256i flip = _mm256_set1_epi32(static_cast<int>(0x80808080u));
  for (int q = 0; q < 2; ++q) {
    const Dwords4 t = transpose_dwords(source + 16 * q, 32);
    for (int j = 0; j < 4; ++j) {
      float* step = out + 128 * q + 32 * j;
      const __m256i v = t.d[j], unsigned_codes = _mm256_xor_si256(v, flip);
      _mm256_store_ps(step, code_at<0, 255>(unsigned_codes, 128.0f));
      _mm256_store_ps(step + 8, code_at<8, 255>(unsigned_codes, 128.0f));
      _mm256_store_ps(step + 16, _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 8), 24)));
      _mm256_store_ps(step + 24, _mm256_cvtepi32_ps(_mm256_srai_epi32(v, 24)));
    }
  }
}

inline void widen_int4(const std::byte* source, float* out) {
  const Dwords4 t = transpose_dwords(source, 16);
  for (int j = 0; j < 4; ++j) {
    __m256i v = t.d[j];
    for (int b = 0; b < 4; ++b) {
      _mm256_store_ps(out + 64 * j + 16 * b, code_at<0, 15>(v, 8.0f));
      _mm256_store_ps(out + 64 * j + 16 * b + 8, code_at<4, 15>(v, 8.0f));
      v = _mm256_srli_epi32(v, 8);
    }
  }
}

// Two bits choose one of the four floats of each half register, so only a shift comes before.
inline void widen_int2(const std::byte* source, float* out) {
  const __m256 values = _mm256_setr_ps(-2, -1, 0, 1, -2, -1, 0, 1);
  const __m256 a = as_float(load32(source)), b = as_float(load32(source + 32));
  __m256i words[2] = {_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd))};
  for (int t = 0; t < 2; ++t) {
    __m256i v = _mm256_permute4x64_epi64(words[t], 0xd8);
    for (int c = 0; c < 16; ++c) {
      _mm256_store_ps(out + 128 * t + 8 * c, _mm256_permutevar_ps(values, v));
      v = _mm256_srli_epi32(v, 2);
    }
  }
}

inline void widen_int3(const std::byte* source, float* out) {
  // 24 words: of each group of 6, words 0 and 1 are the low bits of its first block, 2 and 3 of its second, 4 and 5
  // the high bits of both.
  const __m256i y0 = load32(source), y1 = load32(source + 32), y2 = load32(source + 64);
  const auto pick = [&](__m256i from0, __m256i from1, __m256i from2) {
    return _mm256_blend_epi32(
        _mm256_blend_epi32(_mm256_permutevar8x32_epi32(y0, from0), _mm256_permutevar8x32_epi32(y1, from1), 0x38),
        _mm256_permutevar8x32_epi32(y2, from2), 0xc0);
  };
  // Lane g of low0 is word 0 2 6 8 12 14 18 20, of low1 the next one; lanes 0..2 come from y0 (or less), 3..5 from y1.
  const __m256i low0 = pick(_mm256_setr_epi32(0, 2, 6, 0, 0, 0, 0, 0), _mm256_setr_epi32(0, 0, 0, 0, 4, 6, 0, 0),
                            _mm256_setr_epi32(0, 0, 0, 0, 0, 0, 2, 4));
  const __m256i low1 = pick(_mm256_setr_epi32(1, 3, 7, 0, 0, 0, 0, 0), _mm256_setr_epi32(0, 0, 0, 1, 5, 7, 0, 0),
                            _mm256_setr_epi32(0, 0, 0, 0, 0, 0, 3, 5));
  // 4 5 10 11 16 17 22 23: two from each of y0, y1 and four from y2.
  const __m256i high =
      _mm256_blend_epi32(_mm256_blend_epi32(_mm256_permutevar8x32_epi32(y0, _mm256_setr_epi32(4, 5, 0, 0, 0, 0, 0, 0)),
                                            _mm256_permutevar8x32_epi32(y1, _mm256_setr_epi32(0, 0, 2, 3, 0, 0, 0, 0)), 0x0c),
                         _mm256_permutevar8x32_epi32(y2, _mm256_setr_epi32(0, 0, 0, 0, 0, 1, 6, 7)), 0xf0);
  const __m256 without = _mm256_setr_ps(-4, -3, -2, -1, -4, -3, -2, -1), with = _mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3);
  for (int t = 0; t < 2; ++t) {
    __m256i v = t ? low1 : low0;
    __m256i sign = t ? high : _mm256_slli_epi32(high, 16);  // code 15 of this half in the sign bit
    __m256 w[16];
    for (int c = 0; c < 16; ++c) {
      const __m256 bit = as_float(_mm256_slli_epi32(sign, 15 - c));
      w[c] = _mm256_blendv_ps(_mm256_permutevar_ps(without, v), _mm256_permutevar_ps(with, v), bit);
      v = _mm256_srli_epi32(v, 2);
    }
    for (int c = 0; c < 16; ++c) _mm256_store_ps(out + 128 * t + 8 * c, w[c]);
  }
}

// C2's tree: g with g + 4, then + 2, then + 1, then the even with the odd sum.
inline float tree_of_lanes(const float* acc) {
  const __m128 even = _mm_add_ps(_mm_loadu_ps(acc), _mm_loadu_ps(acc + 4));
  const __m128 odd = _mm_add_ps(_mm_loadu_ps(acc + 8), _mm_loadu_ps(acc + 12));
  const __m128 two = _mm_add_ps(_mm_movelh_ps(even, odd), _mm_movehl_ps(odd, even));  // even 0 1, odd 0 1
  const __m128 one = _mm_add_ps(two, _mm_shuffle_ps(two, two, 0xb1));
  return _mm_cvtss_f32(_mm_add_ss(one, _mm_movehl_ps(one, one)));
}

// In the order of WeightFormat.
constexpr WidenFunction kWiden[kWeightFormatCount] = {widen_f32,  widen_bf16, widen_f16,  widen_int8, widen_int4,
                                                      widen_int4, widen_int2, widen_int3, widen_e4m3};

}  // namespace
}  // namespace colibri::cpu

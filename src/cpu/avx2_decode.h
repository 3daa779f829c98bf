// int4 weights times one row without widening them to memory first, AVX2.
#pragma once

#include "cpu/avx2_widen.h"

namespace colibri::cpu {
namespace {

// The sixteen values -8 .. 7 have at most three significant bits, so the upper half of their float is the value; one
// table gives its high byte and one its low byte for 32 codes at a time.
constexpr std::uint16_t kInt4Upper[16] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                          0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
struct alignas(16) Int4Tables {
  std::uint8_t high[16], low[16];
};
constexpr Int4Tables make_int4_tables() {
  Int4Tables t{};
  for (int i = 0; i < 16; ++i) {
    t.high[i] = static_cast<std::uint8_t>(kInt4Upper[i] >> 8);
    t.low[i] = static_cast<std::uint8_t>(kInt4Upper[i] & 255);
  }
  return t;
}
constexpr Int4Tables kInt4Tables = make_int4_tables();

inline __m256i int4_table(const std::uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
}

// Half register h of d[j] = 16-bit words 2j and 2j + 1 of blocks 4h .. 4h + 3: word 2j of the four, then 2j + 1.
inline Dwords4 transpose_words(const std::byte* source) {
  const auto blocks = [&](int k) {
    const __m256i high = _mm256_broadcastsi128_si256(load16(source + 16 * k + 64));
    return _mm256_blend_epi32(_mm256_castsi128_si256(load16(source + 16 * k)), high, 0xf0);
  };
  const __m256i a0 = blocks(0), a1 = blocks(1), a2 = blocks(2), a3 = blocks(3);
  const __m256i b0 = _mm256_unpacklo_epi16(a0, a1), b1 = _mm256_unpackhi_epi16(a0, a1);
  const __m256i b2 = _mm256_unpacklo_epi16(a2, a3), b3 = _mm256_unpackhi_epi16(a2, a3);
  return {{_mm256_unpacklo_epi32(b0, b2), _mm256_unpackhi_epi32(b0, b2), _mm256_unpacklo_epi32(b1, b3),
           _mm256_unpackhi_epi32(b1, b3)}};
}

// Four steps: the bytes of v are two words of each block, low nibbles the even columns and high nibbles the odd ones.
inline void int4_four_steps(__m256i v, const float* x, __m256& even, __m256& odd) {
  const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i high = int4_table(kInt4Tables.high), low = int4_table(kInt4Tables.low);
  const __m256i e = _mm256_and_si256(v, nibble), o = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
  const __m256i e_high = _mm256_shuffle_epi8(high, e), e_low = _mm256_shuffle_epi8(low, e);
  const __m256i o_high = _mm256_shuffle_epi8(high, o), o_low = _mm256_shuffle_epi8(low, o);
  // Upper float halves of two steps in each 32-bit lane: the first of them below the second.
  const __m256i e01 = _mm256_unpacklo_epi8(e_low, e_high), e23 = _mm256_unpackhi_epi8(e_low, e_high);
  const __m256i o01 = _mm256_unpacklo_epi8(o_low, o_high), o23 = _mm256_unpackhi_epi8(o_low, o_high);
  const auto first = [](__m256i two) { return _mm256_castsi256_ps(_mm256_slli_epi32(two, 16)); };
  const auto second = [&](__m256i two) { return _mm256_castsi256_ps(_mm256_and_si256(two, upper)); };
  even = _mm256_fmadd_ps(first(e01), _mm256_load_ps(x), even);
  odd = _mm256_fmadd_ps(first(o01), _mm256_load_ps(x + 8), odd);
  even = _mm256_fmadd_ps(second(e01), _mm256_load_ps(x + 16), even);
  odd = _mm256_fmadd_ps(second(o01), _mm256_load_ps(x + 24), odd);
  even = _mm256_fmadd_ps(first(e23), _mm256_load_ps(x + 32), even);
  odd = _mm256_fmadd_ps(first(o23), _mm256_load_ps(x + 40), odd);
  even = _mm256_fmadd_ps(second(e23), _mm256_load_ps(x + 48), even);
  odd = _mm256_fmadd_ps(second(o23), _mm256_load_ps(x + 56), odd);
}

// One superblock of two rows of codes times one row of x: the chains of both, even and odd lanes.
inline void int4_two_rows(const std::byte* const (&source)[2], const float* x, __m256 (&p)[2][2]) {
  const Dwords4 a = transpose_words(source[0]), b = transpose_words(source[1]);
  p[0][0] = p[0][1] = p[1][0] = p[1][1] = _mm256_setzero_ps();
  for (int j = 0; j < 4; ++j) {
    int4_four_steps(a.d[j], x + 64 * j, p[0][0], p[0][1]);
    int4_four_steps(b.d[j], x + 64 * j, p[1][0], p[1][1]);
  }
}

}  // namespace
}  // namespace colibri::cpu

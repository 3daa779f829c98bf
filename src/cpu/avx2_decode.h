// int4 weights times one row without widening them to memory first, AVX2.
//
// A code with its upper bit flipped is the value as a signed 4-bit number. With its byte on top of a 32-bit lane, and nothing
// below, the conversion to float gives the value times 2^28; the row is multiplied with 2^-28 beforehand, so every product is
// the same real number as before and every sum has the same bits. Moving a byte to the top and clearing the rest is one
// instruction, so a vector of weights takes three: move, convert, fma. The lower two bytes of a lane are moved by a shuffle,
// the upper two by a multiplication (by 2^7, so these give 2^27), which leaves the shuffle's pipes to the others.
#pragma once

#include "cpu/avx2_widen.h"
#include "cpu/prefetch.h"

namespace colibri::cpu {
namespace {

// Lanes in the decode order are blocks 0 2 4 6 1 3 5 7: that is how two blocks a load fall, and scales of groups of two
// blocks are then four floats, twice.
inline __m256 to_decode_order(__m256 v) { return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7)); }
inline __m256 from_decode_order(__m256 v) { return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); }

// out = x * 2^-28 or 2^-27 in the decode order, `count` vectors of 8, a multiple of 8. False when a value is so small that
// the product would leave the range of normal floats; out is then of no use.
inline bool prepare_int4_row(const float* x, std::int64_t count, float* out) {
  const __m256 factors[2] = {_mm256_set1_ps(0x1p-28f), _mm256_set1_ps(0x1p-27f)}, least = _mm256_set1_ps(0x1p-98f),
               zero = _mm256_setzero_ps();
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 small = zero;
  for (std::int64_t i = 0; i < count; ++i) {
    const __m256 v = _mm256_load_ps(x + 8 * i);
    const __m256 below = _mm256_cmp_ps(_mm256_and_ps(v, magnitude), least, _CMP_LT_OQ);
    small = _mm256_or_ps(small, _mm256_and_ps(below, _mm256_cmp_ps(v, zero, _CMP_NEQ_OQ)));
    _mm256_store_ps(out + 8 * i, to_decode_order(_mm256_mul_ps(v, factors[i / 4 % 2])));
  }
  return _mm256_movemask_ps(small) == 0;
}

// d[j]: word j of each block, in the decode order, upper bits of the codes flipped.
inline Dwords4 signed_int4_words(const std::byte* source) {
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x88));
  const auto blocks = [&](int k) { return _mm256_xor_si256(load32(source + 32 * k), flip); };
  const __m256i a0 = blocks(0), a1 = blocks(1), a2 = blocks(2), a3 = blocks(3);
  const __m256i b0 = _mm256_unpacklo_epi32(a0, a1), b1 = _mm256_unpackhi_epi32(a0, a1);
  const __m256i b2 = _mm256_unpacklo_epi32(a2, a3), b3 = _mm256_unpackhi_epi32(a2, a3);
  return {{_mm256_unpacklo_epi64(b0, b2), _mm256_unpackhi_epi64(b0, b2), _mm256_unpacklo_epi64(b1, b3),
           _mm256_unpackhi_epi64(b1, b3)}};
}

// Byte k of each word, a signed number, times 2^24 (k < 2) or 2^23. The multiplication takes the word's upper half: its
// lower byte times 0 and the upper one times 2^7, or the other way round; both bytes of the lower half times 0.
template <int k>
inline __m256 top_byte(__m256i v) {
  if constexpr (k < 2) {
    const __m128i bytes = _mm_setr_epi8(-1, -1, -1, k, -1, -1, -1, 4 + k, -1, -1, -1, 8 + k, -1, -1, -1, 12 + k);
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(bytes)));
  } else {
    const __m256i factor = _mm256_set1_epi32(static_cast<int>(k == 2 ? 0x00800000u : 0x80000000u));
    return _mm256_cvtepi32_ps(_mm256_maddubs_epi16(factor, v));
  }
}

// Eight columns of each block: word v of a row of codes times four steps of a prepared row.
inline void int4_four_steps(__m256i v, const float* x, __m256& even, __m256& odd) {
  const __m256i upper = _mm256_set1_epi8(static_cast<char>(0xf0));
  const __m256i o = _mm256_and_si256(v, upper), e = _mm256_and_si256(_mm256_slli_epi16(v, 4), upper);
  even = _mm256_fmadd_ps(top_byte<0>(e), _mm256_load_ps(x), even);
  odd = _mm256_fmadd_ps(top_byte<0>(o), _mm256_load_ps(x + 8), odd);
  even = _mm256_fmadd_ps(top_byte<1>(e), _mm256_load_ps(x + 16), even);
  odd = _mm256_fmadd_ps(top_byte<1>(o), _mm256_load_ps(x + 24), odd);
  even = _mm256_fmadd_ps(top_byte<2>(e), _mm256_load_ps(x + 32), even);
  odd = _mm256_fmadd_ps(top_byte<2>(o), _mm256_load_ps(x + 40), odd);
  even = _mm256_fmadd_ps(top_byte<3>(e), _mm256_load_ps(x + 48), even);
  odd = _mm256_fmadd_ps(top_byte<3>(o), _mm256_load_ps(x + 56), odd);
}

// One superblock of four rows of codes times a prepared row: p[row][0] the even lanes' chains, p[row][1] the odd ones'.
// Written out, since GCC keeps the sums in registers only when it sees no loop, and summed in variables of its own: p could be
// part of the row for all the compiler knows, and then every step would be stored. `ahead`: as many codes that come later,
// asked for line by line between the products: asked for at once they would wait for the few buffers that a core has for
// lines on their way.
inline void int4_four_rows(const std::byte* const (&source)[4], const float* x, Address ahead, __m256 (&p)[4][2]) {
  const Dwords4 a = signed_int4_words(source[0]), b = signed_int4_words(source[1]);
  const Dwords4 c = signed_int4_words(source[2]), d = signed_int4_words(source[3]);
  const __m256 zero = _mm256_setzero_ps();
  __m256 sums[4][2] = {{zero, zero}, {zero, zero}, {zero, zero}, {zero, zero}};
  const auto steps = [&](int j) {
    prefetch_line(ahead + 128 * j);
    int4_four_steps(a.d[j], x + 64 * j, sums[0][0], sums[0][1]);
    int4_four_steps(b.d[j], x + 64 * j, sums[1][0], sums[1][1]);
    prefetch_line(ahead + 128 * j + 64);
    int4_four_steps(c.d[j], x + 64 * j, sums[2][0], sums[2][1]);
    int4_four_steps(d.d[j], x + 64 * j, sums[3][0], sums[3][1]);
  };
  steps(0);
  steps(1);
  steps(2);
  steps(3);
  for (int row = 0; row < 4; ++row) {
    p[row][0] = sums[row][0];
    p[row][1] = sums[row][1];
  }
}

}  // namespace
}  // namespace colibri::cpu

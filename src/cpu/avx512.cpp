// The kernel table for x86-64 with AVX-512 F, BW, DQ and VL: a register is one output's 16 lanes. Formats without a
// widening of their own here use the AVX2 ones.
#include <immintrin.h>

#include "cpu/avx2_widen.h"
#include "cpu/prefetch.h"
#include "cpu/products.inl.h"
#include "cpu/transposed.inl.h"
// After the products, whose dot it uses.
#include "cpu/elementwise.inl.h"

namespace colibri::cpu {
namespace {

struct alignas(64) Lanes {
  std::int32_t v[16];
  __m512i load() const { return _mm512_load_si512(v); }
};

// Lanes 0..7 (even columns) take `even`, lanes 8..15 (odd columns) take `odd`.
constexpr Lanes halves(std::int32_t even, std::int32_t odd) {
  Lanes l{};
  for (int i = 0; i < 16; ++i) l.v[i] = i < 8 ? even : odd;
  return l;
}

// Both lanes of block g take 32-bit word first + g * stride.
constexpr Lanes words_of_blocks(std::int32_t first, std::int32_t stride) {
  Lanes l{};
  for (int i = 0; i < 16; ++i) l.v[i] = first + i % 8 * stride;
  return l;
}

struct alignas(64) Table {
  float v[16];
  __m512 load() const { return _mm512_load_ps(v); }
};

// Entry i is the value of code i & (codes - 1): bits above the code do not matter.
constexpr Table code_values(int codes, int zero) {
  Table t{};
  for (int i = 0; i < 16; ++i) t.v[i] = static_cast<float>(i % codes - zero);
  return t;
}

inline __m512i load64(const std::byte* p) { return _mm512_loadu_si512(p); }

constexpr Lanes kInt4Words[4] = {words_of_blocks(0, 4), words_of_blocks(1, 4), words_of_blocks(2, 4), words_of_blocks(3, 4)};
constexpr Lanes kInt4Shift = halves(0, 4);
constexpr Table kInt4Values = code_values(16, 8);

void widen_int4_512(const std::byte* source, float* out) {
  const __m512i a = load64(source), b = load64(source + 64), shift = kInt4Shift.load();
  const __m512 values = kInt4Values.load();
  for (int j = 0; j < 4; ++j) {
    __m512i v = _mm512_srlv_epi32(_mm512_permutex2var_epi32(a, kInt4Words[j].load(), b), shift);
    for (int i = 0; i < 4; ++i) {
      _mm512_store_ps(out + 64 * j + 16 * i, _mm512_permutexvar_ps(v, values));
      v = _mm512_srli_epi32(v, 8);
    }
  }
}

// One superblock of four rows of codes times one row of x; sums and `ahead` as in avx2_decode.h.
inline void int4_four_rows(const std::byte* const (&source)[4], const float* x, Address ahead, __m512 (&p)[4][1]) {
  const __m512i shift = kInt4Shift.load();
  const __m512 values = kInt4Values.load();
  __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int j = 0; j < 4; ++j) {
    const __m512i words = kInt4Words[j].load();
    prefetch_line(ahead + 128 * j);
    prefetch_line(ahead + 128 * j + 64);
    __m512i v[4];
    for (int n = 0; n < 4; ++n)
      v[n] = _mm512_srlv_epi32(_mm512_permutex2var_epi32(load64(source[n]), words, load64(source[n] + 64)), shift);
    for (int i = 0; i < 4; ++i) {
      const __m512 xs = _mm512_load_ps(x + 64 * j + 16 * i);
      for (int n = 0; n < 4; ++n) {
        sums[n] = _mm512_fmadd_ps(_mm512_permutexvar_ps(v[n], values), xs, sums[n]);
        v[n] = _mm512_srli_epi32(v[n], 8);
      }
    }
  }
  for (int n = 0; n < 4; ++n) p[n][0] = sums[n];
}

// Words 8 g + j for blocks 0..3 come from the first two registers, for 4..7 from the others.
constexpr Lanes int8_words(int j) {
  Lanes l{};
  for (int i = 0; i < 16; ++i) l.v[i] = i % 8 % 4 * 8 + j;
  return l;
}
constexpr Lanes kInt8Words[8] = {int8_words(0), int8_words(1), int8_words(2), int8_words(3),
                                 int8_words(4), int8_words(5), int8_words(6), int8_words(7)};
constexpr Lanes kInt8First = halves(24, 16), kInt8Second = halves(8, 0);
constexpr __mmask16 kHighBlocks = 0xf0f0;

void widen_int8_512(const std::byte* source, float* out) {
  const __m512i a = load64(source), b = load64(source + 64), c = load64(source + 128), d = load64(source + 192);
  const __m512i first = kInt8First.load(), second = kInt8Second.load();
  for (int j = 0; j < 8; ++j) {
    const __m512i words = kInt8Words[j].load();
    const __m512i v =
        _mm512_mask_blend_epi32(kHighBlocks, _mm512_permutex2var_epi32(a, words, b), _mm512_permutex2var_epi32(c, words, d));
    _mm512_store_ps(out + 32 * j, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_sllv_epi32(v, first), 24)));
    _mm512_store_ps(out + 32 * j + 16, _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_sllv_epi32(v, second), 24)));
  }
}

constexpr Lanes kInt2Words[2] = {words_of_blocks(0, 2), words_of_blocks(1, 2)};
constexpr Lanes kInt2Shift = halves(0, 2);
constexpr Table kInt2Values = code_values(4, 2);

void widen_int2_512(const std::byte* source, float* out) {
  const __m512i a = load64(source), shift = kInt2Shift.load();
  const __m512 values = kInt2Values.load();
  for (int t = 0; t < 2; ++t) {
    __m512i v = _mm512_srlv_epi32(_mm512_permutexvar_epi32(kInt2Words[t].load(), a), shift);
    for (int i = 0; i < 8; ++i) {
      _mm512_store_ps(out + 128 * t + 16 * i, _mm512_permutexvar_ps(v, values));
      v = _mm512_srli_epi32(v, 4);
    }
  }
}

// Of the 6 words of a group of two blocks: word `first` of block g, with `step` words between the two blocks.
constexpr Lanes int3_words(std::int32_t first, std::int32_t step) {
  Lanes l{};
  for (int i = 0; i < 16; ++i) l.v[i] = i % 8 / 2 * 6 + i % 2 * step + first;
  return l;
}
constexpr Lanes kInt3Low[2] = {int3_words(0, 2), int3_words(1, 2)}, kInt3High = int3_words(4, 1);
constexpr Lanes kInt3HighShift = halves(0, 1);
constexpr Table kInt3Values = code_values(8, 4);

void widen_int3_512(const std::byte* source, float* out) {
  const __m512i a = load64(source), b = _mm512_castsi256_si512(load32(source + 64)), three = _mm512_set1_epi32(3);
  const __m512i high_words = _mm512_srlv_epi32(_mm512_permutex2var_epi32(a, kInt3High.load(), b), kInt3HighShift.load());
  const __m512 values = kInt3Values.load();
  for (int t = 0; t < 2; ++t) {
    __m512i low = _mm512_srlv_epi32(_mm512_permutex2var_epi32(a, kInt3Low[t].load(), b), kInt2Shift.load());
    // The high bit of the first of these eight steps at bit 2.
    __m512i high = t ? _mm512_srli_epi32(high_words, 14) : _mm512_slli_epi32(high_words, 2);
    for (int i = 0; i < 8; ++i) {
      const __m512i code = _mm512_ternarylogic_epi32(three, low, high, 0xca);  // three ? low : high
      _mm512_store_ps(out + 128 * t + 16 * i, _mm512_permutexvar_ps(code, values));
      low = _mm512_srli_epi32(low, 4);
      high = _mm512_srli_epi32(high, 2);
    }
  }
}

// In the order of WeightFormat.
constexpr WidenFunction kWiden512[kWeightFormatCount] = {
    widen_f32, widen_bf16, widen_f16, widen_int8_512, widen_int4_512, widen_int4_512, widen_int2_512, widen_int3_512, widen_e4m3};

struct Avx512 {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr std::int64_t kWeightStride = kSuperblock, kWeightOffset = 0;
  // 32 registers: 24 or fewer sums, the tile's rows of x and one weight.
  static constexpr int kTileRows = 4;
  static constexpr int kTileOutputs[5] = {0, 8, 8, 6, 6};
  static constexpr std::int64_t kOutputBlock = 24;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float v) { return _mm512_set1_ps(v); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static float tree(const float* acc) { return tree_of_lanes(acc); }

  static constexpr int kDecodeOutputs = 4;
  static const float* decode_row(const float* x, std::int64_t /*superblocks*/, float* /*out*/) { return x; }
  static F to_decode_order(F v) { return v; }
  static F from_decode_order(F v) { return v; }
  static void int4_chains(const std::byte* const (&source)[4], const float* x, Address ahead, F (&p)[4][1]) {
    int4_four_rows(source, x, ahead, p);
  }
  static F spread4(const float* scales) {
    alignas(64) static constexpr std::int32_t kIndex[16] = {0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3};
    return _mm512_permutexvar_ps(_mm512_load_si512(kIndex), _mm512_castps128_ps512(_mm_loadu_ps(scales)));
  }

  static WidenFunction widen(WeightFormat format) { return kWiden512[static_cast<int>(format)]; }
};

}  // namespace

constinit const Kernels kAvx512Kernels = make_table<Avx512>("avx512");

}  // namespace colibri::cpu

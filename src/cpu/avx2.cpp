// The kernel table for x86-64 with AVX2, FMA and F16C.
#include <immintrin.h>

#include "cpu/avx2_widen.h"
#include "cpu/products.inl.h"
#include "cpu/transposed.inl.h"
// After the products, whose dot it uses.
#include "cpu/elementwise.inl.h"

namespace colibri::cpu {
namespace {

struct Avx2 {
  using F = __m256;
  static constexpr int kWidth = 8;
  // 16 registers: 12 or fewer sums, the tile's rows of x and one weight.
  static constexpr int kTileRows = 4;
  static constexpr int kTileOutputs[5] = {0, 8, 6, 4, 3};

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float v) { return _mm256_set1_ps(v); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static void prefetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

  // C2's tree: g with g + 4, then + 2, then + 1, then the even with the odd sum.
  static float tree(const float* acc) {
    const __m128 even = _mm_add_ps(_mm_loadu_ps(acc), _mm_loadu_ps(acc + 4));
    const __m128 odd = _mm_add_ps(_mm_loadu_ps(acc + 8), _mm_loadu_ps(acc + 12));
    const __m128 two = _mm_add_ps(_mm_movelh_ps(even, odd), _mm_movehl_ps(odd, even));  // even 0 1, odd 0 1
    const __m128 one = _mm_add_ps(two, _mm_shuffle_ps(two, two, 0xb1));
    return _mm_cvtss_f32(_mm_add_ss(one, _mm_movehl_ps(one, one)));
  }

  static WidenFunction widen(WeightFormat format) { return kWiden[static_cast<int>(format)]; }
};

}  // namespace

constinit const Kernels kAvx2Kernels = make_table<Avx2>("avx2");

}  // namespace colibri::cpu

// The kernel table for x86-64 with AVX2, FMA and F16C.
#include <immintrin.h>

#include "cpu/avx2_decode.h"
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
  // The cache serves two loads a cycle only from different halves of its lines (Zen 3): neighbouring weight rows, and
  // weights and activations of a step, should not all be in the same half.
  static constexpr std::int64_t kWeightStride = kSuperblock + 8, kWeightOffset = 8;
  // 16 registers: 12 or fewer sums, the tile's rows of x and one weight.
  static constexpr int kTileRows = 4;
  static constexpr int kTileOutputs[5] = {0, 8, 6, 4, 3};
  static constexpr std::int64_t kOutputBlock = 12;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float v) { return _mm256_set1_ps(v); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }

  static float tree(const float* acc) { return tree_of_lanes(acc); }
  static constexpr int kDecodeOutputs = 4;
  static const float* decode_row(const float* x, std::int64_t superblocks, float* out) {
    return prepare_int4_row(x, superblocks * kSuperblock / kWidth, out) ? out : nullptr;
  }
  static F to_decode_order(F v) { return cpu::to_decode_order(v); }
  static F from_decode_order(F v) { return cpu::from_decode_order(v); }
  static void int4_chains(const std::byte* const (&source)[4], const float* x, Address ahead, F (&p)[4][2]) {
    int4_four_rows(source, x, ahead, p);
  }
  // Scales of four groups of two blocks, in the decode order.
  static F spread4(const float* scales) { return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(scales)); }

  static WidenFunction widen(WeightFormat format) { return kWiden[static_cast<int>(format)]; }
};

}  // namespace

constinit const Kernels kAvx2Kernels = make_table<Avx2>("avx2");

}  // namespace colibri::cpu

// The kernel table for AArch64 with Advanced SIMD.
#include <arm_neon.h>

#include "cpu/products.inl.h"
#include "cpu/transposed.inl.h"
// After the products, whose dot it uses.
#include "cpu/elementwise.inl.h"

namespace colibri::cpu {
namespace {

// One block of 32 columns: the even and the odd ones, four steps in each vector.
struct Block {
  float32x4_t even[4], odd[4];
};

inline const std::uint8_t* bytes_at(const std::byte* p) { return reinterpret_cast<const std::uint8_t*>(p); }

inline void to_floats(int8x16_t v, float32x4_t out[4]) {
  const int16x8_t low = vmovl_s8(vget_low_s8(v)), high = vmovl_high_s8(v);
  out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
  out[1] = vcvtq_f32_s32(vmovl_high_s16(low));
  out[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
  out[3] = vcvtq_f32_s32(vmovl_high_s16(high));
}

inline Block from_codes(uint8x16_t even, uint8x16_t odd, std::int8_t zero) {
  Block b;
  to_floats(vsubq_s8(vreinterpretq_s8_u8(even), vdupq_n_s8(zero)), b.even);
  to_floats(vsubq_s8(vreinterpretq_s8_u8(odd), vdupq_n_s8(zero)), b.odd);
  return b;
}

inline Block block_f32(const std::byte* source, int g) {
  Block b;
  for (int j = 0; j < 4; ++j) {
    const float32x4x2_t v = vld2q_f32(reinterpret_cast<const float*>(source + 128 * g + 32 * j));
    b.even[j] = v.val[0];
    b.odd[j] = v.val[1];
  }
  return b;
}

inline float32x4_t from_bf16(uint16x4_t v) { return vreinterpretq_f32_u32(vshll_n_u16(v, 16)); }
inline float32x4_t from_f16(uint16x4_t v) { return vcvt_f32_f16(vreinterpret_f16_u16(v)); }

template <float32x4_t (*kConvert)(uint16x4_t)>
inline Block block_halves(const std::byte* source, int g) {
  Block b;
  for (int j = 0; j < 4; ++j) {
    const uint16x4x2_t v = vld2_u16(reinterpret_cast<const std::uint16_t*>(source + 64 * g + 16 * j));
    b.even[j] = kConvert(v.val[0]);
    b.odd[j] = kConvert(v.val[1]);
  }
  return b;
}

inline Block block_int8(const std::byte* source, int g) {
  const uint8x16x2_t v = vld2q_u8(bytes_at(source) + 32 * g);
  return from_codes(v.val[0], v.val[1], 0);
}

inline Block block_int4(const std::byte* source, int g) {
  const uint8x16_t v = vld1q_u8(bytes_at(source) + 16 * g);
  return from_codes(vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8(v, 4), 8);
}

// Four 2-bit codes a byte, even and odd columns in turn, in steps 2b and 2b + 1.
inline void two_bit_codes(const std::uint8_t* p, uint8x16_t& even, uint8x16_t& odd) {
  const uint8x8_t v = vld1_u8(p), mask = vdup_n_u8(3);
  const uint8x8x2_t e = vzip_u8(vand_u8(v, mask), vand_u8(vshr_n_u8(v, 4), mask));
  const uint8x8x2_t o = vzip_u8(vand_u8(vshr_n_u8(v, 2), mask), vshr_n_u8(v, 6));
  even = vcombine_u8(e.val[0], e.val[1]);
  odd = vcombine_u8(o.val[0], o.val[1]);
}

inline Block block_int2(const std::byte* source, int g) {
  uint8x16_t even, odd;
  two_bit_codes(bytes_at(source) + 8 * g, even, odd);
  return from_codes(even, odd, 2);
}

inline Block block_int3(const std::byte* source, int g) {
  const std::uint8_t* group = bytes_at(source) + 24 * (g / 2);
  uint8x16_t even, odd;
  two_bit_codes(group + 8 * (g % 2), even, odd);
  // Bit 2i (even) or 2i + 1 (odd) of the block's four bytes is the high bit of step i.
  const std::uint8_t* bits = group + 16 + 4 * (g % 2);
  const uint8x16_t spread = {bits[0], bits[0], bits[0], bits[0], bits[1], bits[1], bits[1], bits[1],
                             bits[2], bits[2], bits[2], bits[2], bits[3], bits[3], bits[3], bits[3]};
  const uint8x16_t even_bit = {1, 4, 16, 64, 1, 4, 16, 64, 1, 4, 16, 64, 1, 4, 16, 64};
  const uint8x16_t odd_bit = vshlq_n_u8(even_bit, 1), four = vdupq_n_u8(4);
  even = vorrq_u8(even, vandq_u8(vtstq_u8(spread, even_bit), four));
  odd = vorrq_u8(odd, vandq_u8(vtstq_u8(spread, odd_bit), four));
  return from_codes(even, odd, 4);
}

// e4m3 moved into the fields of a half is the value times 2^-8, subnormals included; its two NaN codes become NaN.
inline void from_e4m3(uint8x16_t v, float32x4_t out[4]) {
  const uint16x8_t wide[2] = {vmovl_u8(vget_low_u8(v)), vmovl_high_u8(v)};
  for (int i = 0; i < 2; ++i) {
    const uint16x8_t magnitude = vshlq_n_u16(vandq_u16(wide[i], vdupq_n_u16(0x7f)), 7);
    const uint16x8_t sign = vshlq_n_u16(vandq_u16(wide[i], vdupq_n_u16(0x80)), 8);
    const uint16x8_t nan = vandq_u16(vceqq_u16(magnitude, vdupq_n_u16(0x3f80)), vdupq_n_u16(0x7c00));
    const uint16x8_t h = vorrq_u16(vorrq_u16(magnitude, sign), nan);
    out[2 * i] = vmulq_n_f32(from_f16(vget_low_u16(h)), 256.0f);
    out[2 * i + 1] = vmulq_n_f32(from_f16(vget_high_u16(h)), 256.0f);
  }
}

inline Block block_e4m3(const std::byte* source, int g) {
  const uint8x16x2_t v = vld2q_u8(bytes_at(source) + 32 * g);
  Block b;
  from_e4m3(v.val[0], b.even);
  from_e4m3(v.val[1], b.odd);
  return b;
}

// Rows of the four vectors to columns, stored 16 floats apart: four blocks of the same four steps.
inline void store_transposed(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d, float* out) {
  const float32x4_t ab0 = vzip1q_f32(a, b), ab1 = vzip2q_f32(a, b), cd0 = vzip1q_f32(c, d), cd1 = vzip2q_f32(c, d);
  vst1q_f32(out, vcombine_f32(vget_low_f32(ab0), vget_low_f32(cd0)));
  vst1q_f32(out + 16, vcombine_f32(vget_high_f32(ab0), vget_high_f32(cd0)));
  vst1q_f32(out + 32, vcombine_f32(vget_low_f32(ab1), vget_low_f32(cd1)));
  vst1q_f32(out + 48, vcombine_f32(vget_high_f32(ab1), vget_high_f32(cd1)));
}

template <Block (*kLoad)(const std::byte*, int)>
void widen(const std::byte* source, float* out) {
  for (int g = 0; g < 8; g += 4) {
    const Block a = kLoad(source, g), b = kLoad(source, g + 1), c = kLoad(source, g + 2), d = kLoad(source, g + 3);
    for (int j = 0; j < 4; ++j) {
      store_transposed(a.even[j], b.even[j], c.even[j], d.even[j], out + 64 * j + g);
      store_transposed(a.odd[j], b.odd[j], c.odd[j], d.odd[j], out + 64 * j + 8 + g);
    }
  }
}

using WidenFunction = void (*)(const std::byte* source, float* out);
// In the order of WeightFormat.
constexpr WidenFunction kWiden[kWeightFormatCount] = {widen<block_f32>,
                                                      widen<block_halves<from_bf16>>,
                                                      widen<block_halves<from_f16>>,
                                                      widen<block_int8>,
                                                      widen<block_int4>,
                                                      widen<block_int4>,
                                                      widen<block_int2>,
                                                      widen<block_int3>,
                                                      widen<block_e4m3>};

struct Neon {
  using F = float32x4_t;
  static constexpr int kWidth = 4;
  static constexpr std::int64_t kWeightStride = kSuperblock, kWeightOffset = 0;
  // 32 registers: 24 or fewer sums, the tile's rows of x and one weight.
  static constexpr int kTileRows = 4;
  static constexpr int kTileOutputs[5] = {0, 8, 8, 6, 6};
  static constexpr std::int64_t kOutputBlock = 12;

  static F zero() { return vdupq_n_f32(0.0f); }
  static F set1(float v) { return vdupq_n_f32(v); }
  static F load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F v) { vst1q_f32(p, v); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }

  // C2's tree: g with g + 4, then + 2, then + 1, then the even with the odd sum.
  static float tree(const float* acc) {
    const float32x4_t even = vaddq_f32(vld1q_f32(acc), vld1q_f32(acc + 4));
    const float32x4_t odd = vaddq_f32(vld1q_f32(acc + 8), vld1q_f32(acc + 12));
    const float32x2_t one =
        vpadd_f32(vadd_f32(vget_low_f32(even), vget_high_f32(even)), vadd_f32(vget_low_f32(odd), vget_high_f32(odd)));
    return vget_lane_f32(one, 0) + vget_lane_f32(one, 1);
  }

  static constexpr int kDecodeOutputs = 0;
  static WidenFunction widen(WeightFormat format) { return kWiden[static_cast<int>(format)]; }
};

}  // namespace

constinit const Kernels kNeonKernels = make_table<Neon>("neon");

}  // namespace colibri::cpu

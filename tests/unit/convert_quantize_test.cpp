// Quantisers against arithmetic done a second time, in double and element by element, and against decode_row.
#include "convert/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "convert/matrix_units.h"
#include "format_test_util.h"

namespace colibri {
namespace {

using test::Random;

const char* const kNames[] = {"int8", "int4", "int4-g16", "int4-g32", "int4-g48", "int4-g64", "int4-g128", "int3-g64", "int2"};

struct Rule {
  double divisor, low, high, floor;
};
Rule rule_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt8Row: return {127, -128, 127, 1e-8f};
    case WeightFormat::kInt3G64: return {3, -4, 3, 0};
    case WeightFormat::kInt2Row: return {1, -2, 1, 0};
    default: return {7, -8, 7, 0};
  }
}

// Nearest integer, ties to even, without asking the machine's rounding mode.
double nearest(double v) {
  const double below = std::floor(v), rest = v - below;
  if (rest != 0.5) return rest < 0.5 ? below : below + 1;
  return std::fmod(below, 2) == 0 ? below : below + 1;
}

struct Quantised {
  AlignedBytes memory;
  Matrix matrix;
  QuantizationError error;
  bool finite = true;
};
Quantised quantise(const TargetFormat& target, const std::vector<float>& weights, std::int64_t rows, std::int64_t cols) {
  Quantised q;
  q.matrix = describe_matrix(target, rows, cols);
  const std::uint64_t data = round_up(static_cast<std::uint64_t>(rows * q.matrix.row_bytes), 64);
  q.memory = AlignedBytes(data + 4 * static_cast<std::uint64_t>(rows * q.matrix.scale_stride) + kReadSlack);
  float* const scales = reinterpret_cast<float*>(q.memory.data() + data);
  for (std::int64_t o = 0; o < rows; ++o)
    q.finite = quantize_row(target, weights.data() + o * cols, cols, q.memory.data() + o * q.matrix.row_bytes,
                            scales + o * q.matrix.scale_stride, q.error) &&
               q.finite;
  q.matrix.data = q.memory.data();
  if (q.matrix.scale_stride > 0) q.matrix.scales = scales;
  return q;
}

std::vector<float> random_weights(std::int64_t count, Random& random) {
  std::vector<float> weights(static_cast<std::size_t>(count));
  for (float& w : weights) w = static_cast<float>(random.between(-100000, 100000)) * 3e-7f;
  return weights;
}

class Formats : public testing::TestWithParam<const char*> {};

TEST_P(Formats, EqualsArithmeticDoneASecondTime) {
  const TargetFormat target = *parse_target_format(GetParam());
  const Rule rule = rule_of(target.format);
  Random random(11);
  for (const std::int64_t cols : {1, 2, 3, 31, 47, 64, 65, 129, 192, 300, 1000}) {
    constexpr std::int64_t kRows = 3;
    std::vector<float> weights = random_weights(kRows * cols, random);
    // The second row is made of halves of its scale where the format allows: ties.
    for (std::int64_t k = 0; k < cols; ++k)
      weights[static_cast<std::size_t>(cols + k)] =
          k % 16 == 0 ? static_cast<float>(rule.divisor)
                      : 0.5f * static_cast<float>(random.between(-2 * static_cast<std::int64_t>(rule.divisor),
                                                                 2 * static_cast<std::int64_t>(rule.divisor)));
    const Quantised q = quantise(target, weights, kRows, cols);
    ASSERT_TRUE(q.finite);
    const std::int64_t span = target.group > 0 ? target.group : cols;
    double difference = 0, squares = 0;
    std::vector<float> decoded(static_cast<std::size_t>(cols)), exact(round_up(static_cast<std::uint64_t>(cols), 32)),
        block(static_cast<std::size_t>(ceil_div(cols, 32)));
    for (std::int64_t o = 0; o < kRows; ++o) {
      dequantize_row(q.matrix, o, decoded.data());
      decode_row(q.matrix, o, exact.data(), block.data());
      for (std::int64_t k = 0; k < cols; ++k) {
        const std::int64_t begin = k / span * span, end = std::min(begin + span, cols);
        float largest = 0;
        for (std::int64_t i = begin; i < end; ++i)
          largest = std::max(largest, std::abs(weights[static_cast<std::size_t>(o * cols + i)]));
        const float scale = std::max(largest / static_cast<float>(rule.divisor), static_cast<float>(rule.floor));
        const float w = weights[static_cast<std::size_t>(o * cols + k)];
        const double want = scale > 0 ? std::min(std::max(nearest(static_cast<double>(w / scale)), rule.low), rule.high) : 0;
        EXPECT_EQ(q.matrix.row_scales(o)[k / span], scale) << cols << " " << o << " " << k;
        EXPECT_EQ(decoded[static_cast<std::size_t>(k)], static_cast<float>(want) * scale) << cols << " " << o << " " << k;
        const double d = want * static_cast<double>(scale) - w;
        difference += d * d;
        squares += static_cast<double>(w) * w;
      }
    }
    EXPECT_NEAR(q.error.difference_squares, difference, 1e-9 * difference + 1e-30);
    EXPECT_NEAR(q.error.weight_squares, squares, 1e-9 * squares);
    EXPECT_DOUBLE_EQ(q.error.relative_rms(), std::sqrt(q.error.difference_squares / q.error.weight_squares));
  }
}

// What is stored once is stored the same again: converting twice loses nothing more. The row-wise scales come back only
// up to rounding, so the integers are compared.
TEST_P(Formats, NothingIsLostTheSecondTime) {
  const TargetFormat target = *parse_target_format(GetParam());
  Random random(3);
  constexpr std::int64_t kCols = 192;
  const Quantised once = quantise(target, random_weights(4 * kCols, random), 4, kCols);
  std::vector<float> decoded(4 * kCols);
  for (std::int64_t o = 0; o < 4; ++o) dequantize_row(once.matrix, o, decoded.data() + o * kCols);
  const Quantised twice = quantise(target, decoded, 4, kCols);
  EXPECT_EQ(std::memcmp(once.matrix.data, twice.matrix.data, static_cast<std::size_t>(4 * once.matrix.row_bytes)), 0);
  EXPECT_LT(twice.error.relative_rms(), 1e-6);
}

TEST_P(Formats, ZeroTinyAndNotFinite) {
  const TargetFormat target = *parse_target_format(GetParam());
  constexpr std::int64_t kCols = 70;
  for (const float value : {0.0f, -0.0f, 1e-42f}) {
    const Quantised q = quantise(target, std::vector<float>(kCols, value), 1, kCols);
    EXPECT_TRUE(q.finite);
    std::vector<float> decoded(kCols, 1);
    dequantize_row(q.matrix, 0, decoded.data());
    for (const float w : decoded) EXPECT_EQ(w, 0.0f);
    EXPECT_TRUE(std::isfinite(q.matrix.scales[0]));
  }
  for (const float value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf("")})
    for (const std::size_t at : {0, 33, 69}) {
      std::vector<float> weights(kCols, 1.0f);
      weights[at] = value;
      EXPECT_FALSE(quantise(target, weights, 1, kCols).finite) << value << " at " << at;
    }
}

INSTANTIATE_TEST_SUITE_P(All, Formats, testing::ValuesIn(kNames), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Floats, Bf16RoundsToEvenAndF32IsExact) {
  const std::vector<float> weights = {1.0f, 1.00390625f, 1.01171875f, -1.0039064f, 3.0e38f, 1e-40f};
  const std::vector<float> expected = {1.0f, 1.0f, 1.015625f, -1.0078125f, 2.9973e38f, 0.0f};
  const Quantised q = quantise(*parse_target_format("bf16"), weights, 1, 6);
  ASSERT_TRUE(q.finite);
  std::vector<float> decoded(6);
  dequantize_row(q.matrix, 0, decoded.data());
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(decoded[i], expected[i]) << i;
  EXPECT_NEAR(decoded[4] / weights[4], 1, 1.0 / 256);
  EXPECT_NEAR(decoded[5], 1e-40f, 5e-41f);  // a subnormal: steps of 9e-41
  EXPECT_FALSE(quantise(*parse_target_format("bf16"), {std::numeric_limits<float>::max()}, 1, 1).finite) << "rounds to infinity";
  const Quantised f = quantise(*parse_target_format("f32"), weights, 1, 6);
  dequantize_row(f.matrix, 0, decoded.data());
  EXPECT_EQ(decoded, weights);
  EXPECT_EQ(f.error.relative_rms(), 0);
}

TEST(Names, AreReadAndWritten) {
  for (const char* name : {"int8-row", "int4-row", "int2-row", "int4-g64", "int4-g128", "int3-g64", "bf16", "f32"}) {
    const auto target = parse_target_format(name);
    ASSERT_TRUE(target) << name;
    EXPECT_EQ(target_format_text(*target), name);
  }
  for (const char* name : {"", "int5", "int4-g", "int4-g7", "int4-g64x", "int4-g-64", "int3", "fp8", "INT8", "int4-g99999999999"})
    EXPECT_FALSE(parse_target_format(name)) << name;
  test::expect_error(parse_target_format("int5"), {"\"int5\"", "int4-g64"});
}

// Readers guess the format from sizes; a writer must not leave them to guess wrong.
TEST(MatrixTensors, AreStampedOrRefusedWhereSizesMislead) {
  const auto plain = matrix_tensors("a", *parse_target_format("int4-g64"), 64, 256);
  ASSERT_TRUE(plain);
  EXPECT_EQ((*plain)[0].stamp, "");
  // 128 x 128: one fp8 block has as many scale bytes as ... one row of int8 when there is one row.
  const auto fp8 = matrix_tensors("a", {WeightFormat::kF8Block128, 128}, 1, 100);
  ASSERT_TRUE(fp8);
  EXPECT_EQ((*fp8)[0].stamp, "fp8-b128");
  // Columns 65 .. 96: groups of 48 and of 64 make two scales each; 64 is what readers take.
  EXPECT_TRUE(matrix_tensors("a", *parse_target_format("int4-g64"), 8, 80));
  test::expect_error(matrix_tensors("some.name", *parse_target_format("int4-g48"), 8, 80),
                     {"'some.name'", "[8, 80]", "int4-g48"});
}

}  // namespace
}  // namespace colibri

// Every weight format against bytes written by hand and against packing by plain arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "format/matrix.h"
#include "format_test_util.h"

namespace colibri {
namespace {

using test::PackedMatrix;
using test::Random;

Matrix view(WeightFormat format, std::int64_t rows, std::int64_t cols, std::int32_t group, const void* data,
            const float* scales) {
  Matrix m;
  m.format = format;
  m.group = group;
  m.rows = rows;
  m.cols = cols;
  m.row_bytes = format_row_bytes(format, cols);
  m.scale_stride = format_row_scales(format, cols, group);
  m.data = static_cast<const std::byte*>(data);
  m.scales = scales;
  return m;
}

std::vector<float> row_of(const Matrix& m, std::int64_t o) {
  std::vector<float> row(static_cast<std::size_t>(m.cols));
  dequantize_row(m, o, row.data());
  return row;
}

using Row = std::vector<float>;

TEST(GoldenBytes, Int8IsSigned) {
  const std::uint8_t data[] = {0x00, 0x01, 0x7f, 0xff, 0x80, 0x02};
  const float scales[] = {0.5f, 2.0f};
  const Matrix m = view(WeightFormat::kInt8Row, 2, 3, 0, data, scales);
  EXPECT_EQ(row_of(m, 0), (Row{0, 0.5f, 63.5f}));
  EXPECT_EQ(row_of(m, 1), (Row{-2, -256, 4}));
}

TEST(GoldenBytes, Int4LowNibbleFirstAndOddColumns) {
  const std::uint8_t data[] = {0x80, 0xf9, 0x37, 0x17, 0xe8, 0x0a};  // two rows of five columns: three bytes each
  const float scales[] = {1.0f, 0.25f};
  const Matrix m = view(WeightFormat::kInt4Row, 2, 5, 0, data, scales);
  EXPECT_EQ(row_of(m, 0), (Row{-8, 0, 1, 7, -1}));  // the 3 is padding
  EXPECT_EQ(row_of(m, 1), (Row{-0.25f, -1.75f, 0, 1.5f, 0.5f}));
}

TEST(GoldenBytes, Int4GroupsDoNotStraddleRowsAndTheLastIsShort) {
  std::uint8_t data[2 * 9] = {};        // 18 columns in groups of 16
  for (auto& byte : data) byte = 0x9a;  // 2, 1, 2, 1, ...
  const float scales[] = {1, 10, 100, 1000};
  const Matrix m = view(WeightFormat::kInt4Grouped, 2, 18, 16, data, scales);
  const Row first = row_of(m, 0), second = row_of(m, 1);
  EXPECT_EQ(Row(first.begin() + 14, first.end()), (Row{2, 1, 20, 10}));
  EXPECT_EQ(Row(second.begin() + 14, second.end()), (Row{200, 100, 2000, 1000}));
}

TEST(GoldenBytes, Int2FourToAByte) {
  const std::uint8_t data[] = {0xe4, 0x03, 0x1b, 0x00};  // codes 0 1 2 3 3 | 3 2 1 0 0
  const float scales[] = {1.0f, 3.0f};
  const Matrix m = view(WeightFormat::kInt2Row, 2, 5, 0, data, scales);
  EXPECT_EQ(row_of(m, 0), (Row{-2, -1, 0, 1, 1}));
  EXPECT_EQ(row_of(m, 1), (Row{3, 0, -3, -6, -6}));
}

TEST(GoldenBytes, Int3LowBitsThenHighBits) {
  std::uint8_t data[48] = {};
  data[0] = 0xe4;       // low bits of columns 0..3: 0 1 2 3
  data[16] = 0x0a;      // high bits of columns 1 and 3
  data[15] = 0x40;      // low bits of column 63: 1
  data[23] = 0x80;      // its high bit
  data[24] = 0x03;      // column 64, in the second group: low bits 3
  data[24 + 16] = 0x1;  // and its high bit
  const float scales[] = {1.0f, 0.5f};
  const Matrix m = view(WeightFormat::kInt3G64, 1, 65, 64, data, scales);
  const Row row = row_of(m, 0);
  EXPECT_EQ(Row(row.begin(), row.begin() + 5), (Row{-4, 1, -2, 3, -4}));
  EXPECT_EQ(row[63], 1);
  EXPECT_EQ(row[64], 1.5f);
}

TEST(GoldenBytes, E4m3) {
  const std::pair<std::uint8_t, float> kCodes[] = {{0x00, 0.0f},  {0x01, 0x1p-9f}, {0x07, 7 * 0x1p-9f}, {0x08, 0x1p-6f},
                                                   {0x38, 1.0f},  {0x3c, 1.5f},    {0x40, 2.0f},        {0x7e, 448.0f},
                                                   {0xb8, -1.0f}, {0xfe, -448.0f}, {0x81, -0x1p-9f}};
  for (const auto& [code, value] : kCodes) EXPECT_EQ(f32_from_e4m3(code), value) << int{code};
  EXPECT_TRUE(std::isnan(f32_from_e4m3(0x7f)));
  EXPECT_TRUE(std::isnan(f32_from_e4m3(0xff)));
  for (int code = 0; code < 127; ++code) {  // the definition: sign, exponent with bias 7, three bits of fraction
    const int exponent = code / 8, fraction = code % 8;
    const double value = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    EXPECT_EQ(f32_from_e4m3(static_cast<std::uint8_t>(code)), value) << code;
    EXPECT_EQ(f32_from_e4m3(static_cast<std::uint8_t>(code + 128)), -value) << code;
  }
}

TEST(GoldenBytes, F16EveryCode) {
  for (int code = 0; code < 0x7c00; ++code) {
    const int exponent = code / 1024, fraction = code % 1024;
    const double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(f32_from_f16(static_cast<std::uint16_t>(code)), value) << code;
    ASSERT_EQ(f32_from_f16(static_cast<std::uint16_t>(code + 0x8000)), -value) << code;
  }
  EXPECT_EQ(f32_from_f16(0x7c00), INFINITY);
  EXPECT_EQ(f32_from_f16(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(f32_from_f16(0x7e00)));
}

TEST(GoldenBytes, Bf16IsTheUpperHalf) {
  EXPECT_EQ(f32_from_bf16(0x3f80), 1.0f);
  EXPECT_EQ(f32_from_bf16(0xc049), -3.140625f);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(f32_from_bf16(0x0001)), 0x00010000u);
}

TEST(GoldenBytes, Fp8BlocksCountFromTheStoredTensor) {
  const std::int64_t rows = 300, cols = 130;
  const std::vector<std::uint8_t> data(static_cast<std::size_t>(rows * cols), 0x38);  // 1.0
  const float scales[] = {1, 2, 3, 4, 5, 6};                                          // three blocks of rows, two of columns
  const Matrix m = view(WeightFormat::kF8Block128, rows, cols, 128, data.data(), scales);
  for (const std::int64_t o : {0, 127, 128, 255, 256, 299}) {
    const Row row = row_of(m, o);
    const std::int64_t block = o / 128;
    EXPECT_EQ(row[0], static_cast<float>(1 + 2 * block)) << o;
    EXPECT_EQ(row[127], row[0]) << o;
    EXPECT_EQ(row[128], static_cast<float>(2 + 2 * block)) << o;
  }
  const Matrix part = m.rows_view(100, 200).rows_view(20, 150);  // rows 120 .. 269
  for (std::int64_t o = 0; o < part.rows; ++o) ASSERT_EQ(row_of(part, o), row_of(m, 120 + o)) << o;
}

// Packed by arithmetic, over odd sizes and short groups.
struct Layout {
  WeightFormat format;
  std::int32_t group;
};
constexpr Layout kLayouts[] = {
    {WeightFormat::kInt8Row, 0},       {WeightFormat::kInt4Row, 0},       {WeightFormat::kInt2Row, 0},
    {WeightFormat::kInt3G64, 64},      {WeightFormat::kInt4Grouped, 16},  {WeightFormat::kInt4Grouped, 32},
    {WeightFormat::kInt4Grouped, 48},  {WeightFormat::kInt4Grouped, 64},  {WeightFormat::kInt4Grouped, 96},
    {WeightFormat::kInt4Grouped, 128}, {WeightFormat::kInt4Grouped, 192}, {WeightFormat::kInt4Grouped, 256}};
constexpr std::int64_t kColumns[] = {1, 2, 3, 7, 24, 31, 32, 33, 63, 64, 65, 127, 130, 257, 384};

class Packing : public testing::TestWithParam<Layout> {};

TEST_P(Packing, DequantizeGivesTheRealWeights) {
  const auto [format, group] = GetParam();
  for (const std::int64_t cols : kColumns) {
    Random random(static_cast<std::uint64_t>(cols));
    const PackedMatrix packed = test::pack(format, 5, cols, group ? group : cols, random);
    ASSERT_EQ(packed.bytes.size(), static_cast<std::size_t>(format_bytes(format, 5, cols)));
    ASSERT_EQ(packed.scales.size(), static_cast<std::size_t>(format_scales(format, 5, cols, group)));
    const Matrix m = view(format, 5, cols, group, packed.bytes.data(), packed.scales.data());
    for (std::int64_t o = 0; o < 5; ++o)
      ASSERT_EQ(row_of(m, o), Row(packed.weights.begin() + o * cols, packed.weights.begin() + (o + 1) * cols))
          << cols << " " << o;
  }
}

TEST_P(Packing, DecodeRowSplitsWeightAndScale) {
  const auto [format, group] = GetParam();
  for (const std::int64_t cols : kColumns) {
    Random random(static_cast<std::uint64_t>(cols) + 1000);
    const PackedMatrix packed = test::pack(format, 3, cols, group ? group : cols, random);
    const Matrix m = view(format, 3, cols, group, packed.bytes.data(), packed.scales.data());
    const std::int64_t blocks = (cols + 31) / 32;
    for (std::int64_t o = 0; o < 3; ++o) {
      Row w(static_cast<std::size_t>(32 * blocks), NAN), scale(static_cast<std::size_t>(blocks), NAN);
      decode_row(m, o, w.data(), scale.data());
      for (std::int64_t k = 0; k < 32 * blocks; ++k) {
        const float found = w[static_cast<std::size_t>(k)], by = scale[static_cast<std::size_t>(k / 32)];
        const float expected = k < cols ? packed.weights[static_cast<std::size_t>(o * cols + k)] : 0.0f;
        ASSERT_EQ(found * by, expected) << cols << " " << o << " " << k;
        // The stored integer and not the product, wherever a block of 32 has one scale.
        if (group % 32 == 0) {
          ASSERT_EQ(found, std::nearbyint(found)) << cols << " " << o << " " << k;
        }
      }
    }
  }
}

std::string layout_name(const testing::TestParamInfo<Layout>& info) {
  std::string name = fmt::format("{}_{}", format_name(info.param.format), info.param.group);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Formats, Packing, testing::ValuesIn(kLayouts), layout_name);

TEST(FloatFormats, DecodeRowWidensAndPads) {
  const std::vector<std::uint16_t> data = {0x3f80, 0xc000, 0x4040};
  const Matrix m = view(WeightFormat::kBF16, 1, 3, 0, data.data(), nullptr);
  Row w(32, NAN), scale(1, NAN);
  decode_row(m, 0, w.data(), scale.data());
  EXPECT_EQ(scale[0], 1.0f);
  EXPECT_EQ(Row(w.begin(), w.begin() + 4), (Row{1, -2, 3, 0}));
}

}  // namespace
}  // namespace colibri

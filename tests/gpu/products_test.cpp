// Products on the device against the scalar kernels, bit for bit.
#include "gpu/products.h"

#include "device_matrix.h"

namespace colibri::gpu::test {
namespace {

constexpr std::int64_t kRowCounts[] = {1, 2, 3, 4, 7, 16, 17, 64};

std::string name_of(const MatrixShape& s, std::int64_t rows) {
  return fmt::format("{} g{} {}x{}, offset {}, {} extra bytes, origin {}, {} rows", format_name(s.format), s.group, s.rows,
                     s.cols, s.offset, s.extra_bytes, s.row_origin, rows);
}

class ProductsTest : public GpuTest {
 protected:
  std::int64_t pick(std::initializer_list<std::int64_t> values) { return values.begin()[rng_() % values.size()]; }

  // One product of random numbers, all outputs compared, with everything around them.
  void check(const MatrixShape& s, std::int64_t rows, const ProductPlan& plan = {}) {
    SCOPED_TRACE(name_of(s, rows));
    const std::int64_t x_stride = s.cols + pick({0, 1, 5}), y_stride = s.rows + pick({0, 3});
    DeviceArena arena(device(), matrix_bytes(s) + 4 * static_cast<std::uint64_t>(rows * (x_stride + y_stride)) + 8192);
    const Matrix w = device_matrix(arena, rng_, s);
    const auto x = arena.block<float>((rows - 1) * x_stride + s.cols, 4 * (rng_() % 4));
    for (float& v : x) v = test_float(rng_, s.wild);
    const auto y = arena.block<float>(rows * y_stride, 4 * (rng_() % 4));
    std::fill(y.begin(), y.end(), kPoison);
    run([&](Encoder& e) { product(e, plan, w, {arena.at(x), rows, s.cols, x_stride}, arena.at(y), y_stride); });
    EXPECT_TRUE(arena.guards_hold());
    const std::vector<float> want = scalar_products(w, x.data(), x_stride, rows);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t o = 0; o < y_stride; ++o) {
        const float expected = o < s.rows ? want[static_cast<std::size_t>(r * s.rows + o)] : kPoison;
        const float found = y[static_cast<std::size_t>(r * y_stride + o)];
        ASSERT_TRUE(same_bits(expected, found))
            << "row " << r << ", output " << o << ": expected " << expected << ", found " << found;
      }
    ++checked_;
  }

  MatrixShape random_shape(WeightFormat format, std::int64_t cols) {
    MatrixShape s;
    s.format = format;
    s.rows = pick({1, 3, 4, 5, 31, 32, 33, 67});
    s.cols = cols;
    s.group = static_cast<std::int32_t>(pick({32, 64, 128, 256}));
    const bool aligned = rng_() % 2;
    s.offset = aligned ? 0 : static_cast<std::uint64_t>(pick({1, 2, 3, 8}) * stored_bytes(format));
    s.extra_bytes = aligned ? (16 - format_row_bytes(format, cols) % 16) % 16 : pick({0, 1, 4}) * stored_bytes(format);
    s.row_origin = pick({0, 0, 100, 300});
    s.wild = rng_() % 3 == 0;
    return s;
  }

  std::int64_t checked_ = 0;
};

TEST_F(ProductsTest, EveryFormatRowCountAndTail) {
  for (const WeightFormat format : kAllFormats)
    for (const std::int64_t rows : kRowCounts)
      for (const std::int64_t cols : {1, 2, 31, 32, 33, 64, 65, 130, 255, 256, 257, 288, 500, 512, 769, 2050}) {
        check(random_shape(format, cols), rows);
        if (HasFatalFailure()) return;
      }
  RecordProperty("shapes", static_cast<int>(checked_));
}

TEST_F(ProductsTest, GroupsOfEverySize) {
  for (const std::int32_t group : {1, 7, 16, 32, 48, 64, 96, 100, 128, 192, 256, 320, 1000})
    for (const std::int64_t rows : kRowCounts)
      for (const std::int64_t cols : {33, 96, 256, 300, 640, 1030}) {
        MatrixShape s = random_shape(WeightFormat::kInt4Grouped, cols);
        s.group = group;
        check(s, rows);
        if (HasFatalFailure()) return;
      }
  RecordProperty("shapes", static_cast<int>(checked_));
}

// C3: whichever kernel takes the rows.
TEST_F(ProductsTest, TheThresholdOfTheTileKernelDoesNotShow) {
  for (const WeightFormat format : kAllFormats)
    for (const std::int64_t tile_from : {1, 2, 1000})
      for (const std::int64_t rows : {1, 2, 5, 9, 20}) {
        check(random_shape(format, pick({100, 512, 700})), rows, {tile_from});
        if (HasFatalFailure()) return;
      }
}

// Every code of the small floats, in every place of a block: rows of an identity matrix pick single weights.
TEST_F(ProductsTest, EveryCodeIsWidenedExactly) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kF8Block128})
    for (const std::int64_t cols : {32, 33}) {  // as whole blocks, and column by column
      const bool small = format == WeightFormat::kF8Block128;
      MatrixShape s{.format = format, .rows = small ? 256 : 2048 + 32, .cols = cols};
      s.extra_bytes = (16 - format_row_bytes(format, cols) % 16) % 16;
      DeviceArena arena(device(), matrix_bytes(s) + 4 * static_cast<std::uint64_t>(cols * (cols + s.rows)) + 8192);
      const Matrix w = device_matrix(arena, rng_, s);
      std::uint32_t code = 0;
      for (std::int64_t o = 0; o < s.rows; ++o)
        for (std::int64_t k = 0; k < cols; ++k, ++code) {
          std::byte* at = const_cast<std::byte*>(w.row(o)) + k * stored_bytes(format);
          std::uint16_t v = static_cast<std::uint16_t>(code);
          if (small) {
            const std::uint32_t c = (static_cast<std::uint32_t>(o) + static_cast<std::uint32_t>(k)) % 256;
            *at = std::byte{static_cast<unsigned char>((c & 0x7f) == 0x7f ? 0 : c)};
            continue;
          }
          if (format == WeightFormat::kF16 && (v & 0x7c00) == 0x7c00) v = 0;
          if (format == WeightFormat::kBF16 && (v & 0x7f80) == 0x7f80) v = 0;
          std::memcpy(at, &v, 2);
        }
      if (small) const_cast<float*>(w.scales)[0] = const_cast<float*>(w.scales)[w.scale_stride] = 1.0f;
      const auto x = arena.block<float>(cols * cols), y = arena.block<float>(cols * s.rows);
      for (std::int64_t i = 0; i < cols * cols; ++i) x[static_cast<std::size_t>(i)] = i % (cols + 1) == 0 ? 1.0f : 0.0f;
      run([&](Encoder& e) { product(e, {}, w, {arena.at(x), cols, cols, cols}, arena.at(y), s.rows); });
      std::vector<float> row(64), scale(2);
      for (std::int64_t o = 0; o < s.rows; ++o) {
        decode_row(w, o, row.data(), scale.data());
        for (std::int64_t k = 0; k < cols; ++k)
          ASSERT_EQ(row[static_cast<std::size_t>(k)] + 0.0f, y[static_cast<std::size_t>(k * s.rows + o)])
              << format_name(format) << ", row " << o << ", column " << k;
      }
    }
}

// Codes that are NaN or infinite reach the result.
TEST_F(ProductsTest, WhatIsNotFiniteStaysSo) {
  for (const std::int64_t cols : {1, 64}) {
    DeviceArena arena(device(), 65536);
    MatrixShape s{.format = WeightFormat::kF16, .rows = 4, .cols = cols};
    Matrix w = device_matrix(arena, rng_, s);
    for (std::int64_t o = 0; o < 4; ++o) {
      const std::uint16_t codes[] = {0x7c00, 0xfc00, 0x7e01, 0x3c00};
      std::memcpy(const_cast<std::byte*>(w.row(o)), &codes[o], 2);
    }
    const auto x = arena.block(std::vector<float>(static_cast<std::size_t>(cols), 1.0f)), y = arena.block<float>(4);
    run([&](Encoder& e) { product(e, {}, w, {arena.at(x), 1, cols, cols}, arena.at(y), 4); });
    const std::vector<float> want = scalar_products(w, x.data(), cols, 1);
    for (std::size_t o = 0; o < 4; ++o) EXPECT_TRUE(same_bits(want[o], y[o])) << o << ": " << want[o] << ", " << y[o];
    EXPECT_TRUE(std::isinf(y[0]) && std::isinf(y[1]) && std::isnan(y[2]) && std::isfinite(y[3]));
  }
}

// Outputs of large matrices, sampled: the first, the last and some between.
class LargeProductsTest : public ProductsTest {
 protected:
  void check_samples(const MatrixShape& s, std::initializer_list<std::int64_t> row_counts) {
    constexpr std::int64_t kMostRows = 64;
    DeviceArena arena(device(), matrix_bytes(s) + 4 * static_cast<std::uint64_t>(kMostRows * (s.cols + s.rows)) + 65536);
    const Matrix w = device_matrix(arena, rng_, s);
    const auto x = arena.block<float>(kMostRows * s.cols), y = arena.block<float>(kMostRows * s.rows);
    for (float& v : x) v = test_float(rng_, false);
    for (const std::int64_t rows : row_counts) {
      SCOPED_TRACE(name_of(s, rows));
      std::fill(y.begin(), y.end(), kPoison);
      run([&](Encoder& e) { product(e, {}, w, {arena.at(x), rows, s.cols, s.cols}, arena.at(y), s.rows); });
      EXPECT_TRUE(arena.guards_hold());
      for (std::int64_t sample = 0; sample < 8; ++sample) {
        const auto last_first = static_cast<std::uint64_t>(s.rows - 8);
        const std::int64_t first = sample == 0 ? 0 : sample == 1 ? s.rows - 8 : static_cast<std::int64_t>(rng_() % last_first);
        const std::vector<float> want = scalar_products(w, first, first + 8, x.data(), s.cols, rows);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t o = first; o < first + 8; ++o) {
            const auto at = static_cast<std::size_t>(r * s.rows + o);
            ASSERT_TRUE(same_bits(want[at], y[at])) << "row " << r << ", output " << o << ": " << want[at] << ", " << y[at];
          }
      }
      for (std::int64_t i = 0; i < kMostRows * s.rows; ++i)
        ASSERT_EQ(y[static_cast<std::size_t>(i)] != kPoison, i < rows * s.rows) << "at " << i;
    }
  }
};

TEST_F(LargeProductsTest, ExpertShapes) {
  for (const auto& [rows, cols] : {std::pair{2048, 6144}, {6144, 2048}, {2050, 6146}})
    check_samples({.format = WeightFormat::kInt4Grouped, .rows = rows, .cols = cols, .group = 64}, {1, 3, 4, 7, 64});
}

TEST_F(LargeProductsTest, OtherFormats) {
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kInt8Row, WeightFormat::kInt3G64, WeightFormat::kF8Block128})
    check_samples({.format = format, .rows = 2050, .cols = 6146, .row_origin = 40}, {1, 7});
}

class HeadProductsTest : public ProductsTest {
 protected:
  struct Case {
    HeadSlices slices;
    std::int64_t rows, x_stride, x_head, y_stride, y_head;
  };
  // Rows of heads inside rows of activations, as in an attention layer.
  Case random_case(std::int64_t rows, std::int64_t count, std::int64_t cols, bool transposed) {
    Case c{};
    c.slices.heads = pick({1, 2, 5});
    c.slices.first = pick({0, 3, 32});
    c.slices.count = count;
    c.slices.head_rows = c.slices.first + count + pick({0, 7});
    c.rows = rows;
    c.x_head = (transposed ? count : cols) + pick({0, 2});
    c.x_stride = c.slices.heads * c.x_head + pick({0, 1});
    c.y_head = (transposed ? cols : count) + pick({0, 2});
    c.y_stride = c.slices.heads * c.y_head + pick({0, 1});
    return c;
  }
  void check_heads(const MatrixShape& shape, const Case& c, bool transposed) {
    MatrixShape s = shape;
    s.rows = c.slices.heads * c.slices.head_rows;
    SCOPED_TRACE(name_of(s, c.rows) + fmt::format(", {} heads of {}, rows {} + {}", c.slices.heads, c.slices.head_rows,
                                                  c.slices.first, c.slices.count));
    DeviceArena arena(device(), matrix_bytes(s) + 4 * static_cast<std::uint64_t>(c.rows * (c.x_stride + c.y_stride)) + 8192);
    const Matrix w = device_matrix(arena, rng_, s);
    const auto x = arena.block<float>(c.rows * c.x_stride), y = arena.block<float>(c.rows * c.y_stride);
    for (float& v : x) v = test_float(rng_, s.wild);
    std::fill(y.begin(), y.end(), kPoison);
    const std::int64_t in = transposed ? c.slices.count : s.cols, out = transposed ? s.cols : c.slices.count;
    const Rows rows{arena.at(x), c.rows, in, c.x_stride};
    run([&](Encoder& e) {
      if (transposed)
        transposed_head_products(e, w, c.slices, rows, c.x_head, arena.at(y), c.y_stride, c.y_head);
      else
        head_products(e, {}, w, c.slices, rows, c.x_head, arena.at(y), c.y_stride, c.y_head);
    });
    EXPECT_TRUE(arena.guards_hold());
    std::vector<float> want(y.size(), kPoison);
    for (std::int64_t h = 0; h < c.slices.heads; ++h) {
      const Matrix view = w.rows_view(h * c.slices.head_rows + c.slices.first, c.slices.count);
      const float* from = x.data() + h * c.x_head;
      const std::vector<float> part =
          transposed ? scalar_transposed(view, from, c.x_stride, c.rows) : scalar_products(view, from, c.x_stride, c.rows);
      for (std::int64_t r = 0; r < c.rows; ++r)
        std::copy_n(part.begin() + r * out, out, want.begin() + r * c.y_stride + h * c.y_head);
    }
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_TRUE(same_bits(want[i], y[i])) << "at " << i << ": expected " << want[i] << ", found " << y[i];
  }
};

TEST_F(HeadProductsTest, SlicesOfEveryFormat) {
  for (const WeightFormat format : kAllFormats)
    for (const std::int64_t rows : {1, 2, 4, 7, 16, 19})
      for (const std::int64_t cols : {40, 256, 513}) {
        const Case c = random_case(rows, pick({1, 31, 64, 128}), cols, false);
        check_heads(random_shape(format, cols), c, false);
        if (HasFatalFailure()) return;
      }
}

TEST_F(HeadProductsTest, TransposedSlicesOfEveryFormat) {
  for (const WeightFormat format : kAllFormats)
    for (const std::int64_t rows : {1, 2, 4, 5, 8, 17})
      for (const std::int64_t cols : {1, 40, 127, 256, 513}) {
        MatrixShape s = random_shape(format, cols);
        if (format == WeightFormat::kInt4Grouped) s.group = static_cast<std::int32_t>(pick({16, 32, 48, 64, 100}));
        const Case c = random_case(rows, pick({1, 31, 32, 33, 64, 192}), cols, true);
        check_heads(s, c, true);
        if (HasFatalFailure()) return;
      }
}

}  // namespace
}  // namespace colibri::gpu::test

// The products of every instruction set against the scalar definition, bit for bit.
#include "cpu_test_support.h"

namespace colibri::test {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32,     WeightFormat::kBF16,    WeightFormat::kF16,
                                     WeightFormat::kInt8Row, WeightFormat::kInt4Row, WeightFormat::kInt4Grouped,
                                     WeightFormat::kInt2Row, WeightFormat::kInt3G64, WeightFormat::kF8Block128};
constexpr std::int32_t kGroups[] = {16, 32, 48, 64, 96, 128, 192, 256, 40};

class Products : public EveryTable {
 protected:
  // x [rows, cols] with infinities behind each row, packed by the scalar kernel, and what the vector kernel packs.
  struct Inputs {
    std::unique_ptr<ExactBytes> plain;
    std::int64_t stride = 0;
    AlignedArray<float> packed;
    PackedRows view;
  };
  Inputs make_inputs(std::int64_t rows, std::int64_t cols, bool wild) {
    Inputs x;
    x.stride = cols + static_cast<std::int64_t>(rng_() % 3);
    const std::int64_t count = (rows - 1) * x.stride + cols;
    x.plain = std::make_unique<ExactBytes>(4 * count, 4 * static_cast<std::int64_t>(rng_() % 4), 0);
    for (std::int64_t i = 0; i < count; ++i)
      x.plain->floats()[i] = i % x.stride < cols ? random_float(rng_, wild) : std::numeric_limits<float>::infinity();
    const auto floats = static_cast<std::size_t>(PackedRows::floats(rows, cols));
    x.packed = AlignedArray<float>(floats);
    AlignedArray<float> other(floats);
    std::fill_n(x.packed.data(), floats, kPoison);
    std::fill_n(other.data(), floats, kPoison);
    scalar().pack_rows(x.plain->floats(), x.stride, rows, cols, x.packed.data());
    kernels().pack_rows(x.plain->floats(), x.stride, rows, cols, other.data());
    EXPECT_EQ(0, std::memcmp(x.packed.data(), other.data(), 4 * floats)) << "pack_rows " << rows << "x" << cols;
    x.view = {x.packed.data(), rows, cols};
    return x;
  }

  void check(const Matrix& w, std::int64_t rows, std::int64_t first, std::int64_t last, bool wild) {
    const Inputs x = make_inputs(rows, w.cols, wild);
    const std::int64_t stride = w.rows + 3;
    std::vector<float> want(static_cast<std::size_t>(rows * stride), kPoison), got = want;
    const Scratch scratch(w.cols);
    scalar().matmul(w, first, last, x.view, want.data(), stride, scratch.view);
    kernels().matmul(w, first, last, x.view, got.data(), stride, scratch.view);
    ASSERT_TRUE(all_same(want, got)) << format_name(w.format) << " group " << w.group << ", [" << w.rows << ", " << w.cols
                                     << "], rows " << rows << ", outputs " << first << " to " << last << ", seed " << run_seed();
  }

  void check_transposed(const Matrix& w, std::int64_t rows, bool wild) {
    const std::int64_t x_stride = w.rows + 2, y_stride = w.cols + 5;
    std::vector<float> x(static_cast<std::size_t>(rows * x_stride), std::numeric_limits<float>::infinity());
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t d = 0; d < w.rows; ++d) x[static_cast<std::size_t>(r * x_stride + d)] = random_float(rng_, wild);
    std::vector<float> want(static_cast<std::size_t>(rows * y_stride), kPoison), got = want;
    const Scratch scratch(w.cols);
    scalar().transposed_matmul(w, x.data(), x_stride, rows, want.data(), y_stride, scratch.view);
    kernels().transposed_matmul(w, x.data(), x_stride, rows, got.data(), y_stride, scratch.view);
    ASSERT_TRUE(all_same(want, got)) << format_name(w.format) << " group " << w.group << ", [" << w.rows << ", " << w.cols
                                     << "], rows " << rows << ", seed " << run_seed();
  }

  template <class Body>
  void for_each_format(Body body) {
    for (const WeightFormat format : kFormats) {
      if (format != WeightFormat::kInt4Grouped) {
        body(format, 0);
        continue;
      }
      for (const std::int32_t group : kGroups) body(format, group);
    }
  }
};

TEST_P(Products, EveryFormatAndWidth) {
  constexpr std::int64_t kCols[] = {1,  2,  3,   5,   8,   15,  16,  17,  31,  32,  33,  47,  48,  49,  63,  64,  65,  70,
                                    95, 97, 127, 128, 129, 191, 224, 255, 256, 257, 300, 511, 512, 576, 700, 768, 1025};
  for_each_format([&](WeightFormat format, std::int32_t group) {
    for (const std::int64_t cols : kCols) {
      const bool wild = rng_() % 2;
      const std::int64_t outputs = 1 + static_cast<std::int64_t>(rng_() % 12);
      const RandomMatrix w = random_matrix(rng_, format, outputs, cols, group,
                                           {.offset = 8 * static_cast<std::int64_t>(rng_() % 8),
                                            .extra_bytes = static_cast<std::int64_t>(rng_() % 3),
                                            .wild = wild});
      for (const std::int64_t rows : {1, 2, 5}) check(w.m, rows, 0, outputs, wild);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(Products, EveryRowCount) {
  for_each_format([&](WeightFormat format, std::int32_t group) {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 63, 64, 65, 130}) {
      const std::int64_t outputs = 1 + static_cast<std::int64_t>(rng_() % 30), cols = rng_() % 2 ? 512 : 600;
      const RandomMatrix w = random_matrix(rng_, format, outputs, cols, group);
      check(w.m, rows, 0, outputs, false);
      if (HasFatalFailure()) return;
    }
  });
}

// A kernel that scales the row by a power of two must notice values that would leave the range of floats.
TEST_P(Products, RowsWithTinyAndHugeValues) {
  for (const float size : {0x1p-149f, 0x1p-126f, 0x1p-120f, 0x1p-99f, 0x1p-98f, 0x1p-97f, 0x1p-70f, 0x1p100f, 0x1p120f})
    for (const std::int32_t group : {0, 32, 64, 128}) {
      const RandomMatrix w = random_matrix(rng_, group == 0 ? WeightFormat::kInt4Row : WeightFormat::kInt4Grouped, 9, 700, group);
      Inputs x = make_inputs(1, 700, false);
      for (int i = 0; i < 40; ++i) {
        float& value = x.packed[rng_() % 512];
        value = std::copysign(size, value);
        if (i % 4 == 0) value = 0;
      }
      if (rng_() % 2) {  // nothing else, so that these are all of the sum
        for (std::size_t i = 0; i < x.packed.size(); ++i)
          if (std::fabs(x.packed[i]) != size) x.packed[i] = 0;
      }
      std::vector<float> want(9, kPoison), got = want;
      const Scratch scratch(700);
      scalar().matmul(w.m, 0, 9, x.view, want.data(), 9, scratch.view);
      kernels().matmul(w.m, 0, 9, x.view, got.data(), 9, scratch.view);
      ASSERT_TRUE(all_same(want, got)) << "values of " << size << ", group " << group << ", seed " << run_seed();
    }
}

TEST_P(Products, SubRangesWriteNothingElse) {
  for_each_format([&](WeightFormat format, std::int32_t group) {
    const RandomMatrix w = random_matrix(rng_, format, 67, 320, group);
    for (const std::int64_t rows : {1, 3, 9})
      for (int i = 0; i < 6; ++i) {
        const auto first = static_cast<std::int64_t>(rng_() % 67);
        check(w.m, rows, first, first + static_cast<std::int64_t>(rng_() % static_cast<std::uint64_t>(68 - first)), false);
        if (HasFatalFailure()) return;
      }
  });
}

TEST_P(Products, ModelWidths) {
  for_each_format([&](WeightFormat format, std::int32_t group) {
    for (const std::int64_t cols : {2048, 6144, 6175}) {
      const RandomMatrix w = random_matrix(rng_, format, 27, cols, group, {.offset = 8});
      for (const std::int64_t rows : {1, 4}) check(w.m, rows, 0, 27, false);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(Products, RowViewsKeepTheirBlocksOfScales) {
  for_each_format([&](WeightFormat format, std::int32_t group) {
    const RandomMatrix w = random_matrix(rng_, format, 400, 300, group);
    for (const std::int64_t first : {0, 1, 100, 127, 128, 130, 255, 300}) {
      const Matrix view = w.m.rows_view(first, 100), again = view.rows_view(29, 50);
      for (const Matrix& m : {view, again}) {
        check(m, 1, 0, m.rows, false);
        check(m, 5, 20, m.rows, false);
        check_transposed(m, 2, false);
        if (HasFatalFailure()) return;
      }
    }
  });
}

TEST_P(Products, NanWeightsStayInTheirRow) {
  // Both e4m3 NaN codes, and f32 and half infinities.
  for (const WeightFormat format : {WeightFormat::kF8Block128, WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16}) {
    RandomMatrix w = random_matrix(rng_, format, 9, 530, 0);
    const std::int64_t size = format_row_bytes(format, 1);
    for (const auto& [row, col, pattern] : {std::tuple{2, 7, 0x7f}, std::tuple{4, 300, 0xff}, std::tuple{6, 529, 0x7c}}) {
      std::byte* p = w.data->data() + row * w.m.row_bytes + col * size;
      for (std::int64_t b = 0; b < size; ++b) p[b] = static_cast<std::byte>(pattern);
      if (pattern == 0x7c && size > 1) std::memset(p, 0, static_cast<std::size_t>(size)), p[size - 1] = std::byte{0x7c};
    }
    for (const std::int64_t rows : {1, 2, 7}) check(w.m, rows, 0, 9, false);
    check_transposed(w.m, 1, false);
    check_transposed(w.m, 4, false);
  }
}

TEST_P(Products, Transposed) {
  for_each_format([&](WeightFormat format, std::int32_t group) {
    for (const std::int64_t depth : {1, 31, 32, 33, 64, 192})
      for (const std::int64_t rows : {1, 2, 3, 4, 7, 33, 64}) {
        constexpr std::int64_t kCols[] = {1, 7, 31, 33, 64, 127, 255, 256, 257, 512, 530};
        const std::int64_t cols = kCols[rng_() % 11];
        const bool wild = rng_() % 2;
        const RandomMatrix w =
            random_matrix(rng_, format, depth, cols, group, {.offset = 8 * static_cast<std::int64_t>(rng_() % 8), .wild = wild});
        check_transposed(w.m, rows, wild);
        if (HasFatalFailure()) return;
      }
  });
}

TEST_P(Products, DotAndNorm) {
  for (std::int64_t n = 1; n < 1200; n += n < 70 ? 1 : 61)
    for (const bool wild : {false, true}) {
      ExactBytes a(4 * n, 4 * static_cast<std::int64_t>(rng_() % 16), 0), b(4 * n, 4 * static_cast<std::int64_t>(rng_() % 16), 0);
      for (std::int64_t i = 0; i < n; ++i) a.floats()[i] = random_float(rng_, wild), b.floats()[i] = random_float(rng_, wild);
      ASSERT_TRUE(same_bits(scalar().dot(a.floats(), b.floats(), n), kernels().dot(a.floats(), b.floats(), n)))
          << n << " seed " << run_seed();
      std::vector<float> want(static_cast<std::size_t>(n) + 1, kPoison), got = want;
      scalar().rms_norm(a.floats(), b.floats(), 1e-5f, want.data(), n);
      kernels().rms_norm(a.floats(), b.floats(), 1e-5f, got.data(), n);
      ASSERT_TRUE(all_same(want, got)) << n << " seed " << run_seed();
      kernels().rms_norm(a.floats(), b.floats(), 1e-5f, a.floats(), n);  // in place
      got.assign(a.floats(), a.floats() + n);
      want.resize(static_cast<std::size_t>(n));
      ASSERT_TRUE(all_same(want, got)) << "in place, " << n << " seed " << run_seed();
    }
}

TEST_P(Products, CacheRowsAndWeightedSums) {
  // Attention as the model does it: scores from f32 rows that stand further apart than their width, then the sums.
  for (const std::int64_t entries : {1, 2, 63, 64, 65, 200, 2048})
    for (const std::int64_t heads : {1, 3, 4, 5, 64}) {
      if (entries == 2048 && heads == 64) continue;
      const std::int64_t width = rng_() % 2 ? 576 : 1 + static_cast<std::int64_t>(rng_() % 90), stride = width + 8;
      ExactBytes cache(4 * ((entries - 1) * stride + width), 0);
      for (std::int64_t i = 0; i < entries * stride - 8; ++i)
        cache.floats()[i] = i % stride < width ? random_float(rng_, false) : std::numeric_limits<float>::quiet_NaN();
      check(f32_matrix(cache.floats(), entries, width, stride), heads, 0, entries, false);
      const std::int64_t cols = width == 576 ? 512 : width, p_stride = entries + 1, out_stride = cols + 2;
      std::vector<float> p(static_cast<std::size_t>(heads * p_stride), std::numeric_limits<float>::quiet_NaN());
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < entries; ++i) p[static_cast<std::size_t>(h * p_stride + i)] = random_float(rng_, true);
      std::vector<float> want(static_cast<std::size_t>(heads * out_stride), kPoison), got = want;
      scalar().weighted_sum(p.data(), p_stride, heads, cache.floats(), stride, entries, cols, want.data(), out_stride);
      kernels().weighted_sum(p.data(), p_stride, heads, cache.floats(), stride, entries, cols, got.data(), out_stride);
      ASSERT_TRUE(all_same(want, got)) << entries << " entries, " << heads << " heads, " << cols << " columns, seed "
                                       << run_seed();
    }
}

INSTANTIATE_TEST_SUITE_P(Isa, Products, ::testing::ValuesIn(vector_tables()), table_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Products);

}  // namespace
}  // namespace colibri::test

// The elementwise kernels of every instruction set against the scalar definition, and what the scalar ones promise.
#include <algorithm>
#include <functional>

#include "cpu_test_support.h"
#include "numerics/elementary.h"

namespace colibri::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Elementwise : public EveryTable {
 protected:
  // Arguments of all sizes, the borders of exp's clamps among them.
  std::vector<float> values(std::int64_t n) {
    constexpr float kSpecial[] = {0,     -0.0f, 64,     -64,     64.000008f, -64.000008f, 63.999996f, -63.999996f, kInf,
                                  -kInf, kNan,  1e-40f, -1e-40f, 1e30f,      -1e30f,      88.8f,      -104.0f,     0.34657359f};
    std::vector<float> v(static_cast<std::size_t>(n));
    for (float& f : v) {
      const auto kind = rng_() % 8;
      f = kind == 0   ? kSpecial[rng_() % 18]
          : kind == 1 ? std::bit_cast<float>(static_cast<std::uint32_t>(rng_()))
                      : random_float(rng_, false) * static_cast<float>(rng_() % 80);
    }
    return v;
  }
  // Runs both tables over arrays of many sizes; call(table, a, b, out) may read and write `n` floats of each.
  void compare(const std::function<void(const Kernels&, const float*, const float*, float*, std::int64_t)>& call) {
    for (std::int64_t n = 1; n < 2000; n += n < 70 ? 1 : 97) {
      const std::vector<float> a = values(n), b = values(n);
      std::vector<float> want = values(n + 1), got = want;
      call(scalar(), a.data(), b.data(), want.data(), n);
      call(kernels(), a.data(), b.data(), got.data(), n);
      ASSERT_TRUE(all_same(want, got)) << n << " values, seed " << run_seed();
    }
  }
};

TEST_P(Elementwise, Scale) {
  compare([](const Kernels& k, const float* a, const float*, float* out, std::int64_t n) { k.scale(out, a[0], n); });
}
TEST_P(Elementwise, ExpMinus) {
  compare([](const Kernels& k, const float* a, const float*, float* out, std::int64_t n) {
    std::copy(a, a + n, out);
    k.exp_minus(out, n % 2 ? 0.0f : 1.25f, n);
  });
}
TEST_P(Elementwise, Sigmoid) {
  compare([](const Kernels& k, const float* a, const float*, float* out, std::int64_t n) { k.sigmoid(a, out, n); });
}
TEST_P(Elementwise, Swiglu) {
  compare([](const Kernels& k, const float* a, const float* b, float* out, std::int64_t n) { k.swiglu(a, b, out, n); });
  compare([](const Kernels& k, const float* a, const float* b, float* out, std::int64_t n) {  // in place
    std::copy(a, a + n, out);
    k.swiglu(out, b, out, n);
  });
}
TEST_P(Elementwise, Add) {
  compare([](const Kernels& k, const float* a, const float* b, float* out, std::int64_t n) { k.add(a, b, out, n); });
  compare([](const Kernels& k, const float*, const float* b, float* out, std::int64_t n) { k.add(out, b, out, n); });
}
TEST_P(Elementwise, Accumulate) {
  compare([](const Kernels& k, const float* a, const float*, float* out, std::int64_t n) { k.accumulate(a, 0.37f, out, n); });
}
TEST_P(Elementwise, IndexerAccumulate) {
  compare([](const Kernels& k, const float* a, const float*, float* out, std::int64_t n) {
    k.indexer_accumulate(a, 0.0883883f, -0.61f, out, n);
  });
}
TEST_P(Elementwise, Max) {
  compare([](const Kernels& k, const float* a, const float*, float* out, std::int64_t n) { out[0] = k.max(a, n); });
}

TEST_P(Elementwise, ExpOverTheWholeRange) {
  std::vector<float> x;
  for (double v = -66; v < 66; v += 0.00061) x.push_back(static_cast<float>(v));
  std::vector<float> y = x;
  kernels().exp_minus(y.data(), 0.0f, static_cast<std::int64_t>(y.size()));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(numerics::exp(x[i]), y[i]) << x[i];
}

INSTANTIATE_TEST_SUITE_P(Isa, Elementwise, ::testing::ValuesIn(vector_tables()), table_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Elementwise);

TEST(Tables, TheScalarOneIsLastAndAllAreFoundByName) {
  const auto& tables = available_kernels();
  ASSERT_FALSE(tables.empty());
  EXPECT_EQ(tables.back()->name, "scalar");
  EXPECT_EQ(&best_kernels(), tables.front());
  for (const Kernels* k : tables) EXPECT_EQ(find_kernels(k->name), k);
  EXPECT_EQ(find_kernels("sse9"), nullptr);
}

TEST(Max, SkipsNanAndKnowsOneZero) {
  for (const Kernels* k : available_kernels()) {
    const std::vector<float> v = {kNan, -3, -0.0f, kNan, -1};
    const float m = k->max(v.data(), 5);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(m), 0u) << k->name;
    EXPECT_EQ(k->max(v.data() + 3, 1), -kInf) << k->name;
    EXPECT_EQ(k->max(v.data() + 4, 1), -1.0f) << k->name;
  }
}

}  // namespace
}  // namespace colibri::test

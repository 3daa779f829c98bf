// Norms, activations, sums and damage bits on the device, bit for bit against src/numerics.
#include "gpu/rowwise.h"

#include <bit>
#include <cmath>
#include <limits>

#include "cpu/kernels.h"
#include "gpu/kernels/step.h"
#include "gpu_test_support.h"
#include "numerics/norm.h"

namespace colibri::gpu::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint64_t kPlenty = 1 << 20;

// The same bits, or both NaN (whose payload is outside the contract).
::testing::AssertionResult same(std::span<const float> got, std::span<const float> want) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::bit_cast<std::uint32_t>(got[i]) != std::bit_cast<std::uint32_t>(want[i]))
      return ::testing::AssertionFailure() << "element " << i << " of " << want.size() << ": " << got[i] << ", expected "
                                           << want[i];
  }
  return ::testing::AssertionSuccess();
}

class RowwiseTest : public GpuTest {
 protected:
  // Numbers of very different sizes, so that every order of adding shows.
  std::vector<float> wide_floats(std::int64_t count) {
    std::vector<float> values = random_floats(count);
    for (float& v : values) v = std::ldexp(v, static_cast<int>(rng_() % 17) - 8);
    return values;
  }

  void expect_norm(std::int64_t rows, std::int64_t cols, std::int64_t stride, std::uint64_t offset, bool in_place) {
    SCOPED_TRACE(fmt::format("{} rows of {}, stride {}, offset {}", rows, cols, stride, offset));
    const float eps = 1e-5f;
    DeviceArena arena(device(), 4 * static_cast<std::uint64_t>(rows * (stride + cols) + cols) + kPlenty);
    const std::vector<float> input = wide_floats(rows * stride), weights = random_floats(cols);
    const auto x = arena.block(input, offset), w = arena.block(weights, 4);
    const auto out = in_place ? x : arena.block<float>(rows * cols, 8);
    const std::int64_t out_stride = in_place ? stride : cols;
    run([&](Encoder& e) { rms_norm(e, {arena.at(x), rows, cols, stride}, arena.at(w), eps, arena.at(out), out_stride); });
    EXPECT_TRUE(arena.guards_hold());
    std::vector<float> want(static_cast<std::size_t>(cols));
    for (std::int64_t r = 0; r < rows; ++r) {
      numerics::rms_norm(input.data() + r * stride, weights.data(), eps, want.data(), cols);
      ASSERT_TRUE(same(out.subspan(static_cast<std::size_t>(r * out_stride), want.size()), want)) << "row " << r;
      for (std::int64_t k = cols; in_place && k < stride; ++k)
        ASSERT_EQ(x[static_cast<std::size_t>(r * stride + k)], input[static_cast<std::size_t>(r * stride + k)]);
    }
  }
};

TEST_F(RowwiseTest, NormsOfEveryWidth) {
  for (const std::int64_t cols :
       {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257, 511, 512, 576, 1536, 2048, 6144, 7168})
    expect_norm(2, cols, cols + static_cast<std::int64_t>(rng_() % 3), 4 * (rng_() % 4), false);
}

TEST_F(RowwiseTest, NormsOfAlignedRowsAndInPlace) {
  for (const std::int64_t cols : {4, 32, 36, 64, 320, 1000, 6144}) {
    expect_norm(3, cols, cols, 0, false);
    expect_norm(3, cols, cols + 4, 0, true);
    expect_norm(1, cols, cols, 4, true);
  }
}

TEST_F(RowwiseTest, NormsOfRowsWiderThanTheThreadgroupsMemory) {
  for (const std::int64_t cols : {32768, 32800, 70001}) expect_norm(1, cols, cols, 0, false);
}

TEST_F(RowwiseTest, SwigluOfAnyNumbers) {
  const Kernels& scalar = *find_kernels("scalar");
  std::vector<float> gate = {0.0f,   -0.0f,     1.0f,  -1.0f,       63.9999f,     64.0f,     64.0001f, -63.9999f,
                             -64.0f, -64.0001f, 88.0f, -88.0f,      1e30f,        -1e30f,    1e-30f,   -1e-30f,
                             kInf,   -kInf,     kNaN,  0.34657359f, -0.34657359f, 1.0397208f};
  for (int i = 0; i < 20000; ++i) gate.push_back(130.0f * random_float());
  for (int i = 0; i < 5000; ++i) gate.push_back(std::ldexp(random_float(), static_cast<int>(rng_() % 40) - 30));
  for (const std::int64_t n :
       {std::int64_t{1}, std::int64_t{31}, std::int64_t{1024}, std::int64_t{1025}, static_cast<std::int64_t>(gate.size())}) {
    const std::vector<float> g(gate.begin(), gate.begin() + n), up = random_floats(n);
    std::vector<float> want(static_cast<std::size_t>(n));
    scalar.swiglu(g.data(), up.data(), want.data(), n);
    DeviceArena arena(device(), kPlenty);
    const auto a = arena.block(g, 4), b = arena.block(up, 8), out = arena.block<float>(n, 12);
    run([&](Encoder& e) { swiglu(e, arena.at(a), arena.at(b), arena.at(out), n); });
    EXPECT_TRUE(same(out, want)) << n;
    run([&](Encoder& e) { swiglu(e, arena.at(a), arena.at(b), arena.at(a), n); });
    EXPECT_TRUE(same(a, want)) << n << " in place";
    EXPECT_TRUE(arena.guards_hold());
  }
}

TEST_F(RowwiseTest, AddsAndLooksForDamage) {
  for (const std::int64_t n : {1, 255, 256, 1023, 1024, 1025, 6144 * 3 + 5}) {
    const std::vector<float> left = wide_floats(n), right = wide_floats(n);
    DeviceArena arena(device(), kPlenty);
    const auto a = arena.block(left, 4), b = arena.block(right, 8), out = arena.block<float>(n, 12);
    const auto damage = arena.block<std::uint32_t>(1);
    damage[0] = kDamageRouter;
    const auto add_all = [&](Address word) {
      run([&](Encoder& e) { add(e, arena.at(a), arena.at(b), arena.at(out), n, word, kDamageFeedForward); });
    };
    add_all(arena.at(damage));
    std::vector<float> want(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = left[i] + right[i];
    EXPECT_TRUE(same(out, want)) << n;
    EXPECT_EQ(damage[0], kDamageRouter);  // bits of others stay

    for (const float bad : {kInf, -kInf, kNaN}) {
      const auto at = static_cast<std::size_t>(rng_() % static_cast<std::uint64_t>(n));
      a[at] = bad;
      damage[0] = kDamageRouter;
      add_all(0);
      EXPECT_EQ(damage[0], kDamageRouter);
      add_all(arena.at(damage));
      EXPECT_EQ(damage[0], kDamageRouter | kDamageFeedForward) << bad << " at " << at << " of " << n;
      a[at] = left[at];
    }
    EXPECT_TRUE(arena.guards_hold());
  }
}

}  // namespace
}  // namespace colibri::gpu::test

// The router's kernel against route_sigmoid of src/numerics, bit for bit.
#include "gpu/router.h"

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "gpu/kernels/step.h"
#include "gpu_test_support.h"
#include "numerics/elementary.h"
#include "numerics/selection.h"

namespace colibri::gpu::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class RouterTest : public GpuTest {
 protected:
  struct Routed {
    std::vector<std::int32_t> chosen;
    std::vector<float> weights;
    std::uint32_t damage = 0;
  };

  Routed route_rows(const RouterShape& shape, std::int64_t rows, const std::vector<float>& logits,
                    const std::vector<float>& bias) {
    DeviceArena arena(device(),
                      4 * static_cast<std::uint64_t>(rows * (shape.experts + 2 * shape.per_token) + shape.experts) + 65536);
    const auto l = arena.block(logits, 4), b = arena.block(bias, 12);
    const auto chosen = arena.block<std::int32_t>(rows * shape.per_token, 8);
    const auto weights = arena.block<float>(rows * shape.per_token, 4);
    const auto damage = arena.block<std::uint32_t>(1);
    damage[0] = 0;
    run([&](Encoder& e) {
      route(e, shape, rows, arena.at(l), arena.at(b), arena.at(chosen), arena.at(weights), arena.at(damage));
    });
    EXPECT_TRUE(arena.guards_hold());
    return {{chosen.begin(), chosen.end()}, {weights.begin(), weights.end()}, damage[0]};
  }

  void expect_reference(const RouterShape& shape, std::int64_t rows, const std::vector<float>& logits,
                        const std::vector<float>& bias) {
    const Routed got = route_rows(shape, rows, logits, bias);
    EXPECT_EQ(got.damage, 0u);
    std::vector<float> scores(static_cast<std::size_t>(shape.experts)), weights;
    std::vector<std::int32_t> ids;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t e = 0; e < shape.experts; ++e)
        scores[static_cast<std::size_t>(e)] = numerics::sigmoid(logits[static_cast<std::size_t>(r * shape.experts + e)]);
      ASSERT_TRUE(numerics::route_sigmoid(scores, bias, {shape.per_token, shape.renormalise, shape.factor}, ids, weights));
      for (std::int64_t i = 0; i < shape.per_token; ++i) {
        const auto want = static_cast<std::size_t>(i), at = static_cast<std::size_t>(r * shape.per_token + i);
        ASSERT_EQ(got.chosen[at], ids[want]) << "row " << r << ", rank " << i << " of " << shape.experts << " experts";
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got.weights[at]), std::bit_cast<std::uint32_t>(weights[want]))
            << "row " << r << ", rank " << i << " of " << shape.experts << " experts";
      }
    }
  }

  std::vector<float> logits(std::int64_t count, float spread) {
    std::vector<float> values = random_floats(count);
    for (float& v : values) v *= spread;
    return values;
  }
};

TEST_F(RouterTest, EveryNumberOfExperts) {
  for (const std::int64_t experts : {1, 2, 24, 31, 168, 255, 256, 257, 1000, 1024, 1025, 2100})
    for (const std::int64_t per_token : {1, 2, 8, 20}) {
      if (per_token > experts) continue;
      const RouterShape shape{experts, per_token, per_token % 8 != 2, 2.5f};
      expect_reference(shape, 3, logits(3 * experts, 4.0f), logits(experts, 0.5f));
    }
}

TEST_F(RouterTest, EveryExpertChosen) {
  for (const std::int64_t experts : {8, 300})
    expect_reference({experts, experts, true, 1.0f}, 2, logits(2 * experts, 4.0f), logits(experts, 1.0f));
}

TEST_F(RouterTest, ManyRows) { expect_reference({24, 4, true, 1.5f}, 130, logits(130 * 24, 6.0f), logits(24, 0.2f)); }

TEST_F(RouterTest, EqualScoresGoToTheLowerIndex) {
  const std::int64_t experts = 257;
  for (const RouterShape& shape : {RouterShape{experts, 8, true, 1.0f}, RouterShape{experts, 8, false, 2.5f}}) {
    expect_reference(shape, 1, std::vector<float>(static_cast<std::size_t>(experts), 0.25f),
                     std::vector<float>(static_cast<std::size_t>(experts), 0.0f));
    std::vector<float> few(static_cast<std::size_t>(2 * experts));
    for (float& v : few) v = static_cast<float>(rng_() % 3);
    expect_reference(shape, 2, few, std::vector<float>(static_cast<std::size_t>(experts), 0.0f));
  }
}

// Biases cancel scores exactly (to either zero), sigmoids reach 0 and 1, biases are infinite.
TEST_F(RouterTest, Extremes) {
  const std::int64_t experts = 40;
  std::vector<float> l = logits(experts, 100.0f), b(static_cast<std::size_t>(experts));
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto i = static_cast<std::size_t>(e);
    if (e % 4 == 0) b[i] = -numerics::sigmoid(l[i]);
    if (e % 4 == 1) b[i] = -0.0f;
    if (e % 4 == 2) l[i] = e % 8 == 2 ? 3e38f : -3e38f;
    if (e % 4 == 3) l[i] = e % 8 == 3 ? 1e-40f : -64.0f;
  }
  expect_reference({experts, 30, true, 2.5f}, 1, l, b);
  // Scores so small that what is added to their sum is most of it.
  expect_reference({experts, 8, true, 2.5f}, 1, std::vector<float>(static_cast<std::size_t>(experts), -70.0f), b);
  b[7] = kInf;
  b[20] = -kInf;
  expect_reference({experts, 40, false, 1.0f}, 1, l, b);
}

// Damage is reported, and what was chosen can still be used as indices.
TEST_F(RouterTest, Damage) {
  const std::int64_t experts = 300, rows = 3;
  const RouterShape shape{experts, 8, true, 2.5f};
  for (const float bad : {kInf, -kInf, kNaN}) {
    std::vector<float> l = logits(rows * experts, 2.0f);
    l[static_cast<std::size_t>(experts + 299)] = bad;
    const Routed got = route_rows(shape, rows, l, logits(experts, 0.1f));
    EXPECT_EQ(got.damage, kDamageRouter);
  }
  const std::vector<float> nans(static_cast<std::size_t>(rows * experts), kNaN);
  const Routed got = route_rows(shape, rows, nans, nans);
  EXPECT_EQ(got.damage, kDamageRouter);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto* ids = got.chosen.data() + r * shape.per_token;
    EXPECT_EQ(std::set<std::int32_t>(ids, ids + shape.per_token).size(), 8u);
    for (std::int64_t i = 0; i < shape.per_token; ++i) EXPECT_TRUE(ids[i] >= 0 && ids[i] < experts);
  }
  std::vector<float> bias(static_cast<std::size_t>(experts));
  bias[5] = kNaN;
  EXPECT_EQ(route_rows(shape, rows, logits(rows * experts, 2.0f), bias).damage, kDamageRouter);
}

}  // namespace
}  // namespace colibri::gpu::test

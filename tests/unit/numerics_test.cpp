// The scalar definition against double precision and against facts that do not come from this code.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "numerics/attention.h"
#include "numerics/dot.h"
#include "numerics/elementary.h"
#include "numerics/norm.h"
#include "numerics/rotary.h"
#include "numerics/sampling.h"
#include "numerics/selection.h"

namespace colibri::numerics {
namespace {

TEST(Elementary, ExpIsCloseEverywhereAndClamps) {
  double worst = 0;
  for (float x = -64.0f; x <= 64.0f; x += 0.00137f) {
    const double want = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(exp(x) - want) / want);
  }
  EXPECT_LT(worst, 1.0e-7);
  EXPECT_EQ(exp(0.0f), 1.0f);
  EXPECT_EQ(exp(-64.5f), 0.0f);
  EXPECT_EQ(exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(exp(1000.0f), exp(64.0f));
  EXPECT_TRUE(std::isnan(exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Elementary, SigmoidAndSilu) {
  for (float x = -80.0f; x <= 80.0f; x += 0.37f) {
    const double s = 1 / (1 + std::exp(-static_cast<double>(x)));
    EXPECT_NEAR(sigmoid(x), s, 2e-7);
    EXPECT_NEAR(silu(x), x * s, 2e-7 * std::max(1.0f, std::abs(x)));
  }
}

TEST(Dot, LanesAndTreeAreTheContracts) {
  // A sum whose rounding shows the order: element k contributes to lane 2*((k/32) mod 8) + k mod 2.
  for (const std::int64_t n : {1, 31, 32, 33, 64, 255, 256, 257, 600}) {
    std::mt19937 rng(static_cast<unsigned>(n));
    std::uniform_real_distribution<float> u(-1, 1);
    std::vector<float> w(static_cast<std::size_t>((n + 31) / 32 * 32)), x(static_cast<std::size_t>(n)), scale(w.size() / 32);
    for (std::int64_t k = 0; k < n; ++k) w[static_cast<std::size_t>(k)] = u(rng), x[static_cast<std::size_t>(k)] = u(rng);
    for (float& s : scale) s = u(rng);
    float lanes[16] = {};
    for (std::size_t b = 0; b < scale.size(); ++b) {
      float even = 0, odd = 0;
      for (std::size_t k = 32 * b; k < 32 * b + 32; k += 2) {
        even = std::fma(w[k], k < x.size() ? x[k] : 0.0f, even);
        odd = std::fma(w[k + 1], k + 1 < x.size() ? x[k + 1] : 0.0f, odd);
      }
      lanes[2 * (b % 8)] = std::fma(scale[b], even, lanes[2 * (b % 8)]);
      lanes[2 * (b % 8) + 1] = std::fma(scale[b], odd, lanes[2 * (b % 8) + 1]);
    }
    float t8[8], t4[4], t2[2];
    for (int i = 0; i < 8; ++i) t8[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; ++i) t4[i] = t8[i] + t8[i + 4];
    for (int i = 0; i < 2; ++i) t2[i] = t4[i] + t4[i + 2];
    EXPECT_EQ(dot(w.data(), scale.data(), x.data(), n), t2[0] + t2[1]) << n;
    EXPECT_EQ(dot_plain(w.data(), x.data(), n), dot(w.data(), nullptr, x.data(), n)) << n;
  }
}

TEST(Norm, AgreesWithDouble) {
  std::mt19937 rng(3);
  std::normal_distribution<float> d;
  std::vector<float> x(300), weight(300), bias(300), y(300);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = d(rng) + 0.3f, weight[i] = d(rng), bias[i] = d(rng);
  double ss = 0, mean = 0, var = 0;
  for (const float v : x) ss += double(v) * v, mean += v / 300.0;
  for (const float v : x) var += (v - mean) * (v - mean) / 300.0;
  rms_norm(x.data(), weight.data(), 1e-5f, y.data(), 300);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i] / std::sqrt(ss / 300 + 1e-5) * weight[i], 2e-6);
  layer_norm(x.data(), weight.data(), bias.data(), 1e-6f, y.data(), 300);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], (x[i] - mean) / std::sqrt(var + 1e-6) * weight[i] + bias[i], 3e-6);
}

TEST(Rotary, DoubleFunctionsAgreeWithTheLibrary) {
  for (const double base : {10000.0, 100000.0, 1e6, 8e6, 2.0, 1.0})
    for (int j = 0; j < 64; ++j) {
      const double e = -j / 64.0, want = std::pow(base, e);
      EXPECT_NEAR(power(base, e) / want, 1.0, 4e-16) << base << ' ' << e;
    }
  std::mt19937_64 rng(5);
  std::uniform_real_distribution<double> u(0, 1);
  for (int i = 0; i < 200000; ++i) {
    const double angle = u(rng) * (i % 3 == 0 ? 10 : i % 3 == 1 ? 1000 : 300000);
    double s, c;
    sine_cosine(angle, s, c);
    ASSERT_NEAR(s, std::sin(angle), 3e-16) << angle;
    ASSERT_NEAR(c, std::cos(angle), 3e-16) << angle;
  }
}

TEST(Rotary, PairsInHalvesOut) {
  const RotaryTable table(10000, 8);
  float c[4], s[4], y[8];
  table.angles(5, c, s);
  const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  rotate_interleaved_to_halves(x, c, s, 8, y);
  for (int j = 0; j < 4; ++j) {
    const double a = 5 * std::pow(10000.0, -2.0 * j / 8);
    EXPECT_NEAR(y[j], x[2 * j] * std::cos(a) - x[2 * j + 1] * std::sin(a), 2e-6);
    EXPECT_NEAR(y[4 + j], x[2 * j + 1] * std::cos(a) + x[2 * j] * std::sin(a), 2e-6);
  }
}

TEST(Attention, WeightedSumAgreesWithDouble) {
  std::mt19937 rng(7);
  std::uniform_real_distribution<float> u(0, 1);
  std::vector<float> p(2048), v(2048 * 3), out(3);
  for (float& q : p) q = u(rng);
  for (float& q : v) q = u(rng) - 0.5f;
  for (const std::int64_t n : {0, 1, 63, 64, 65, 2048}) {
    weighted_sum(p.data(), v.data(), 3, n, 3, out.data());
    for (std::size_t c = 0; c < 3; ++c) {
      double want = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) want += double(p[i]) * v[3 * i + c];
      EXPECT_NEAR(out[c], want, 1e-3);
    }
  }
}

TEST(Selection, TiesGoToTheLowerIndexAndNanIsAnError) {
  std::vector<std::int32_t> ids;
  const std::vector<float> v = {1, 3, 3, -1, 3, 2};
  ASSERT_TRUE(top_k(v, 4, ids));
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 2, 4, 5}));
  ASSERT_TRUE(top_k(v, 2, ids));
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 2}));
  ASSERT_TRUE(top_k(v, 100, ids));
  EXPECT_EQ(ids.size(), 6u);
  EXPECT_EQ(argmax(v), 1);
  const std::vector<float> bad = {1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_FALSE(top_k(bad, 1, ids));
  EXPECT_EQ(argmax(bad), -1);
  EXPECT_EQ(argmax({}), -1);
}

TEST(Selection, RouterRanksByBiasedScoreAndWeighsByUnbiased) {
  const std::vector<float> scores = {0.5f, 0.25f, 0.75f, 0.1f}, bias = {0, 1, 0, 0};
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  ASSERT_TRUE(route_sigmoid(scores, bias, {2, true, 2.0f}, ids, weights));
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(weights[0], 0.25f / (0.25f + 0.75f) * 2.0f);
  ASSERT_TRUE(route_sigmoid(scores, bias, {2, false, 2.0f}, ids, weights));
  EXPECT_EQ(weights[1], 1.5f);
}

TEST(Sampling, PhiloxKnownAnswers) {  // the reference implementation's kat_vectors
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampling, FrequenciesFollowTheDistribution) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f), -100.0f};
  std::vector<int> count(4);
  for (std::uint64_t n = 0; n < 40000; ++n) ++count[static_cast<std::size_t>(sample(logits, {1.0f, 1.0f, 0, 42}, n))];
  EXPECT_NEAR(count[0] / 40000.0, 1 / 8.0, 0.01);
  EXPECT_NEAR(count[1] / 40000.0, 2 / 8.0, 0.01);
  EXPECT_NEAR(count[2] / 40000.0, 5 / 8.0, 0.01);
  EXPECT_EQ(count[3], 0);
}

TEST(Sampling, CutsAndGreedy) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f), -100.0f};
  for (std::uint64_t n = 0; n < 2000; ++n) {
    EXPECT_EQ(sample(logits, {0.0f, 1.0f, 0, 1}, n), 2);
    EXPECT_EQ(sample(logits, {1.0f, 1.0f, 1, 1}, n), 2);
    EXPECT_EQ(sample(logits, {1.0f, 0.5f, 0, 1}, n), 2);  // 5/8 already reaches one half
    EXPECT_NE(sample(logits, {1.0f, 0.8f, 0, 1}, n), 0);
  }
  EXPECT_EQ(sample(std::vector<float>{0, NAN}, {1.0f, 1.0f, 0, 1}, 0), -1);
}

}  // namespace
}  // namespace colibri::numerics

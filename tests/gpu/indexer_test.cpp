// The indexer's kernels against the scalar reference, bit for bit: keys, scores, and the positions chosen.
#include "gpu/indexer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cpu/kernels.h"
#include "gpu/kernels/indexer.h"
#include "gpu/kernels/selection.h"
#include "gpu_test_support.h"
#include "numerics/attention.h"
#include "numerics/norm.h"
#include "numerics/rotary.h"
#include "recording_device.h"

namespace colibri::gpu::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// One layer's indexer over several sequences: row r stands at position[r] of sequence[r].
struct Step {
  IndexerShape shape;
  std::vector<std::int64_t> sequence, position;

  std::int64_t rows() const { return static_cast<std::int64_t>(position.size()); }
  std::int64_t longest() const { return *std::max_element(position.begin(), position.end()) + 1; }
  std::int64_t sequences() const { return *std::max_element(sequence.begin(), sequence.end()) + 1; }
};

IndexerShape make_shape(std::int64_t heads, std::int64_t head_dim, std::int64_t rope, std::int64_t top_k) {
  return {heads, head_dim, rope, top_k, numerics::inverse_sqrt(head_dim), numerics::inverse_sqrt(heads)};
}

void rotate_head(const float* x, const float* cosine, const float* sine, const IndexerShape& shape, float* y) {
  numerics::rotate_interleaved_to_halves(x, cosine, sine, shape.rope, y);
  std::copy(x + shape.rope, x + shape.head_dim, y + shape.rope);
}

class IndexerTest : public GpuTest {
 protected:
  // What a test hands in, on the host and in device memory.
  struct Setup {
    // The caches end key_gap bytes before their region does: 12, say, puts them at 4 more than a multiple of 16.
    Setup(Device& device, const Step& s, std::uint64_t key_gap, std::mt19937_64& rng)
        : step(s),
          arena(device, bytes(s)),
          key_arena(device, 4 * static_cast<std::uint64_t>(s.sequences() * s.longest() * s.shape.head_dim) + 1024),
          rows(arena.block<RowArgs>(s.rows())),
          caches(key_arena.last_block<float>(s.sequences() * s.longest() * s.shape.head_dim, key_gap)),
          queries(arena.block<float>(s.rows() * s.shape.heads * s.shape.head_dim, 4)),
          head_weights(arena.block<float>(s.rows() * s.shape.heads, 8)),
          cosine(arena.block<float>(s.rows() * s.shape.rope / 2, 4)),
          sine(arena.block<float>(s.rows() * s.shape.rope / 2, 12)),
          damage(arena.block<std::uint32_t>(1)) {
      damage[0] = 0;
      for (const auto block : {caches, queries, head_weights})
        for (float& v : block) v = static_cast<float>(static_cast<std::int64_t>(rng() % 2000001) - 1000000) * 1e-6f;
      const numerics::RotaryTable table(10000.0, s.shape.rope);
      for (std::int64_t r = 0; r < s.rows(); ++r) {
        const auto i = static_cast<std::size_t>(r);
        table.angles(s.position[i], cosine.data() + r * s.shape.rope / 2, sine.data() + r * s.shape.rope / 2);
        rows[i] = {};
        rows[i].keys =
            key_arena.at(caches) + static_cast<Address>(s.sequence[i] * s.longest() * s.shape.head_dim) * sizeof(float);
        rows[i].position = static_cast<u32>(s.position[i]);
      }
      table_ = {arena.at(rows), s.rows(), s.longest(), arena.at(cosine), arena.at(sine)};
    }
    static std::uint64_t bytes(const Step& s) {
      const std::int64_t floats = s.sequences() * s.longest() * s.shape.head_dim +
                                  4 * s.rows() * s.shape.heads * s.shape.head_dim +
                                  s.rows() * (s.shape.heads * 256 + s.shape.rope + 3 * s.longest() + s.shape.top_k);
      return 4 * static_cast<std::uint64_t>(floats) + (1u << 17);
    }
    const float* key(std::int64_t row, std::int64_t t) const {
      return caches.data() + (step.sequence[static_cast<std::size_t>(row)] * step.longest() + t) * step.shape.head_dim;
    }
    bool guards_hold() const { return arena.guards_hold() && key_arena.guards_hold(); }
    const StepTable& table() const { return table_; }

    const Step& step;
    DeviceArena arena, key_arena;
    std::span<RowArgs> rows;
    std::span<float> caches, queries, head_weights, cosine, sine;
    std::span<std::uint32_t> damage;

   private:
    StepTable table_;
  };

  // Scores of one row by the scalar table: what src/model/indexer.cpp computes.
  static std::vector<float> reference_scores(const Setup& s, std::int64_t row) {
    const Kernels& scalar = *find_kernels("scalar");
    const IndexerShape& shape = s.step.shape;
    const std::int64_t visible = s.step.position[static_cast<std::size_t>(row)] + 1;
    std::vector<float> scores(static_cast<std::size_t>(visible), 0.0f), dots(scores.size());
    std::vector<float> rotated(static_cast<std::size_t>(shape.head_dim));
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      rotate_head(s.queries.data() + (row * shape.heads + h) * shape.head_dim, s.cosine.data() + row * shape.rope / 2,
                  s.sine.data() + row * shape.rope / 2, shape, rotated.data());
      for (std::int64_t t = 0; t < visible; ++t)
        dots[static_cast<std::size_t>(t)] = scalar.dot(s.key(row, t), rotated.data(), shape.head_dim);
      scalar.indexer_accumulate(dots.data(), shape.dot_scale, s.head_weights[static_cast<std::size_t>(row * shape.heads + h)],
                                scores.data(), visible);
    }
    scalar.scale(scores.data(), shape.head_scale, visible);
    return scores;
  }

  // The positions of the best scores, by a full sort of (value, then lower position).
  static std::vector<std::int32_t> reference_choice(std::span<const float> scores, std::int64_t k) {
    std::vector<std::int32_t> order(scores.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    std::sort(order.begin(), order.end(), [scores](std::int32_t a, std::int32_t b) {
      const float va = scores[static_cast<std::size_t>(a)], vb = scores[static_cast<std::size_t>(b)];
      return va > vb || (va == vb && a < b);
    });
    order.resize(static_cast<std::size_t>(k));
    std::sort(order.begin(), order.end());
    return order;
  }

  void check_scores(const Setup& s, std::span<const float> scores, std::int64_t stride, RowRange range) {
    for (std::int64_t r = range.first; r < range.first + range.count; ++r) {
      if (s.step.position[static_cast<std::size_t>(r)] < s.step.shape.top_k) continue;
      const std::vector<float> want = reference_scores(s, r);
      for (std::size_t t = 0; t < want.size(); ++t) {
        const float got = scores[static_cast<std::size_t>((r - range.first) * stride) + t];
        ASSERT_TRUE(same_bits(want[t], got))
            << "row " << r << ", position " << t << " of " << want.size() << ": expected " << want[t] << ", found " << got
            << "; heads " << s.step.shape.heads << ", dims " << s.step.shape.head_dim;
      }
    }
  }

  // Scores and choice of a step; scratch for `wave` rows.
  void check_step(const Step& step, std::int64_t wave, std::uint64_t key_gap = 0) {
    const IndexerShape& shape = step.shape;
    Setup s(device(), step, key_gap, rng_);
    const std::int64_t stride = (step.longest() + 3) / 4 * 4;
    const auto rotated = s.arena.block<float>(step.rows() * rotated_query_floats(shape));
    const auto scores = s.arena.block<float>(step.rows() * stride, 16);
    run([&](Encoder& e) {
      score_positions(e, shape, s.table(), {0, step.rows()}, s.arena.at(s.queries), s.arena.at(s.head_weights),
                      s.arena.at(rotated), s.arena.at(scores), stride, s.arena.at(s.damage));
    });
    EXPECT_TRUE(s.guards_hold());
    EXPECT_EQ(s.damage[0], 0u);
    check_scores(s, scores, stride, {0, step.rows()});

    const std::uint64_t scratch_bytes = indexer_scratch_bytes(shape, wave, step.longest());
    const auto scratch = s.arena.block<std::byte>(static_cast<std::int64_t>(scratch_bytes), 16);
    const auto chosen = s.arena.block<std::int32_t>(step.rows() * shape.top_k, 4);
    const auto counts = s.arena.block<std::uint32_t>(step.rows());
    const SelectionTable selection{s.arena.at(chosen), s.arena.at(counts), shape.top_k};
    run([&](Encoder& e) {
      select_positions(e, shape, s.table(), s.arena.at(s.queries), s.arena.at(s.head_weights), selection, s.arena.at(scratch),
                       scratch_bytes, s.arena.at(s.damage));
    });
    EXPECT_TRUE(s.guards_hold());
    EXPECT_EQ(s.damage[0], 0u);
    for (std::int64_t r = 0; r < step.rows(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (step.position[i] < shape.top_k) {
        EXPECT_EQ(counts[i], 0u) << "row " << r;
        continue;
      }
      ASSERT_EQ(counts[i], shape.top_k) << "row " << r;
      const auto want = reference_choice(
          scores.subspan(i * static_cast<std::size_t>(stride), static_cast<std::size_t>(step.position[i] + 1)), shape.top_k);
      const auto got = chosen.subspan(i * static_cast<std::size_t>(shape.top_k), static_cast<std::size_t>(shape.top_k));
      ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin())) << "row " << r;
    }
  }

  // select_best over scores of one row.
  std::vector<std::int32_t> choose(const std::vector<float>& scores, std::int64_t k) {
    const auto n = static_cast<std::int64_t>(scores.size()), stride = (n + 3) / 4 * 4;
    const std::uint64_t scratch_bytes = select_scratch_bytes(1, k, n);
    DeviceArena arena(device(), 4 * static_cast<std::uint64_t>(stride + k) + scratch_bytes + 65536);
    const auto scratch = arena.block<std::byte>(static_cast<std::int64_t>(scratch_bytes));
    const auto on_device = arena.block<float>(stride);
    std::copy(scores.begin(), scores.end(), on_device.begin());
    const auto rows = arena.block<RowArgs>(1);
    rows[0] = {};
    rows[0].position = static_cast<u32>(n - 1);
    const auto chosen = arena.block<std::int32_t>(k, 4);
    const auto counts = arena.block<std::uint32_t>(1);
    run([&](Encoder& e) {
      select_best(e, {arena.at(rows), 1, n, 0, 0}, {0, 1}, k, arena.at(on_device), stride,
                  {arena.at(chosen), arena.at(counts), k}, arena.at(scratch));
    });
    EXPECT_TRUE(arena.guards_hold());
    EXPECT_TRUE(counts[0] == 0 || counts[0] == k) << counts[0];
    return {chosen.begin(), chosen.begin() + counts[0]};
  }
};

TEST_F(IndexerTest, Keys) {
  struct Dims {
    std::int64_t head_dim, rope;
  };
  for (const Dims d :
       {Dims{128, 64}, {1, 0}, {2, 2}, {31, 6}, {32, 32}, {33, 2}, {96, 32}, {160, 64}, {255, 100}, {300, 10}, {512, 64}}) {
    const Step step{make_shape(1, d.head_dim, d.rope, 8), {0, 0, 1, 2}, {4, 5, 0, 37}};
    Setup s(device(), step, 12, rng_);
    const auto keys = s.arena.block(random_floats(step.rows() * d.head_dim), 4);
    for (std::int64_t k = 0; k < d.head_dim; ++k) keys[static_cast<std::size_t>(k)] += 100.0f;  // a mean to take away
    const auto weight = s.arena.block(random_floats(d.head_dim), 8), bias = s.arena.block(random_floats(d.head_dim), 4);
    std::vector<float> want(s.caches.begin(), s.caches.end()), normed(static_cast<std::size_t>(d.head_dim));
    for (std::int64_t r = 0; r < step.rows(); ++r) {
      numerics::layer_norm(keys.data() + r * d.head_dim, weight.data(), bias.data(), 1e-6f, normed.data(), d.head_dim);
      const auto at = s.key(r, step.position[static_cast<std::size_t>(r)]) - s.caches.data();
      rotate_head(normed.data(), s.cosine.data() + r * d.rope / 2, s.sine.data() + r * d.rope / 2, step.shape, want.data() + at);
    }
    run([&](Encoder& e) {
      write_index_keys(e, step.shape, s.table(), s.arena.at(keys), s.arena.at(weight), s.arena.at(bias), s.arena.at(s.damage));
    });
    EXPECT_TRUE(s.guards_hold());
    EXPECT_EQ(s.damage[0], 0u);
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_TRUE(same_bits(want[i], s.caches[i]))
          << "at " << i << ", dims " << d.head_dim << ": expected " << want[i] << ", found " << s.caches[i];
  }
}

TEST_F(IndexerTest, Shapes) {
  struct Dims {
    std::int64_t heads, head_dim, rope;
  };
  for (const Dims d : {Dims{32, 128, 64},
                       {4, 16, 8},
                       {1, 32, 32},
                       {3, 20, 6},
                       {7, 33, 2},
                       {16, 96, 32},
                       {5, 160, 64},
                       {2, 300, 10},
                       {33, 64, 64},
                       {9, 256, 0},
                       {2, 515, 4},
                       {1, 1, 0}})
    check_step({make_shape(d.heads, d.head_dim, d.rope, 5), {0, 0, 1}, {63, 64, 130}}, 3);
}

TEST_F(IndexerTest, UnalignedKeys) { check_step({make_shape(4, 128, 64, 20), {0}, {100}}, 1, 12); }

// Rows of several sequences, some of which see too little to choose from; scratch for fewer rows than there are.
TEST_F(IndexerTest, RaggedRows) {
  Step step{make_shape(4, 32, 16, 16), {}, {}};
  for (std::int64_t r = 0; r < 12; ++r) {
    step.sequence.push_back(r % 5);
    step.position.push_back(r == 7 ? 400 : 13 + r);
  }
  for (const std::int64_t wave : {1, 5, 12}) check_step(step, wave);
}

TEST_F(IndexerTest, NothingToChoose) {
  const Step step{make_shape(4, 32, 16, 64), {0, 0}, {62, 63}};
  check_step(step, 1);
  EXPECT_EQ(counts_.dispatches, 2u);  // the check of the queries, the counts
}

TEST_F(IndexerTest, LongContext) { check_step({make_shape(32, 128, 64, 2048), {0, 0}, {9000, 9001}}, 2); }

// Long enough for segments; rows of the same step that are shorter than one, or choose nothing.
TEST_F(IndexerTest, LongAndShortRows) {
  check_step({make_shape(2, 32, 16, 64), {0, 0, 0, 0, 0}, {63, 20000, 64, 4100, 9000}}, 3);
}

// Sums that overflow, cancel (some to NaN) and underflow make the same scores everywhere.
TEST_F(IndexerTest, WildValues) {
  const Step step{make_shape(6, 64, 32, 3), {0}, {200}};
  constexpr float kWild[] = {0.0f, -0.0f, 1e-40f, 1e-30f, -3e-20f, 2e18f, 3e19f, -3e19f};
  Setup s(device(), step, 0, rng_);
  for (const auto block : {s.caches, s.queries})
    for (float& v : block)
      if (rng_() % 3 == 0) v = kWild[rng_() % 8];
  const auto rotated = s.arena.block<float>(rotated_query_floats(step.shape));
  const auto scores = s.arena.block<float>(204);
  run([&](Encoder& e) {
    score_positions(e, step.shape, s.table(), {0, 1}, s.arena.at(s.queries), s.arena.at(s.head_weights), s.arena.at(rotated),
                    s.arena.at(scores), 204, s.arena.at(s.damage));
  });
  const auto nans = std::count_if(scores.begin(), scores.begin() + 201, [](float v) { return std::isnan(v); });
  EXPECT_TRUE(nans > 0 && nans < 201) << nans << " NaNs";
  check_scores(s, scores, 204, {0, 1});
  EXPECT_EQ(s.damage[0], kDamageIndexer);
}

TEST_F(IndexerTest, DamageIsReported) {
  const Step step{make_shape(4, 32, 16, 16), {0, 0}, {10, 90}};
  const auto damage_after = [&](const std::function<void(Setup&, std::span<float>)>& harm) {
    Setup s(device(), step, 0, rng_);
    const auto keys = s.arena.block(random_floats(step.rows() * step.shape.head_dim));
    const auto norm = s.arena.block(std::vector<float>(32, 1.0f));
    harm(s, keys);
    const std::uint64_t bytes = indexer_scratch_bytes(step.shape, 2, step.longest());
    const auto scratch = s.arena.block<std::byte>(static_cast<std::int64_t>(bytes));
    const auto chosen = s.arena.block<std::int32_t>(2 * step.shape.top_k);
    const auto counts = s.arena.block<std::uint32_t>(2);
    run([&](Encoder& e) {
      write_index_keys(e, step.shape, s.table(), s.arena.at(keys), s.arena.at(norm), s.arena.at(norm), s.arena.at(s.damage));
      e.barrier();
      select_positions(e, step.shape, s.table(), s.arena.at(s.queries), s.arena.at(s.head_weights),
                       {s.arena.at(chosen), s.arena.at(counts), step.shape.top_k}, s.arena.at(scratch), bytes,
                       s.arena.at(s.damage));
    });
    EXPECT_TRUE(s.guards_hold());
    // Whatever the scores are, what was chosen can be used as positions.
    EXPECT_EQ(counts[1], step.shape.top_k);
    for (std::int64_t i = 0; i < step.shape.top_k; ++i) {
      const auto at = static_cast<std::size_t>(step.shape.top_k + i);
      EXPECT_TRUE(chosen[at] >= 0 && chosen[at] <= 90 && (i == 0 || chosen[at] > chosen[at - 1]));
    }
    return s.damage[0];
  };
  EXPECT_EQ(damage_after([](Setup&, std::span<float>) {}), 0u);
  for (const float bad : {kInf, -kInf, kNaN}) {
    EXPECT_EQ(damage_after([&](Setup&, std::span<float> keys) { keys[31] = bad; }), kDamageIndexer);
    // Row 0 chooses nothing, its queries are looked at all the same.
    EXPECT_EQ(damage_after([&](Setup& s, std::span<float>) { s.queries[4 * 32 - 1] = bad; }), kDamageIndexer);
    EXPECT_EQ(damage_after([&](Setup& s, std::span<float>) { s.head_weights[7] = bad; }), kDamageIndexer);
  }
  // Finite inputs whose score is a NaN: heads of infinite scores with opposite weights.
  EXPECT_EQ(damage_after([&](Setup& s, std::span<float>) {
              for (std::size_t i = 0; i < 4 * 32; ++i) s.queries[4 * 32 + i] = 3e38f;
              for (std::size_t i = 0; i < 4; ++i) s.head_weights[4 + i] = i % 2 ? 1.0f : -1.0f;
              for (std::size_t i = 0; i < 32; ++i) s.caches[5 * 32 + i] = 3e38f;
            }),
            kDamageIndexer);
}

// ---- the choice alone ---------------------------------------------------------------------------------------------------

// Kinds of rows that a selection can meet.
std::vector<float> random_scores(std::mt19937_64& rng, std::int64_t n) {
  std::vector<float> s(static_cast<std::size_t>(n));
  const auto kind = rng() % 10;
  const auto real = [&] { return static_cast<float>(static_cast<std::int64_t>(rng() % 2000001) - 1000000) * 1e-6f; };
  for (std::size_t i = 0; i < s.size(); ++i) {
    switch (kind) {
      case 0: s[i] = real(); break;
      case 1: s[i] = static_cast<float>(rng() % 4) - 1.0f; break;  // ties
      case 2: s[i] = 0.5f; break;                                  // all equal
      case 3: s[i] = static_cast<float>(i); break;                 // rising
      case 4: s[i] = -static_cast<float>(i); break;                // falling
      case 5:                                                      // any pattern of bits that is a number
        do s[i] = std::bit_cast<float>(static_cast<std::uint32_t>(rng()));
        while (std::isnan(s[i]));
        break;
      case 6: s[i] = rng() % 8 ? (rng() % 2 ? 0.0f : -0.0f) : real() * 1e-38f; break;  // zeros, subnormals, tiny
      case 7: s[i] = rng() % 3 ? real() : (rng() % 2 ? kInf : -kInf); break;
      case 8: s[i] = std::bit_cast<float>(0x3f800000u + static_cast<std::uint32_t>(rng() % 3)); break;  // neighbours
      default: s[i] = std::bit_cast<float>(0x3f800000u ^ (1u << rng() % 32)); break;  // one bit apart, at any digit
    }
    if (std::isnan(s[i])) s[i] = 1.0f;
  }
  return s;
}

TEST_F(IndexerTest, ChoosesAsASortDoes) {
  for (int round = 0; round < 250; ++round) {
    const auto n = static_cast<std::int64_t>(rng_() % (round % 10 ? 700 : 40000) + 1);
    const std::vector<float> scores = random_scores(rng_, n);
    const std::int64_t k = rng_() % 4 ? static_cast<std::int64_t>(rng_() % static_cast<std::uint64_t>(n)) + 1
                                      : (rng_() % 2 ? 1 : std::max<std::int64_t>(n - 1, 1));
    const auto want = k < n ? reference_choice(scores, k) : std::vector<std::int32_t>{};  // k = n: everything, count 0
    ASSERT_EQ(choose(scores, k), want) << "round " << round << ", best " << k << " of " << n;
  }
}

TEST_F(IndexerTest, ChoosesAroundThreadgroupSizes) {
  for (const std::int64_t n : {2, 3, 4, 5, 127, 128, 129, 2047, 2048, 2049, 4096, 4097})
    for (const std::int64_t k : {std::int64_t{1}, n / 2, n - 1})
      for (const bool rising : {false, true}) {
        std::vector<float> scores(static_cast<std::size_t>(n));
        for (std::int64_t i = 0; i < n; ++i) scores[static_cast<std::size_t>(i)] = static_cast<float>(rising ? i / 3 : -i / 3);
        ASSERT_EQ(choose(scores, k), reference_choice(scores, k)) << k << " of " << n;
      }
}

TEST_F(IndexerTest, ChoosesFromALongRow) {
  for (const std::int64_t n : {70001, 200000}) {
    std::vector<float> scores = random_floats(n);
    for (std::size_t i = 0; i < scores.size(); i += 3) scores[i] = 0.98f;
    ASSERT_EQ(choose(scores, 2048), reference_choice(scores, 2048));
  }
}

// ---- launch plans at the size of GLM-5.2 ----------------------------------------------------------------------------------

TEST(IndexerPlan, LongContexts) {
  const IndexerShape shape = make_shape(32, 128, 64, 2048);
  constexpr Address kScratch = Address{1} << 40, kQueries = Address{1} << 41;
  struct Case {
    std::int64_t rows, longest;
    std::uint64_t scratch_bytes;
  };
  for (const Case c : {Case{1, 200'000, indexer_scratch_bytes(shape, 1, 200'000)},
                       {4, 200'000, 64u << 20},
                       {512, 200'000, 64u << 20},
                       {40'000, 200'000, std::uint64_t{48} << 30},
                       {100'000, 2049, std::uint64_t{8} << 30},
                       {3, 1'000'000, 64u << 20}}) {
    RecordingDevice device;
    KernelSet kernels(device);
    EncoderCounts counts;
    Encoder encoder(kernels, counts);
    select_positions(encoder, shape, {1, c.rows, c.longest, 2, 3}, kQueries, 5, {6, 7, shape.top_k}, kScratch, c.scratch_bytes,
                     8);
    ASSERT_TRUE(encoder.commit());

    std::int64_t checked = 0, scored = 0, chosen = 0;  // rows
    std::size_t barriers = 0;
    std::string last;
    for (const auto& launch : device.launches()) {
      EXPECT_TRUE(launch.groups.x >= 1 && launch.groups.x <= kMaxGroupsX && launch.groups.y >= 1 &&
                  launch.groups.y <= kMaxGroupsYZ);
      EXPECT_TRUE(launch.threads % 32 == 0 && launch.threads <= 512) << launch.function;
      const bool new_stage = launch.function != last || launch.function == "select_best";
      EXPECT_EQ(launch.barriers_before, barriers + (new_stage && !last.empty() ? 1 : 0)) << launch.function;
      barriers = launch.barriers_before;
      last = launch.function;
      if (launch.function == "index_queries") {
        const auto a = launch.as<IndexArgs>();
        const std::int64_t end = a.first_row + (std::int64_t{a.first_group} + launch.groups.x) / shape.heads;
        EXPECT_EQ(a.first_row + std::int64_t{a.first_group} / shape.heads, checked);
        checked = end;
      } else if (launch.function == "index_scores") {
        const auto a = launch.as<IndexArgs>();
        EXPECT_EQ(a.first_row, scored);
        EXPECT_GE(std::int64_t{launch.groups.x} * kIndexTile, c.longest);
        EXPECT_EQ(a.rotated, kScratch);
        EXPECT_GE(a.scores, a.rotated + std::uint64_t{launch.groups.y} * 4 * 32 * 128);
        scored += launch.groups.y;
      } else {
        const auto a = launch.as<SelectArgs>();
        const std::uint64_t score_end = a.scores + std::uint64_t{launch.groups.y} * a.score_stride * 4;
        EXPECT_GE(a.score_stride, c.longest);
        if (launch.constants == std::vector<std::uint32_t>{kSelectSegments}) {
          EXPECT_GE(std::int64_t{launch.groups.x} * a.segment, c.longest);
          EXPECT_GE(a.candidate_stride, launch.groups.x * a.top_k);
          EXPECT_GE(a.candidate_scores, score_end);
          EXPECT_GE(a.candidates, a.candidate_scores + std::uint64_t{launch.groups.y} * a.candidate_stride * 4);
          EXPECT_LE(a.candidates + std::uint64_t{launch.groups.y} * a.candidate_stride * 4, kScratch + c.scratch_bytes);
          continue;
        }
        EXPECT_EQ(launch.constants.at(0), c.longest > 40'000 ? kSelectCandidates : kSelectWhole);
        EXPECT_LE(score_end, kScratch + c.scratch_bytes);
        EXPECT_EQ(a.first_row, chosen);
        chosen += launch.groups.y;
      }
    }
    EXPECT_EQ(checked, c.rows);
    EXPECT_EQ(scored, c.rows);
    EXPECT_EQ(chosen, c.rows);
  }
}

}  // namespace
}  // namespace colibri::gpu::test

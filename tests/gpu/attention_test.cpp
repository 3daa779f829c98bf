// Latent attention on the device, bit for bit against the rules written out with the scalar kernels.
#include "gpu/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "cpu/kernels.h"
#include "gpu_test_support.h"
#include "numerics/attention.h"
#include "numerics/norm.h"
#include "numerics/rotary.h"

namespace colibri::gpu::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint64_t kPlenty = 1 << 20;

AttentionShape shape_of(std::int64_t heads, std::int64_t latent, std::int64_t rope, std::int64_t nope = 24) {
  return {heads, latent, rope, nope, numerics::inverse_sqrt(nope + rope)};
}

::testing::AssertionResult same(std::span<const float> got, std::span<const float> want) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::bit_cast<std::uint32_t>(got[i]) != std::bit_cast<std::uint32_t>(want[i]))
      return ::testing::AssertionFailure() << "element " << i << " of " << want.size() << ": " << got[i] << ", expected "
                                           << want[i];
  }
  return ::testing::AssertionSuccess();
}

// Rule C6 for one row and head, as NUMERICS.md reads. list: the entries, in rising order.
std::vector<float> attend_reference(const AttentionShape& shape, const float* query, const std::vector<const float*>& list) {
  const Kernels& k = *find_kernels("scalar");
  const auto n = static_cast<std::int64_t>(list.size());
  std::vector<float> p, values, sum(static_cast<std::size_t>(shape.latent)), out(sum.size(), 0.0f);
  for (const float* entry : list) {
    p.push_back(k.dot(query, entry, shape.cache_dim()));
    values.insert(values.end(), entry, entry + shape.latent);
  }
  k.scale(p.data(), shape.score_scale, n);
  k.exp_minus(p.data(), k.max(p.data(), n), n);
  float denominator = 0.0f;
  const std::vector<float> ones(static_cast<std::size_t>(numerics::kSumGroup), 1.0f);
  for (std::int64_t first = 0; first < n; first += numerics::kSumGroup) {
    const std::int64_t size = std::min(numerics::kSumGroup, n - first);
    numerics::weighted_sum(p.data() + first, values.data() + first * shape.latent, shape.latent, size, shape.latent, sum.data());
    k.add(out.data(), sum.data(), out.data(), shape.latent);
    denominator = denominator + k.dot(ones.data(), p.data() + first, size);
  }
  k.scale(out.data(), 1.0f / denominator, shape.latent);
  return out;
}

struct TestRow {
  int sequence = 0;
  std::int64_t position = 0;
  std::int64_t chosen = 0;  // length of its list; 0: none
};

class AttentionTest : public GpuTest {
 protected:
  std::vector<std::int32_t> some_positions(std::int64_t visible, std::int64_t count) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(visible));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    std::shuffle(all.begin(), all.end(), rng_);
    all.resize(static_cast<std::size_t>(count));
    std::sort(all.begin(), all.end());
    return all;
  }

  // Runs the rows over sequences with caches of their own and compares every head. rows_at_once: 0 for all at once with weighted
  // sums by chunk; else scratch for so many rows with weighted sums by group.
  void expect_reference(const AttentionShape& shape, const std::vector<TestRow>& rows, std::int64_t top_k = 0,
                        std::int64_t rows_at_once = 0) {
    const std::int64_t cache = shape.cache_dim(), count = static_cast<std::int64_t>(rows.size());
    std::int64_t longest = 0, sequences = 0;
    for (const TestRow& row : rows) {
      longest = std::max(longest, row.position + 1);
      sequences = std::max<std::int64_t>(sequences, row.sequence + 1);
    }
    const std::int64_t most = top_k > 0 ? std::min(longest, top_k) : longest;
    SCOPED_TRACE(fmt::format("{} heads, latent {}, rope {}, {} rows, longest {}, top_k {}, {} rows at once", shape.heads,
                             shape.latent, shape.rope, count, longest, top_k, rows_at_once));
    std::uint64_t scratch_bytes = attention_scratch_bytes(shape, count, most);
    if (rows_at_once > 0) {
      AttentionPlan by_group = plan_attention(shape, count, most, scratch_bytes);
      by_group.parts_per_group = 1;
      scratch_bytes = by_group.bytes(shape, rows_at_once);
    }
    const AttentionPlan plan = plan_attention(shape, count, most, scratch_bytes);
    ASSERT_EQ(plan.parts_per_group, rows_at_once > 0 ? 1 : 32);
    ASSERT_EQ(plan.rows_at_once, rows_at_once > 0 ? rows_at_once : count);
    DeviceArena arena(device(), scratch_bytes + kPlenty +
                                    4 * static_cast<std::uint64_t>(sequences * longest * cache + 2 * count * shape.heads * cache +
                                                                   count * top_k));
    std::vector<std::span<float>> caches;
    for (std::int64_t s = 0; s < sequences; ++s) caches.push_back(arena.block(random_floats(longest * cache), 16));
    const auto table = arena.block<RowArgs>(count, 32);
    const auto chosen = arena.block<std::int32_t>(std::max<std::int64_t>(count * top_k, 1), 4);
    const auto counts = arena.block<std::uint32_t>(count, 4);
    const auto absorbed = arena.block(random_floats(count * shape.heads * cache), cache % 4 == 0 ? 16 : 4);
    for (float& q : absorbed) q *= 8.0f;  // scores far apart
    const auto context = arena.block<float>(count * shape.heads * shape.latent, 4);
    const auto scratch = arena.block<std::byte>(static_cast<std::int64_t>(scratch_bytes));
    std::vector<std::vector<const float*>> lists(rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::span<float> entries = caches[static_cast<std::size_t>(rows[r].sequence)];
      table[r] = {arena.at(entries), 0, static_cast<u32>(rows[r].position), 0, 0, 0};
      counts[r] = static_cast<std::uint32_t>(rows[r].chosen);
      const std::vector<std::int32_t> positions =
          some_positions(rows[r].position + 1, rows[r].chosen > 0 ? rows[r].chosen : rows[r].position + 1);
      if (rows[r].chosen > 0)
        std::copy(positions.begin(), positions.end(), chosen.begin() + static_cast<std::int64_t>(r) * top_k);
      for (const std::int32_t p : positions) lists[r].push_back(entries.data() + p * cache);
    }
    StepTable step{arena.at(table), count, longest, 0, 0};
    SelectionTable selection;
    if (top_k > 0) selection = {arena.at(chosen), arena.at(counts), top_k};
    run([&](Encoder& e) {
      attend(e, shape, step, selection, arena.at(absorbed), arena.at(context), arena.at(scratch), scratch_bytes);
    });
    EXPECT_TRUE(arena.guards_hold());
    const auto waves = static_cast<std::uint64_t>(ceil_div(count, plan.rows_at_once));
    EXPECT_EQ(counts_.dispatches, waves * (plan.groups > 1 ? 5 : 4));
    EXPECT_EQ(counts_.barriers, counts_.dispatches - 1);
    for (std::size_t r = 0; r < rows.size(); ++r)
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const std::int64_t at = static_cast<std::int64_t>(r) * shape.heads + h;
        const std::vector<float> want = attend_reference(shape, absorbed.data() + at * cache, lists[r]);
        ASSERT_TRUE(same(context.subspan(static_cast<std::size_t>(at * shape.latent), want.size()), want))
            << "row " << r << ", head " << h;
      }
  }
};

TEST_F(AttentionTest, LengthsAroundEveryBoundary) {
  for (const std::int64_t entries : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 500, 2047, 2048, 2049, 4096, 4100})
    for (const std::int64_t rows_at_once : {0, 1}) expect_reference(shape_of(2, 24, 8), {{0, entries - 1}}, 0, rows_at_once);
}

TEST_F(AttentionTest, AnyNumberOfHeads) {
  for (const std::int64_t heads : {1, 2, 3, 5, 6, 8, 9, 64}) {
    expect_reference(shape_of(heads, 32, 8), {{0, 69}, {0, 70}});
    expect_reference(shape_of(heads, 32, 8), {{0, 2100}}, 0, 1);
  }
}

TEST_F(AttentionTest, AnyWidths) {
  for (const auto& [latent, rope] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 2},
                                                                                       {10, 6},
                                                                                       {31, 2},
                                                                                       {30, 2},
                                                                                       {33, 4},
                                                                                       {64, 32},
                                                                                       {100, 64},
                                                                                       {130, 6},
                                                                                       {224, 32},
                                                                                       {256, 32},
                                                                                       {250, 10},
                                                                                       {512, 64},
                                                                                       {514, 66},
                                                                                       {700, 4}}) {
    expect_reference(shape_of(3, latent, rope), {{0, 99}});
    expect_reference(shape_of(3, latent, rope), {{0, 99}}, 0, 1);
  }
}

TEST_F(AttentionTest, GlmWidthsPastOneGroup) { expect_reference(shape_of(8, 512, 64, 192), {{0, 2100}, {0, 2101}}); }

TEST_F(AttentionTest, RaggedRowsOfSeveralSequences) {
  const std::vector<TestRow> rows = {{0, 0}, {1, 2500}, {0, 700}, {0, 701}, {2, 63}, {1, 64}, {2, 2048}};
  for (const std::int64_t rows_at_once : {0, 1, 2, 3, 7}) expect_reference(shape_of(6, 16, 8), rows, 0, rows_at_once);
}

TEST_F(AttentionTest, ListsOfChosenEntries) {
  for (const std::int64_t rows_at_once : {0, 1, 2, 5})
    expect_reference(shape_of(5, 20, 4), {{0, 300, 64}, {0, 63}, {1, 200, 63}, {1, 201, 1}, {0, 64, 64}}, 64, rows_at_once);
  expect_reference(shape_of(3, 20, 4), {{0, 5000, 2500}, {0, 2499}, {0, 2501, 2049}}, 2500);
  expect_reference(shape_of(3, 20, 4), {{0, 5000, 2048}, {0, 2047}, {0, 3000, 2000}}, 2048, 3);
}

TEST_F(AttentionTest, ManyRows) {
  std::vector<TestRow> rows;
  for (std::int64_t r = 0; r < 65; ++r) rows.push_back({0, 30 + r});
  expect_reference(shape_of(4, 16, 8), rows);
  expect_reference(shape_of(4, 16, 8), rows, 0, 32);
}

// A score that is NaN or infinite must do what it does to the reference: the layer is then computed again on the CPU.
TEST_F(AttentionTest, NumbersThatAreNotFinite) {
  const AttentionShape shape = shape_of(2, 8, 4);
  const std::int64_t entries = 2060, cache = shape.cache_dim();
  for (const float bad : {kNaN, kInf, -kInf}) {
    DeviceArena arena(device(), 4 * kPlenty);
    const auto keys = arena.block(random_floats(entries * cache), 16);
    keys[static_cast<std::size_t>(cache * 100 + 9)] = bad;
    const auto absorbed = arena.block(random_floats(2 * cache), 16);
    absorbed[9] = 1.0f;
    absorbed[static_cast<std::size_t>(cache + 9)] = 0.0f;
    const auto table = arena.block<RowArgs>(1);
    table[0] = {arena.at(keys), 0, static_cast<u32>(entries - 1), 0, 0, 0};
    const auto context = arena.block<float>(2 * shape.latent);
    const std::uint64_t bytes = attention_scratch_bytes(shape, 1, entries);
    const auto scratch = arena.block<std::byte>(static_cast<std::int64_t>(bytes));
    run([&](Encoder& e) {
      attend(e, shape, {arena.at(table), 1, entries, 0, 0}, {}, arena.at(absorbed), arena.at(context), arena.at(scratch), bytes);
    });
    std::vector<const float*> list;
    for (std::int64_t i = 0; i < entries; ++i) list.push_back(keys.data() + i * cache);
    for (std::int64_t h = 0; h < 2; ++h)
      EXPECT_TRUE(same(context.subspan(static_cast<std::size_t>(h * shape.latent), static_cast<std::size_t>(shape.latent)),
                       attend_reference(shape, absorbed.data() + h * cache, list)))
          << bad << ", head " << h;
  }
}

// At 200,000 positions of GLM's widths an entry lies up to 460 MB into its cache; only a few of them are touched here.
TEST_F(AttentionTest, ListsFarIntoALongContext) {
  const AttentionShape shape = shape_of(2, 512, 64);
  const std::int64_t positions = 200'000, cache = shape.cache_dim(), top_k = 2048;
  AlignedBytes memory(round_up(static_cast<std::uint64_t>(4 * positions * cache), kRegionAlignment), kRegionAlignment);
  ASSERT_TRUE(device().register_region(memory.data(), memory.size()));
  {
    auto* keys = reinterpret_cast<float*>(memory.data());
    const std::vector<std::int32_t> picked = {0, 77'777, 131'072, 199'998, 199'999};
    std::vector<const float*> list;
    for (const std::int32_t p : picked) {
      for (std::int64_t c = 0; c < cache; ++c) keys[p * cache + c] = random_float();
      list.push_back(keys + p * cache);
    }
    const std::uint64_t bytes = attention_scratch_bytes(shape, 1, top_k);
    DeviceArena arena(device(), bytes + kPlenty);
    const auto table = arena.block<RowArgs>(1);
    table[0] = {device().address(keys), 0, static_cast<u32>(positions - 1), 0, 0, 0};
    const auto chosen = arena.block<std::int32_t>(top_k);
    std::copy(picked.begin(), picked.end(), chosen.begin());
    const auto counts = arena.block(std::vector<std::uint32_t>{static_cast<std::uint32_t>(picked.size())});
    const auto absorbed = arena.block(random_floats(2 * cache), 16);
    const auto context = arena.block<float>(2 * shape.latent);
    const auto scratch = arena.block<std::byte>(static_cast<std::int64_t>(bytes));
    run([&](Encoder& e) {
      attend(e, shape, {arena.at(table), 1, positions, 0, 0}, {arena.at(chosen), arena.at(counts), top_k}, arena.at(absorbed),
             arena.at(context), arena.at(scratch), bytes);
    });
    for (std::int64_t h = 0; h < 2; ++h)
      EXPECT_TRUE(same(context.subspan(static_cast<std::size_t>(h * shape.latent), static_cast<std::size_t>(shape.latent)),
                       attend_reference(shape, absorbed.data() + h * cache, list)));
  }
  EXPECT_TRUE(device().unregister_region(memory.data()));
}

TEST_F(AttentionTest, WritesCacheEntriesAndLooksForDamage) {
  for (const auto& [latent, rope] : std::vector<std::pair<std::int64_t, std::int64_t>>{{24, 8}, {33, 2}, {512, 64}, {700, 128}}) {
    SCOPED_TRACE(fmt::format("latent {}, rope {}", latent, rope));
    const AttentionShape shape = shape_of(1, latent, rope);
    const std::int64_t cache = shape.cache_dim(), half = rope / 2, capacity = 40;
    const std::vector<TestRow> rows = {{0, 0}, {1, 39}, {0, 1}, {1, 7}, {0, 2}};
    const auto count = static_cast<std::int64_t>(rows.size());
    DeviceArena arena(device(), 2 * kPlenty);
    const std::vector<std::span<float>> caches = {arena.block<float>(capacity * cache), arena.block<float>(capacity * cache)};
    for (const auto& c : caches) std::fill(c.begin(), c.end(), -7.0f);
    const auto table = arena.block<RowArgs>(count);
    for (std::size_t r = 0; r < rows.size(); ++r)
      table[r] = {arena.at(caches[static_cast<std::size_t>(rows[r].sequence)]), 0, static_cast<u32>(rows[r].position), 0, 0, 0};
    const auto kv = arena.block(random_floats(count * cache), 4 * (rng_() % 4)), weight = arena.block(random_floats(latent), 4);
    const auto cosine = arena.block(random_floats(count * half), 4), sine = arena.block(random_floats(count * half), 8);
    const auto damage = arena.block<std::uint32_t>(1);
    const StepTable step{arena.at(table), count, capacity, arena.at(cosine), arena.at(sine)};
    const auto write = [&] {
      damage[0] = 0;
      run([&](Encoder& e) { write_cache_entries(e, shape, step, arena.at(kv), arena.at(weight), 1e-6f, arena.at(damage)); });
      EXPECT_TRUE(arena.guards_hold());
      return damage[0];
    };
    EXPECT_EQ(write(), 0u);
    std::vector<std::vector<float>> want(2, std::vector<float>(static_cast<std::size_t>(capacity * cache), -7.0f));
    for (std::int64_t r = 0; r < count; ++r) {
      float* entry = want[static_cast<std::size_t>(rows[static_cast<std::size_t>(r)].sequence)].data() +
                     rows[static_cast<std::size_t>(r)].position * cache;
      numerics::rms_norm(kv.data() + r * cache, weight.data(), 1e-6f, entry, latent);
      numerics::rotate_interleaved_to_halves(kv.data() + r * cache + latent, cosine.data() + r * half, sine.data() + r * half,
                                             rope, entry + latent);
    }
    EXPECT_TRUE(same(caches[0], want[0]));
    EXPECT_TRUE(same(caches[1], want[1]));
    for (const std::int64_t at : {std::int64_t{0}, latent - 1, latent, cache - 1, 3 * cache + latent / 2, count * cache - 1}) {
      float& value = kv[static_cast<std::size_t>(at)];
      const float before = std::exchange(value, at % 2 ? kNaN : -kInf);
      EXPECT_EQ(write(), kDamageAttention) << at;
      value = before;
    }
  }
}

TEST_F(AttentionTest, RotatesQueriesAndLooksForDamage) {
  for (const auto& [heads, latent, rope, nope] :
       std::vector<std::array<std::int64_t, 4>>{{1, 24, 8, 16}, {3, 33, 2, 5}, {9, 300, 64, 192}}) {
    const AttentionShape shape = shape_of(heads, latent, rope, nope);
    const std::int64_t count = 3, cache = shape.cache_dim(), query = shape.query_dim(), half = rope / 2;
    DeviceArena arena(device(), 2 * kPlenty);
    const auto queries = arena.block(random_floats(count * heads * query), 4);
    const auto absorbed = arena.block(random_floats(count * heads * cache), 8);
    const auto cosine = arena.block(random_floats(count * half), 4), sine = arena.block(random_floats(count * half), 8);
    const auto damage = arena.block<std::uint32_t>(1);
    const StepTable step{0, count, 1, arena.at(cosine), arena.at(sine)};
    std::vector<float> want(absorbed.begin(), absorbed.end());
    const auto rotate = [&] {
      damage[0] = 0;
      run([&](Encoder& e) { rotate_queries(e, shape, step, arena.at(queries), arena.at(absorbed), arena.at(damage)); });
      EXPECT_TRUE(arena.guards_hold());
      return damage[0];
    };
    EXPECT_EQ(rotate(), 0u);
    for (std::int64_t i = 0; i < count * heads; ++i)
      numerics::rotate_interleaved_to_halves(queries.data() + i * query + nope, cosine.data() + i / heads * half,
                                             sine.data() + i / heads * half, rope, want.data() + i * cache + latent);
    EXPECT_TRUE(same(absorbed, want));

    const auto last = static_cast<std::size_t>((count * heads - 1) * cache + latent - 1);
    absorbed[last] = kInf;
    EXPECT_EQ(rotate(), kDamageAttention);
    absorbed[last] = 1.0f;
    queries[0] = kNaN;  // not a rope part: absorbed already tells
    EXPECT_EQ(rotate(), 0u);
    queries[queries.size() - 1] = kInf;
    EXPECT_EQ(rotate(), kDamageAttention);
  }
}

// The plan for GLM-5.2's shapes: nothing overflows, memory is what it says, and there is enough to do for a large GPU.
TEST(AttentionPlan, GlmShapesToTwoHundredThousand) {
  const AttentionShape glm = shape_of(64, 512, 64, 192);
  for (const std::int64_t longest : {1, 64, 2047, 2048, 2049, 30'000, 65'536, 131'072, 200'000})
    for (const std::int64_t rows : {1, 2, 4, 64, 512, 100'000}) {
      SCOPED_TRACE(fmt::format("{} rows, {} entries", rows, longest));
      const std::uint64_t one = attention_scratch_bytes(glm, 1, longest);
      for (const std::uint64_t scratch : {one, 2 * one + 5, std::uint64_t{1} << 30, std::uint64_t{1} << 40}) {
        if (scratch < one) continue;
        const AttentionPlan plan = plan_attention(glm, rows, longest, scratch);
        ASSERT_GE(plan.rows_at_once, 1);
        ASSERT_LE(plan.rows_at_once, std::min(rows, kMaxGroupsYZ));
        ASSERT_LE(plan.bytes(glm, plan.rows_at_once), scratch);
        ASSERT_GE(plan.stride, longest);
        ASSERT_GE(plan.groups * numerics::kSumGroup, longest);
        ASSERT_EQ(plan.tile_heads, 8);
        // Within 2^35 products a dispatch, unless one row alone is more.
        ASSERT_TRUE(plan.rows_at_once == 1 || plan.rows_at_once * 64 * 576 * longest <= std::int64_t{1} << 35);
        ASSERT_EQ(plan.score_bytes(glm, 3), 4 * 3 * 64 * static_cast<std::uint64_t>(plan.stride));
        ASSERT_EQ(plan.part_bytes(glm, 3), 4 * 3 * 64 * 512 * static_cast<std::uint64_t>(plan.groups * plan.parts_per_group));
      }
    }
  EXPECT_LE(attention_scratch_bytes(glm, 1, 2048), 6u << 20);
  EXPECT_LE(attention_scratch_bytes(glm, 1, 200'000), 80u << 20);
  EXPECT_EQ(plan_attention(glm, 1, 2048, 1 << 30).parts_per_group, 32);
  EXPECT_EQ(plan_attention(glm, 512, 2048, std::uint64_t{1} << 32).parts_per_group, 1);
  EXPECT_EQ(plan_attention(glm, 4, 200'000, std::uint64_t{1} << 32).parts_per_group, 1);
  EXPECT_EQ(plan_attention(glm, 4, 2048, 1000).rows_at_once, 0);
}

}  // namespace
}  // namespace colibri::gpu::test

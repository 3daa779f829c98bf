// The C API: every function against the scalar kernels bit for bit, arguments of every wrong kind, faults.
#include "colibri/backend_metal.h"

#include <thread>

#include "backend_metal_support.h"

#ifndef __APPLE__
#include <dlfcn.h>

#include "softmetal/soft_metal.h"
#endif

extern "C" int backend_metal_from_c(void);

namespace colibri::gpu::test {
namespace {

constexpr std::uint64_t kSlab = std::uint64_t{1} << 20;
const std::vector<int> kAllExperts = {0, 1, 2, 3, 4};

TEST_F(BackendTest, ProductsHaveTheScalarBits) {
  Slab slab(kSlab);
  std::uint64_t blocks = 0;
  for (const WeightFormat format : kAllFormats)
    for (const auto& [outputs, cols] : {std::pair<std::int64_t, std::int64_t>{37, 70}, {130, 256}}) {
      Slab own(kSlab);
      const Weight w = random_weight(own, rng_, format, outputs, cols);
      for (const std::int64_t rows : {1, 3, 17}) {
        SCOPED_TRACE(fmt::format("{} {} x {}, {} rows", format_name(format), outputs, cols, rows));
        const std::int64_t x_stride = cols + 5, y_stride = outputs + 3;
        const std::vector<float> x = random_floats(rows * x_stride), want = scalar_products(w.m, x.data(), x_stride, rows);
        for (const auto& product : {coli_metal_matmul, coli_metal_gemm}) {
          std::vector<float> y(static_cast<std::size_t>(rows * y_stride), kPoison), expected = y;
          for (std::int64_t r = 0; r < rows; ++r)
            std::copy(want.data() + r * outputs, want.data() + (r + 1) * outputs, expected.data() + r * y_stride);
          ASSERT_EQ(product(&w.c, x.data(), x_stride, rows, y.data(), y_stride), COLI_METAL_OK) << coli_metal_last_error();
          EXPECT_TRUE(same(y, expected));
          ++blocks;
        }
      }
    }
  const coli_metal_counter_values c = counters();
  EXPECT_EQ(c.ok, blocks);
  EXPECT_EQ(c.fallbacks, 0u);
  EXPECT_EQ(c.command_buffers, blocks);
  EXPECT_GT(c.kernel_seconds, 0);
}

TEST_F(BackendTest, AnOutputMayOverlapAnInput) {
  Slab slab(kSlab);
  const Weight w = random_weight(slab, rng_, WeightFormat::kInt8Row, 64, 64);
  std::vector<float> x = random_floats(3 * 64);
  const std::vector<float> want = scalar_products(w.m, x.data(), 64, 3);
  ASSERT_EQ(coli_metal_matmul(&w.c, x.data(), 64, 3, x.data(), 64), COLI_METAL_OK);
  EXPECT_TRUE(same(x, want));
}

TEST_F(BackendTest, ExpertsHaveTheScalarBits) {
  for (const auto& [gate, down] : {std::pair{WeightFormat::kInt4Grouped, WeightFormat::kInt8Row},
                                   {WeightFormat::kF8Block128, WeightFormat::kInt3G64},
                                   {WeightFormat::kInt2Row, WeightFormat::kBF16}})
    for (const std::int64_t rows : {1, 4, 9}) {
      SCOPED_TRACE(fmt::format("{} {}, {} rows", format_name(gate), format_name(down), rows));
      Slab slab(kSlab);
      const MoeCase c(slab, rng_, gate, down, rows);
      for (const std::vector<int>& there : {kAllExperts, std::vector<int>{1, 3}, std::vector<int>{}}) {
        const auto table = c.only(there);
        const coli_metal_moe moe = c.moe(table);
        std::vector<float> y(c.x.size(), kPoison);
        ASSERT_EQ(coli_metal_moe_block(&moe, y.data()), COLI_METAL_OK) << coli_metal_last_error();
        EXPECT_TRUE(same(y, c.want(there))) << there.size() << " experts there";
      }
    }
  const coli_metal_counter_values c = counters();
  EXPECT_EQ(c.ok, 27u);
  EXPECT_EQ(c.experts + c.experts_missing, 3u * 3u * (1 + 4 + 9) * MoeCase::kPerToken);
}

TEST_F(BackendTest, ABlockWithoutResidualAndSharedExperts) {
  Slab slab(kSlab);
  MoeCase c(slab, rng_, WeightFormat::kF16, WeightFormat::kF16, 2);
  const auto table = c.only(kAllExperts);
  coli_metal_moe moe = c.moe(table);
  moe.residual = moe.shared = nullptr;
  std::fill(c.residual.begin(), c.residual.end(), 0.0f);
  std::fill(c.shared.begin(), c.shared.end(), 0.0f);
  std::vector<float> y(c.x.size());
  ASSERT_EQ(coli_metal_moe_block(&moe, y.data()), COLI_METAL_OK) << coli_metal_last_error();
  EXPECT_TRUE(same(y, c.want(kAllExperts)));
}

TEST_F(BackendTest, LateExpertsGiveTheBitsOfOneBlock) {
  Slab slab(kSlab), late_slab(kSlab);
  MoeCase c(slab, rng_, WeightFormat::kInt4Grouped, WeightFormat::kInt4Row, 5);
  const std::vector<float> want = c.want(kAllExperts);
  for (const std::vector<int>& first : {std::vector<int>{0, 2}, std::vector<int>{}, kAllExperts}) {
    auto table = c.only(first);
    const auto rest = c.only(kAllExperts);
    const coli_metal_moe moe = c.moe(table);
    const std::vector<float> x = c.x;
    coli_metal_moe_work* work = nullptr;
    ASSERT_EQ(coli_metal_moe_block_begin(&moe, &work), COLI_METAL_OK) << coli_metal_last_error();
    ASSERT_NE(work, nullptr);
    // Everything but the matrices was copied.
    std::fill(table.begin(), table.end(), coli_metal_expert{});
    std::fill(c.x.begin(), c.x.end(), 0.0f);
    std::vector<float> y(c.x.size(), kPoison);
    ASSERT_EQ(coli_metal_moe_block_end(work, rest.data(), y.data()), COLI_METAL_OK) << coli_metal_last_error();
    c.x = x;
    EXPECT_TRUE(same(y, want)) << first.size() << " experts at first";
    EXPECT_EQ(coli_metal_moe_block_end(work, nullptr, y.data()), COLI_METAL_BAD_ARGUMENT);  // taken already
  }
  EXPECT_EQ(counters().experts_missing, 0u);
}

TEST_F(BackendTest, BlocksMayBeOpenTogetherAndGivenUp) {
  Slab slab(kSlab);
  const MoeCase a(slab, rng_, WeightFormat::kInt8Row, WeightFormat::kInt8Row, 2),
      b(slab, rng_, WeightFormat::kInt8Row, WeightFormat::kInt8Row, 3);
  const auto ta = a.only(kAllExperts), tb = b.only(kAllExperts);
  const coli_metal_moe ma = a.moe(ta), mb = b.moe(tb);
  coli_metal_moe_work *wa = nullptr, *wb = nullptr, *given_up = nullptr, *left_open = nullptr;
  ASSERT_EQ(coli_metal_moe_block_begin(&ma, &wa), COLI_METAL_OK);
  ASSERT_EQ(coli_metal_moe_block_begin(&mb, &wb), COLI_METAL_OK);
  ASSERT_EQ(coli_metal_moe_block_begin(&mb, &given_up), COLI_METAL_OK);
  ASSERT_EQ(coli_metal_moe_block_begin(&mb, &left_open), COLI_METAL_OK);  // shutdown takes it
  std::vector<float> ya(a.x.size()), yb(b.x.size());
  EXPECT_EQ(coli_metal_moe_block_end(wb, nullptr, yb.data()), COLI_METAL_OK);
  EXPECT_EQ(coli_metal_moe_block_end(given_up, nullptr, nullptr), COLI_METAL_OK);
  EXPECT_EQ(coli_metal_moe_block_end(wa, nullptr, ya.data()), COLI_METAL_OK);
  EXPECT_TRUE(same(ya, a.want(kAllExperts)));
  EXPECT_TRUE(same(yb, b.want(kAllExperts)));
}

TEST_F(BackendTest, AttentionHasTheScalarBits) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kInt8Row, WeightFormat::kInt4Grouped}) {
    Slab slab(kSlab);
    const AttentionCase c(slab, rng_, format, {{0}, {40, 3}, {63, 2}, {7}});
    std::vector<float> out = c.context();
    ASSERT_EQ(c.run(nullptr, out), COLI_METAL_OK) << coli_metal_last_error();
    EXPECT_TRUE(same(out, c.want(nullptr)));
  }
}

// A batch of several sequences has the bits of each one's contiguous rows, and those the bits of row after row.
TEST_F(BackendTest, RaggedAndContiguousRowsHaveTheSameBits) {
  Slab slab(kSlab);
  const AttentionCase c(slab, rng_, WeightFormat::kInt8Row, {{29, 4}, {2}, {64, 3}});
  std::vector<float> together = c.context(), alone = c.context(), by_row = c.context();
  ASSERT_EQ(c.run(nullptr, together), COLI_METAL_OK) << coli_metal_last_error();
  const std::int64_t query = c.shape.heads * (c.shape.nope + c.shape.rope), values = c.shape.heads * c.shape.value_dim;
  std::int64_t first = 0;
  for (const coli_metal_sequence& s : c.sequences) {
    const auto part = [&](const coli_metal_sequence& rows, std::int64_t at, std::vector<float>& out) {
      ASSERT_EQ(
          coli_metal_attn_decode(&c.shape, &c.kv_b.c, &rows, 1, nullptr, c.queries.data() + at * query, out.data() + at * values),
          COLI_METAL_OK)
          << coli_metal_last_error();
    };
    part(s, first, alone);
    for (std::int64_t r = 0; r < s.rows; ++r) part({s.entries, nullptr, s.first + r, 1}, first + r, by_row);
    first += s.rows;
  }
  EXPECT_TRUE(same(together, c.want(nullptr)));
  EXPECT_TRUE(same(together, alone));
  EXPECT_TRUE(same(together, by_row));
}

TEST_F(BackendTest, AttentionOverMoreThanAGroupAndOverASelection) {
  Slab slab(kSlab);
  const AttentionCase c(slab, rng_, WeightFormat::kF16, {{2100}, {5}});
  std::vector<float> out = c.context();
  ASSERT_EQ(c.run(nullptr, out), COLI_METAL_OK) << coli_metal_last_error();
  EXPECT_TRUE(same(out, c.want(nullptr)));

  std::vector<std::int32_t> chosen(2 * 16);
  for (int i = 0; i < 10; ++i) chosen[static_cast<std::size_t>(i)] = 3 + 200 * i;
  std::vector<std::uint32_t> counts = {10, 0};
  const coli_metal_selection selection = {16, chosen.data(), counts.data()};
  ASSERT_EQ(c.run(&selection, out), COLI_METAL_OK) << coli_metal_last_error();
  EXPECT_TRUE(same(out, c.want(&selection)));
}

TEST_F(BackendTest, RegionsComeAndGo) {
  std::uint64_t regions = 9, bytes = 9;
  ASSERT_EQ(coli_metal_stats(&regions, &bytes), COLI_METAL_OK);
  EXPECT_EQ(regions, 0u);
  EXPECT_EQ(bytes, 0u);
  AlignedBytes memory = AlignedBytes::pages(1 << 18);
  auto* base = memory.whole_pages().data();
  const std::uint64_t size = memory.whole_pages().size();
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(coli_metal_register(base, size), COLI_METAL_OK) << coli_metal_last_error();
    ASSERT_EQ(coli_metal_stats(&regions, &bytes), COLI_METAL_OK);
    EXPECT_EQ(regions, 1u);
    EXPECT_EQ(bytes, size);
    EXPECT_EQ(coli_metal_register(base + kRegionAlignment, kRegionAlignment), COLI_METAL_BAD_ARGUMENT);  // registered already
    ASSERT_EQ(coli_metal_unregister(base), COLI_METAL_OK);
    EXPECT_EQ(coli_metal_unregister(base), COLI_METAL_NOT_REGISTERED);
  }
  EXPECT_EQ(coli_metal_stats(nullptr, nullptr), COLI_METAL_OK);
  std::uint64_t used = 0, total = 0;
  ASSERT_EQ(coli_metal_mem_info(&used, &total), COLI_METAL_OK);
  EXPECT_GT(total, 0u);
  coli_metal_resset_values resset;
  ASSERT_EQ(coli_metal_resset_stats(&resset), COLI_METAL_OK);
  EXPECT_EQ(coli_metal_resset_stats(nullptr), COLI_METAL_BAD_ARGUMENT);
}

// Memory of a begun block goes before its end: what it needs is computed by then.
TEST_F(BackendTest, MemoryMayGoBetweenBeginAndEnd) {
  std::vector<float> want, y;
  coli_metal_moe_work* work = nullptr;
  {
    Slab slab(kSlab);
    const MoeCase c(slab, rng_, WeightFormat::kInt8Row, WeightFormat::kBF16, 4);
    const auto table = c.only({0, 4});
    const coli_metal_moe moe = c.moe(table);
    want = c.want({0, 4});
    y = c.x;
    ASSERT_EQ(coli_metal_moe_block_begin(&moe, &work), COLI_METAL_OK);
    slab.unregister();
    std::memset(slab.base(), 0xff, slab.size());
  }
  ASSERT_EQ(coli_metal_moe_block_end(work, nullptr, y.data()), COLI_METAL_OK) << coli_metal_last_error();
  EXPECT_TRUE(same(y, want));
}

TEST_F(BackendTest, ThreadsTakeTurns) {
  Slab slab(kSlab);
  const Weight w = random_weight(slab, rng_, WeightFormat::kInt8Row, 40, 64);
  const std::vector<float> x = random_floats(64), want = scalar_products(w.m, x.data(), 64, 1);
  std::vector<std::vector<float>> y(3, std::vector<float>(40));
  std::vector<std::thread> threads;
  for (auto& out : y)
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) coli_metal_matmul(&w.c, x.data(), 64, 1, out.data(), 40);
    });
  for (auto& t : threads) t.join();
  for (const auto& out : y) EXPECT_TRUE(same(out, want));
}

TEST_F(BackendTest, CUsesIt) { EXPECT_EQ(backend_metal_from_c(), 0) << coli_metal_last_error(); }

// --- wrong arguments -------------------------------------------------------------------------------------------------

#define EXPECT_REFUSED(status, text, call)                                                                    \
  do {                                                                                                        \
    EXPECT_EQ(call, status) << coli_metal_last_error();                                                       \
    EXPECT_NE(std::string(coli_metal_last_error()).find(text), std::string::npos) << coli_metal_last_error(); \
  } while (false)

TEST(Backend, NothingWorksBeforeInit) {
  coli_metal_shutdown();
  EXPECT_EQ(coli_metal_available(), 0);
  float x = 0;
  std::uint64_t n = 0;
  coli_metal_matrix w = {};
  EXPECT_REFUSED(COLI_METAL_UNAVAILABLE, "coli_metal_init", coli_metal_stats(&n, &n));
  EXPECT_REFUSED(COLI_METAL_UNAVAILABLE, "coli_metal_matmul", coli_metal_matmul(&w, &x, 1, 1, &x, 1));
  EXPECT_REFUSED(COLI_METAL_UNAVAILABLE, "coli_metal_init", coli_metal_register(&x, 16384));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "flags", coli_metal_init(6));
#ifndef __APPLE__
  EXPECT_REFUSED(COLI_METAL_UNAVAILABLE, "Metal needs macOS", coli_metal_init(0));
#endif
}

TEST_F(BackendTest, InitTwiceChangesNothing) {
  EXPECT_EQ(coli_metal_available(), 1);
  EXPECT_EQ(coli_metal_init(COLI_METAL_ALLOW_SOFTWARE), COLI_METAL_OK);
  EXPECT_EQ(coli_metal_available(), 1);
}

TEST_F(BackendTest, WrongRegionsAreRefused) {
  AlignedBytes memory = AlignedBytes::pages(1 << 16);
  auto* base = memory.whole_pages().data();
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "base", coli_metal_register(nullptr, 16384));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "16384", coli_metal_register(base + 64, 16384));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "16384", coli_metal_register(base, 16000));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "16384", coli_metal_register(base, 0));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "longer", coli_metal_register(base, std::uint64_t{1} << 60));
  EXPECT_REFUSED(COLI_METAL_NOT_REGISTERED, "base", coli_metal_unregister(base));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "base", coli_metal_unregister(nullptr));
}

TEST_F(BackendTest, WrongMatricesAreRefused) {
  Slab slab(kSlab);
  const Weight good = random_weight(slab, rng_, WeightFormat::kInt4Grouped, 8, 64);
  const Weight plain = random_weight(slab, rng_, WeightFormat::kF32, 8, 64);
  std::vector<float> x(64, 1.0f), y(64, kPoison);
  const auto refused = [&](coli_metal_matrix w, coli_metal_status status, const char* text) {
    EXPECT_REFUSED(status, text, coli_metal_matmul(&w, x.data(), 64, 1, y.data(), 8));
    EXPECT_REFUSED(status, text, coli_metal_gemm(&w, x.data(), 64, 1, y.data(), 8));
  };
  const auto with = [](coli_metal_matrix w, auto change) {
    change(w);
    return w;
  };
  using M = coli_metal_matrix;
  refused(with(good.c, [](M& w) { w.format = 9; }), COLI_METAL_BAD_ARGUMENT, "w.format: expected 0 .. 8, found 9");
  refused(with(good.c, [](M& w) { w.format = -1; }), COLI_METAL_BAD_ARGUMENT, "w.format");
  refused(with(good.c, [](M& w) { w.group = 0; }), COLI_METAL_BAD_ARGUMENT, "w.group");
  refused(with(good.c, [](M& w) { w.group = 33; }), COLI_METAL_BAD_ARGUMENT, "w.group");
  refused(with(plain.c, [](M& w) { w.group = 64; }), COLI_METAL_BAD_ARGUMENT, "w.group");
  refused(with(good.c, [](M& w) { w.rows = 0; }), COLI_METAL_BAD_ARGUMENT, "w.rows");
  refused(with(good.c, [](M& w) { w.cols = -4; }), COLI_METAL_BAD_ARGUMENT, "w.cols");
  refused(with(good.c, [](M& w) { w.rows = std::int64_t{1} << 40; }), COLI_METAL_BAD_ARGUMENT, "w.rows");
  refused(with(good.c, [](M& w) { w.data = nullptr; }), COLI_METAL_BAD_ARGUMENT, "w.data");
  refused(with(good.c, [](M& w) { w.scales = nullptr; }), COLI_METAL_BAD_ARGUMENT, "w.scales");
  refused(with(good.c, [](M& w) { w.row_bytes = 31; }), COLI_METAL_BAD_ARGUMENT, "w.row_bytes");
  refused(with(good.c, [](M& w) { w.scale_stride = 1; }), COLI_METAL_BAD_ARGUMENT, "w.scale_stride");
  refused(with(plain.c, [](M& w) { w.data = static_cast<const std::byte*>(w.data) + 2; }), COLI_METAL_BAD_ARGUMENT, "w:");
  refused(with(plain.c, [](M& w) { w.row_bytes = 258; }), COLI_METAL_BAD_ARGUMENT, "w:");
  refused(with(plain.c, [&](M& w) { w.scales = x.data(); }), COLI_METAL_BAD_ARGUMENT, "w.scales");
  refused(with(plain.c, [&](M& w) { w.data = x.data(); }), COLI_METAL_NOT_REGISTERED, "w.data");
  refused(with(good.c, [&](M& w) { w.scales = x.data(); }), COLI_METAL_NOT_REGISTERED, "w.scales");
  refused(with(plain.c, [](M& w) { w.rows = 1 << 20; }), COLI_METAL_NOT_REGISTERED, "ends");
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "w:", coli_metal_matmul(nullptr, x.data(), 64, 1, y.data(), 8));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "x:", coli_metal_matmul(&plain.c, nullptr, 64, 1, y.data(), 8));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "y:", coli_metal_matmul(&plain.c, x.data(), 64, 1, nullptr, 8));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "rows", coli_metal_matmul(&plain.c, x.data(), 64, 0, y.data(), 8));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "x_stride", coli_metal_matmul(&plain.c, x.data(), 63, 1, y.data(), 8));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "y_stride", coli_metal_matmul(&plain.c, x.data(), 64, 1, y.data(), 7));
  auto* odd = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(x.data()) + 1);
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "x:", coli_metal_matmul(&plain.c, odd, 64, 1, y.data(), 8));
  for (const float v : y) EXPECT_EQ(v, kPoison);
  EXPECT_EQ(counters().ok + counters().fallbacks, 0u);
}

TEST_F(BackendTest, WrongBlocksAreRefused) {
  Slab slab(kSlab);
  MoeCase c(slab, rng_, WeightFormat::kInt8Row, WeightFormat::kInt8Row, 2);
  const Weight other = random_weight(slab, rng_, WeightFormat::kBF16, MoeCase::kIntermediate, MoeCase::kHidden);
  const auto table = c.only(kAllExperts);
  std::vector<float> y(c.x.size(), kPoison);
  const auto refused = [&](coli_metal_status status, const char* text, const auto& change) {
    coli_metal_moe moe = c.moe(table);
    change(moe);
    EXPECT_REFUSED(status, text, coli_metal_moe_block(&moe, y.data()));
    auto* work = reinterpret_cast<coli_metal_moe_work*>(&moe);
    EXPECT_REFUSED(status, text, coli_metal_moe_block_begin(&moe, &work));
    EXPECT_EQ(work, nullptr);
  };
  using M = coli_metal_moe;
  refused(COLI_METAL_BAD_ARGUMENT, "moe.hidden", [](M& m) { m.hidden = 0; });
  refused(COLI_METAL_BAD_ARGUMENT, "gate: expected 45 x 71, found 45 x 70", [](M& m) { m.hidden = 71; });
  refused(COLI_METAL_BAD_ARGUMENT, "moe.intermediate", [](M& m) { m.intermediate = -1; });
  refused(COLI_METAL_BAD_ARGUMENT, "moe.per_token", [](M& m) { m.per_token = 6; });
  refused(COLI_METAL_BAD_ARGUMENT, "moe.experts", [](M& m) { m.experts = 0; });
  refused(COLI_METAL_BAD_ARGUMENT, "moe.rows", [](M& m) { m.rows = 0; });
  refused(COLI_METAL_BAD_ARGUMENT, "moe.x", [](M& m) { m.x = nullptr; });
  refused(COLI_METAL_BAD_ARGUMENT, "moe.table", [](M& m) { m.table = nullptr; });
  refused(COLI_METAL_BAD_ARGUMENT, "moe.chosen", [](M& m) { m.chosen = nullptr; });
  refused(COLI_METAL_BAD_ARGUMENT, "moe.weights", [](M& m) { m.weights = nullptr; });
  std::vector<std::int32_t> chosen = c.chosen;
  chosen[4] = 5;
  refused(COLI_METAL_BAD_ARGUMENT, "chosen[1][1]: expected an expert 0 .. 4, found 5", [&](M& m) { m.chosen = chosen.data(); });
  chosen[4] = chosen[3];
  refused(COLI_METAL_BAD_ARGUMENT, "twice", [&](M& m) { m.chosen = chosen.data(); });
  auto mixed = table;
  mixed[static_cast<std::size_t>(c.chosen[0])].gate = other.c;
  refused(COLI_METAL_BAD_ARGUMENT, "gate: expected", [&](M& m) { m.table = mixed.data(); });
  mixed = table;
  mixed[static_cast<std::size_t>(c.chosen[0])].down.data = y.data();
  refused(COLI_METAL_NOT_REGISTERED, "down.data", [&](M& m) { m.table = mixed.data(); });
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "moe", coli_metal_moe_block(nullptr, y.data()));
  const M good = c.moe(table);
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "y:", coli_metal_moe_block(&good, nullptr));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "work", coli_metal_moe_block_begin(&good, nullptr));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "work", coli_metal_moe_block_end(nullptr, nullptr, y.data()));
  for (const float v : y) EXPECT_EQ(v, kPoison);

  // A refused end leaves the block open.
  const auto none = c.only({});
  const M empty = c.moe(none);
  coli_metal_moe_work* work = nullptr;
  ASSERT_EQ(coli_metal_moe_block_begin(&empty, &work), COLI_METAL_OK);
  EXPECT_REFUSED(COLI_METAL_NOT_REGISTERED, "down.data", coli_metal_moe_block_end(work, mixed.data(), y.data()));
  ASSERT_EQ(coli_metal_moe_block_end(work, table.data(), y.data()), COLI_METAL_OK) << coli_metal_last_error();
  EXPECT_TRUE(same(y, c.want(kAllExperts)));
}

TEST_F(BackendTest, WrongAttentionIsRefused) {
  Slab slab(kSlab);
  const AttentionCase good(slab, rng_, WeightFormat::kBF16, {{3}, {9}});
  std::vector<float> out = good.context();
  const auto refused = [&](coli_metal_status status, const char* text, const auto& change,
                           const coli_metal_selection* selection = nullptr) {
    AttentionCase c = good;
    change(c);
    EXPECT_REFUSED(status, text, c.run(selection, out));
  };
  using C = AttentionCase;
  refused(COLI_METAL_BAD_ARGUMENT, "rope: expected an even number, found 7", [](C& c) { c.shape.rope = 7; });
  refused(COLI_METAL_BAD_ARGUMENT, "heads", [](C& c) { c.shape.heads = 0; });
  refused(COLI_METAL_BAD_ARGUMENT, "kv_b: expected 128 x 36, found 96 x 36", [](C& c) { c.shape.heads = 4; });
  refused(COLI_METAL_BAD_ARGUMENT, "rope_theta", [](C& c) { c.shape.rope_theta = 0; });
  refused(COLI_METAL_BAD_ARGUMENT, "sequences[1].entries", [](C& c) { c.sequences[1].entries = nullptr; });
  refused(COLI_METAL_BAD_ARGUMENT, "multiple of 16", [](C& c) { c.sequences[0].entries += 1; });
  refused(COLI_METAL_BAD_ARGUMENT, "sequences[0].first", [](C& c) { c.sequences[0].first = -1; });
  refused(COLI_METAL_BAD_ARGUMENT, "sequences[1].first", [](C& c) { c.sequences[1].first = std::int64_t{1} << 30; });
  refused(COLI_METAL_BAD_ARGUMENT, "sequences[0].rows: expected 1 .. 4096, found 0", [](C& c) { c.sequences[0].rows = 0; });
  refused(COLI_METAL_BAD_ARGUMENT, "at most 4096 rows together", [](C& c) { c.sequences[1].rows = 4096; });
  refused(COLI_METAL_NOT_REGISTERED, "sequences[0].entries", [](C& c) { c.sequences[0].first = 1 << 20; });
  // The second sequence is the first, or begins within it.
  const char* const shared = "sequences[1].entries: expected memory of its own, found that of sequences[0]";
  refused(COLI_METAL_BAD_ARGUMENT, shared, [](C& c) { c.sequences[1] = {c.sequences[0].entries, nullptr, 5, 1}; });
  refused(COLI_METAL_BAD_ARGUMENT, shared, [](C& c) { c.sequences[1].entries = c.sequences[0].entries + 4; });
  std::vector<float> elsewhere(4096);
  auto* aligned = reinterpret_cast<float*>(round_up(reinterpret_cast<std::uintptr_t>(elsewhere.data()), 16));
  refused(COLI_METAL_NOT_REGISTERED, "entries", [&](C& c) { c.sequences[0].entries = aligned; });

  std::vector<std::int32_t> chosen = {0, 1, 2, 0, 1, 10};
  std::vector<std::uint32_t> counts = {2, 3};
  const coli_metal_selection selection = {3, chosen.data(), counts.data()};
  const auto same_case = [](C&) {};
  refused(COLI_METAL_BAD_ARGUMENT, "chosen[1][2]", same_case, &selection);  // above the position
  chosen[5] = 1;
  refused(COLI_METAL_BAD_ARGUMENT, "rising", same_case, &selection);
  chosen[5] = 4;
  counts[1] = 4;
  refused(COLI_METAL_BAD_ARGUMENT, "counts[1]", same_case, &selection);
  counts[1] = 0;
  refused(COLI_METAL_BAD_ARGUMENT, "expected a list", same_case, &selection);
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "queries",
                 coli_metal_attn_decode(&good.shape, &good.kv_b.c, good.sequences.data(), 2, nullptr, nullptr, out.data()));
  EXPECT_REFUSED(COLI_METAL_BAD_ARGUMENT, "sequence_count",
                 coli_metal_attn_decode(&good.shape, &good.kv_b.c, good.sequences.data(), 0, nullptr, out.data(), out.data()));
  for (const float v : out) EXPECT_EQ(v, kPoison);
}

// --- faults ----------------------------------------------------------------------------------------------------------

#ifndef __APPLE__

class BackendFaults : public BackendTest {
 protected:
  void SetUp() override {
    BackendTest::SetUp();
    void* library = ::dlopen(COLIBRI_SOFT_METAL_LIBRARY, RTLD_NOW);
    ASSERT_TRUE(library) << ::dlerror();
    arm_ = reinterpret_cast<decltype(arm_)>(::dlsym(library, "soft_metal_arm"));
    disarm_ = reinterpret_cast<decltype(disarm_)>(::dlsym(library, "soft_metal_disarm"));
    ASSERT_TRUE(arm_ && disarm_);
    disarm_();
  }
  void TearDown() override {
    if (disarm_) disarm_();
    BackendTest::TearDown();
  }
  void (*arm_)(SoftMetalFault, int, int) = nullptr;
  void (*disarm_)() = nullptr;
};

TEST_F(BackendFaults, AFaultIsTheCpusAndCountedByReason) {
  Slab slab(kSlab);
  const Weight w = random_weight(slab, rng_, WeightFormat::kInt4Grouped, 100, 70);
  const std::vector<float> x = random_floats(4 * 70), want = scalar_products(w.m, x.data(), 70, 4);
  const MoeCase moe_case(slab, rng_, WeightFormat::kInt4Row, WeightFormat::kInt8Row, 3);
  const auto table = moe_case.only({0, 1, 3});
  const coli_metal_moe moe = moe_case.moe(table);
  const AttentionCase attention(slab, rng_, WeightFormat::kBF16, {{30, 2}, {2}});
  const struct {
    SoftMetalFault armed;
    std::uint64_t coli_metal_counter_values::* counted;
  } kinds[] = {{kSoftMetalError, &coli_metal_counter_values::fallback_error},
               {kSoftMetalTimeout, &coli_metal_counter_values::fallback_timeout},
               {kSoftMetalMemory, &coli_metal_counter_values::fallback_memory},
               {kSoftMetalResidency, &coli_metal_counter_values::fallback_residency}};
  for (const auto& kind : kinds) {
    const coli_metal_counter_values before = counters();
    std::vector<float> y(want.size()), sums(moe_case.x.size()), context = attention.context();
    arm_(kind.armed, 0, 2);  // the blocks after the first two succeed, so the GPU stays on
    EXPECT_EQ(coli_metal_matmul(&w.c, x.data(), 70, 4, y.data(), 100), COLI_METAL_OK);
    EXPECT_TRUE(same(y, want));
    EXPECT_EQ(coli_metal_moe_block(&moe, sums.data()), COLI_METAL_OK);
    EXPECT_TRUE(same(sums, moe_case.want({0, 1, 3})));
    EXPECT_EQ(coli_metal_gemm(&w.c, x.data(), 70, 4, y.data(), 100), COLI_METAL_OK);
    arm_(kind.armed, 0, 1);
    EXPECT_EQ(attention.run(nullptr, context), COLI_METAL_OK);
    EXPECT_TRUE(same(context, attention.want(nullptr)));
    EXPECT_EQ(coli_metal_gemm(&w.c, x.data(), 70, 4, y.data(), 100), COLI_METAL_OK);
    EXPECT_TRUE(same(y, want));
    const coli_metal_counter_values now = counters();
    EXPECT_EQ(now.*kind.counted - before.*kind.counted, 3u);
    EXPECT_EQ(now.fallbacks - before.fallbacks, 3u);
    EXPECT_EQ(now.ok - before.ok, 2u);
    EXPECT_EQ(coli_metal_available(), 1);
  }
}

// The first submission fails, the second one, with memory that went away between them, and both halves are the CPU's.
TEST_F(BackendFaults, BothHalvesOfABlockMayFail) {
  const auto slab = std::make_unique<Slab>(kSlab);
  Slab late_slab(kSlab);
  MoeCase c(*slab, rng_, WeightFormat::kInt4Grouped, WeightFormat::kBF16, 4);
  const MoeCase elsewhere(late_slab, rng_, WeightFormat::kInt4Grouped, WeightFormat::kBF16, 4);
  for (const int id : {1, 2, 4}) c.experts[static_cast<std::size_t>(id)] = elsewhere.experts[static_cast<std::size_t>(id)];
  const auto first = c.only({0, 3}), late = c.only({1, 2, 4});
  const std::vector<float> want = c.want(kAllExperts);
  const coli_metal_moe moe = c.moe(first);
  for (const int after : {0, 1}) {
    std::vector<float> y(want.size());
    coli_metal_moe_work* work = nullptr;
    arm_(kSoftMetalError, after, 1);
    ASSERT_EQ(coli_metal_moe_block_begin(&moe, &work), COLI_METAL_OK);
    if (after == 1) slab->unregister();
    ASSERT_EQ(coli_metal_moe_block_end(work, late.data(), y.data()), COLI_METAL_OK) << coli_metal_last_error();
    EXPECT_TRUE(same(y, want)) << after;
    EXPECT_EQ(counters().fallback_error, static_cast<std::uint64_t>(after + 1));
  }
}

TEST_F(BackendFaults, ThreeInARowSwitchTheGpuOff) {
  Slab slab(kSlab);
  const Weight w = random_weight(slab, rng_, WeightFormat::kInt8Row, 33, 70);
  const std::vector<float> x = random_floats(70), want = scalar_products(w.m, x.data(), 70, 1);
  arm_(kSoftMetalTimeout, 0, 3);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(coli_metal_available(), i < 3 ? 1 : 0);
    std::vector<float> y(33);
    EXPECT_EQ(coli_metal_matmul(&w.c, x.data(), 70, 1, y.data(), 33), COLI_METAL_OK);
    EXPECT_TRUE(same(y, want));
  }
  EXPECT_EQ(counters().fallback_timeout, 3u);
  EXPECT_EQ(counters().fallback_off, 2u);
  EXPECT_EQ(counters().ok, 0u);
  coli_metal_shutdown();  // a new start
  ASSERT_EQ(coli_metal_init(COLI_METAL_ALLOW_SOFTWARE), COLI_METAL_OK);
  EXPECT_EQ(coli_metal_available(), 1);
  EXPECT_EQ(counters().fallbacks, 0u);
  ASSERT_EQ(coli_metal_register(slab.base(), slab.size()), COLI_METAL_OK);  // for the slab's end
}

TEST_F(BackendFaults, CompilingAndAllocatingMayFail) {
  Slab slab(kSlab);
  const Weight w = random_weight(slab, rng_, WeightFormat::kInt8Row, 33, 70);
  const std::vector<float> x = random_floats(70), want = scalar_products(w.m, x.data(), 70, 1);
  std::vector<float> y(33);
  arm_(kSoftMetalAllocation, 0, 1);
  EXPECT_EQ(coli_metal_matmul(&w.c, x.data(), 70, 1, y.data(), 33), COLI_METAL_OK);
  EXPECT_TRUE(same(y, want));
  EXPECT_EQ(counters().fallback_memory, 1u);
  arm_(kSoftMetalCompile, 0, 1);
  std::fill(y.begin(), y.end(), 0.0f);
  EXPECT_EQ(coli_metal_matmul(&w.c, x.data(), 70, 1, y.data(), 33), COLI_METAL_OK);
  EXPECT_TRUE(same(y, want));
  EXPECT_EQ(counters().fallback_compile, 1u);
  arm_(kSoftMetalAllocation, 0, 1);
  AlignedBytes memory = AlignedBytes::pages(1 << 16);
  EXPECT_EQ(coli_metal_register(memory.whole_pages().data(), memory.whole_pages().size()), COLI_METAL_OUT_OF_MEMORY);
  std::uint64_t regions = 0;
  EXPECT_EQ(coli_metal_stats(&regions, nullptr), COLI_METAL_OK);
  EXPECT_EQ(regions, 1u);
}

#endif

}  // namespace
}  // namespace colibri::gpu::test

// The overlap model on traces small enough to work out by hand, and the usage history.
#include "experts/overlap_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "experts/usage_history.h"
#include "experts_cache_util.h"

namespace colibri {
namespace {

// Reading one expert takes 1000 ns.
Trace two_layers(std::vector<LayerAccess> accesses, std::int64_t tail = 10) {
  Trace trace;
  trace.model = {2, 4, 1, 1000};
  trace.steps.push_back({StepPhase::kDecode, 1, tail, std::move(accesses)});
  return trace;
}

LayerAccess timed(std::int64_t layer, std::int64_t before, std::int64_t shared, std::int64_t expert,
                  std::vector<std::int32_t> ids, std::vector<std::int32_t> predicted = {}) {
  LayerAccess access = need(layer, std::move(ids));
  access.before_ns = before;
  access.shared_ns = shared;
  access.expert_ns = expert;
  access.predicted = std::move(predicted);
  return access;
}

OverlapTimes decode_times(const Trace& trace, bool predictions, std::int64_t slots = 8, std::int64_t skip = 0) {
  const CacheShape shape{trace.model.layers, trace.model.experts, trace.model.top_k};
  CacheDirectory directory(shape, slots, std::move(*make_cache_policy("lru", shape)));
  return model_overlap(trace, directory, {1e9, predictions, skip}).decode;
}

TEST(OverlapModel, DemandIsReadWhileSharedPartIsComputed) {
  const Trace trace = two_layers({timed(0, 100, 50, 20, {0}), timed(1, 100, 50, 20, {1}, {1})});
  const OverlapTimes t = decode_times(trace, false);
  // Router at 100, expert there at 1100, layer done at 1120; router at 1220, expert at 2220, done at 2240, tail 10.
  EXPECT_DOUBLE_EQ(t.wall, 2250);
  EXPECT_DOUBLE_EQ(t.compute, 350);
  EXPECT_DOUBLE_EQ(t.disk, 2000);
  EXPECT_DOUBLE_EQ(t.waiting, 1900);
  EXPECT_EQ(t.needed, 2u);
  EXPECT_EQ(t.in_memory, 0u);
}

TEST(OverlapModel, PredictionIsBegunBetweenTheLayers) {
  // The disk is free from 1100 to the second router at 1220: 120 of 1000 are done when the demand is known.
  const OverlapTimes t = decode_times(two_layers({timed(0, 100, 50, 20, {0}), timed(1, 100, 50, 20, {1}, {1})}), true);
  EXPECT_DOUBLE_EQ(t.wall, 2250 - 120);
  EXPECT_DOUBLE_EQ(t.disk, 2000);
  EXPECT_EQ(t.begun_ahead, 1u);
  EXPECT_EQ(t.read_ahead, 0u);
}

TEST(OverlapModel, PredictionIsThereInTime) {
  const OverlapTimes t = decode_times(two_layers({timed(0, 100, 50, 20, {0}), timed(1, 2000, 50, 20, {1}, {1})}), true);
  EXPECT_DOUBLE_EQ(t.wall, 1120 + 2000 + 70 + 10);
  EXPECT_EQ(t.read_ahead, 1u);
  EXPECT_EQ(t.in_memory, 0u);
}

TEST(OverlapModel, WrongPredictionsCostDiskTimeButDelayNothing) {
  // Read in full before it proves wrong.
  OverlapTimes t = decode_times(two_layers({timed(0, 100, 50, 20, {0}), timed(1, 2000, 50, 20, {1}, {2})}), true);
  EXPECT_DOUBLE_EQ(t.wall, 3120 + 1000 + 20 + 10);
  EXPECT_DOUBLE_EQ(t.disk, 3000);
  EXPECT_EQ(t.wrong, 1u);
  // Interrupted after 120.
  t = decode_times(two_layers({timed(0, 100, 50, 20, {0}), timed(1, 100, 50, 20, {1}, {2})}), true);
  EXPECT_DOUBLE_EQ(t.wall, 2250);
  EXPECT_DOUBLE_EQ(t.disk, 2120);
  EXPECT_EQ(t.wrong, 0u);
}

TEST(OverlapModel, ExpertsAreComputedAsTheyArrive) {
  // Two missing ones at 1000 and 2000: 1000 + 600, then 2000 + 600.
  EXPECT_DOUBLE_EQ(decode_times(two_layers({timed(0, 0, 50, 600, {0, 1})}, 0), false).wall, 2600);
  // Slow computing: it waits for the first only.
  EXPECT_DOUBLE_EQ(decode_times(two_layers({timed(0, 0, 50, 5000, {0, 1})}, 0), false).wall, 11000);
}

TEST(OverlapModel, ExpertsInMemoryAreComputedFirst) {
  Trace trace = two_layers({timed(0, 0, 0, 0, {0})}, 0);
  trace.steps.push_back({StepPhase::kDecode, 1, 7, {timed(0, 100, 50, 1500, {1, 0})}});
  const OverlapTimes t = decode_times(trace, false, 8, 1);
  // Shared and expert 0 until 1650, expert 1 has been there since 1100.
  EXPECT_EQ(t.steps, 1);
  EXPECT_DOUBLE_EQ(t.wall, 100 + 50 + 3000 + 7);
  EXPECT_DOUBLE_EQ(t.waiting, 0);
  EXPECT_EQ(t.in_memory, 1u);
}

TEST(OverlapModel, LiesBetweenTheSlowerPartAndTheSum) {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    const Trace trace = random_trace(seed, 5, 12, 3, 60);
    for (const std::int64_t slots : {9, 20, 48}) {
      const CacheShape shape{5, 12, 3};
      const auto times = [&](bool predictions) {
        CacheDirectory directory(shape, slots, std::move(*make_cache_policy("default", shape)));
        return model_overlap(trace, directory, {2e9, predictions, 0});
      };
      const OverlapResult with = times(true), without = times(false);
      for (const OverlapResult& r : {with, without})
        for (const OverlapTimes& t : {r.prefill, r.decode}) {
          EXPECT_GE(t.wall, t.max_of_both() - 1e-3);
          EXPECT_LE(t.wall, t.disk + t.compute + 1e-3);
          EXPECT_NEAR(t.wall, t.compute + t.waiting, 1e-3);
        }
      if (slots == 48) {  // nothing is ever evicted: reading ahead can only help
        EXPECT_LE(with.decode.wall + with.prefill.wall, without.decode.wall + without.prefill.wall + 1e-3);
      }
    }
  }
}

class Usage : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  void write(std::string_view text) { std::ofstream(path_, std::ios::binary) << text; }
  UsageHistory load(double decay = 1) {
    notice_.clear();
    return UsageHistory::load(path_, shape_, decay, notice_);
  }
  CacheShape shape_{4, 8, 2};
  std::filesystem::path path_ = std::filesystem::path(testing::TempDir()) / fmt::format("coli_usage-{}", getpid());
  std::string notice_;
};

TEST_F(Usage, SavedAndLoadedInTheKnownFormat) {
  UsageHistory history(shape_);
  const std::vector<std::int32_t> ids = {7, 0}, rows = {3, 1};
  history.add(2, ids, rows);
  history.add(2, ids, rows);
  history.add(0, ids, rows);
  ASSERT_TRUE(history.save(path_, "a"));
  std::ifstream file(path_);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // FNV-1a of "a" is 0xe40c292c.
  EXPECT_EQ(text, "-1 4 8\n-2 1 3826002220\n0 0 1\n0 7 3\n2 0 2\n2 7 6\n");
  const UsageHistory back = load();
  EXPECT_EQ(notice_, "");
  EXPECT_EQ(back.count(2, 7), 6u);
  EXPECT_EQ(back.total(), 12u);
  EXPECT_EQ(load(0.5).count(2, 7), 3u);
  EXPECT_EQ(load(0.5).count(0, 0), 0u);
}

TEST_F(Usage, OlderFilesWithoutHeaderAreAccepted) {
  write("1 3 10\r\n\n3 7 4");
  const UsageHistory history = load();
  EXPECT_EQ(notice_, "");
  EXPECT_EQ(history.count(1, 3), 10u);
  EXPECT_EQ(history.count(3, 7), 4u);
}

TEST_F(Usage, DamagedFilesAreIgnoredWithANotice) {
  EXPECT_EQ(load().total(), 0u);
  EXPECT_EQ(notice_, "") << "no file is nothing to talk about";
  for (const char* text :
       {"-1 5 8\n1 1 1\n", "-2 2 7\n1 1 1\n", "1 1 1\n4 1 1\n", "1 1 1\n1 8 1\n", "1 1 1\n1 2 -1\n", "1 1 1\n1 1\n",
        "1 1 1\n1 1 1 1\n", "1 1 1\nx\n", "1 1 1\n1 1 1e3\n", "1 1 1\n1 1 99999999999999999999\n", "1 1 1\n-3 1 1\n"}) {
    write(text);
    EXPECT_EQ(load().total(), 0u) << text;
    EXPECT_NE(notice_.find(path_.string()), std::string::npos) << text;
    EXPECT_NE(notice_.find("ignored"), std::string::npos) << text;
  }
}

TEST_F(Usage, PinsTheHottestOnceThereIsAHistory) {
  UsageHistory history(shape_);
  const auto use = [&](std::int64_t layer, std::int32_t id, std::int32_t rows) { history.add(layer, {&id, 1}, {&rows, 1}); };
  use(1, 4, 2000);
  use(3, 0, 2500);
  use(0, 6, 100);
  EXPECT_TRUE(history.pin_set(20).empty()) << "4600 choices say too little";
  use(0, 6, 199900);
  use(2, 2, 2000);
  EXPECT_EQ(history.hottest(2), (std::vector<ExpertKey>{{0, 6}, {3, 0}}));
  EXPECT_EQ(history.hottest(100), (std::vector<ExpertKey>{{0, 6}, {3, 0}, {1, 4}, {2, 2}}));
  EXPECT_EQ(history.pin_set(6).size(), 3u);
  EXPECT_EQ(history.pin_set(0).size(), 0u);
}

}  // namespace
}  // namespace colibri

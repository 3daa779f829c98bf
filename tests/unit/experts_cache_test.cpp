// The cache's decisions: the directory's invariants under every policy, Belady's optimum, and what a prefill may do.
#include "experts/cache_directory.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "experts/replay.h"
#include "experts/routing_model.h"
#include "experts_cache_util.h"

namespace colibri {
namespace {

std::unique_ptr<CachePolicy> policy(std::string_view name, const CacheShape& shape) {
  return std::move(*make_cache_policy(name, shape));
}

// A model of what the directory may do, kept beside it.
class Shadow {
 public:
  explicit Shadow(CacheDirectory& directory) : directory_(directory) {}

  void hold(std::int64_t layer, std::int32_t expert) { ++holds_[{layer, expert}]; }
  void release(std::int64_t layer, std::int32_t expert) {
    directory_.release(layer, expert);
    --holds_[{layer, expert}];
  }
  void pin(std::int64_t layer, std::int32_t expert) { pinned_.insert({layer, expert}); }
  // To be called when nothing is in use.
  void set_usable(std::int64_t slots) {
    for (const std::int32_t slot : directory_.set_usable(slots)) {
      if (const auto it = in_slot_.find(slot); it != in_slot_.end()) {
        EXPECT_EQ(directory_.slot(it->second.first, it->second.second), CacheDirectory::kNone);
        in_slot_.erase(it);
      }
    }
    EXPECT_EQ(directory_.usable(), slots);
    const auto pins = static_cast<std::int64_t>(pinned_.size());
    std::erase_if(pinned_, [&](const auto& p) { return !directory_.pinned(p.first, p.second); });
    EXPECT_EQ(pinned_.empty(), pins == 0 || pins > slots - directory_.shape().top_k) << "pins end when they are in the way";
  }
  void placed(std::int64_t layer, std::int32_t expert, const CacheDirectory::Placement& placement) {
    ASSERT_GE(placement.slot, 0);
    ASSERT_LT(placement.slot, directory_.slots());
    if (placement.evicted != CacheDirectory::kNone) {
      const std::pair<std::int64_t, std::int32_t> old{placement.evicted / directory_.shape().experts,
                                                      static_cast<std::int32_t>(placement.evicted % directory_.shape().experts)};
      EXPECT_EQ(in_slot_[placement.slot], old);
      EXPECT_EQ(holds_[old], 0) << "an expert in use was evicted";
      EXPECT_FALSE(pinned_.contains(old)) << "a pinned expert was evicted";
      EXPECT_EQ(directory_.slot(old.first, old.second), CacheDirectory::kNone);
    } else {
      EXPECT_FALSE(in_slot_.contains(placement.slot)) << "a slot in use was called free";
    }
    in_slot_[placement.slot] = {layer, expert};
    EXPECT_EQ(directory_.slot(layer, expert), placement.slot);
  }
  std::size_t resident() const { return in_slot_.size(); }

 private:
  CacheDirectory& directory_;
  std::map<std::pair<std::int64_t, std::int32_t>, int> holds_;
  std::set<std::pair<std::int64_t, std::int32_t>> pinned_;
  std::map<std::int32_t, std::pair<std::int64_t, std::int32_t>> in_slot_;
};

class Policies : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Policies, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const CachePolicyInfo& p : cache_policies()) names.emplace_back(p.name);
                           return names;
                         }()));

TEST_P(Policies, NeverEvictWhatIsHeldOrPinnedAndNeverExceedTheSlots) {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    const Trace trace = random_trace(seed, 5, 12, 3, 60);
    const CacheShape shape = cache_shape(trace.model);
    const std::int64_t slots = 7 + static_cast<std::int64_t>(random() % 40);
    CacheOptions options;
    if (seed % 3 == 1) options.layer_floor = slots / 10;
    CacheDirectory directory(shape, slots, policy(GetParam(), shape), options);
    Shadow shadow(directory);
    for (std::int32_t e = 0; e < static_cast<std::int32_t>(seed % 4); ++e)
      if (const auto placement = directory.pin(2, e)) {
        shadow.pin(2, e);
        shadow.placed(2, e, *placement);
      }
    std::uint64_t needed = 0, hits = 0;
    std::vector<std::int32_t> found;
    for (const TraceStep& step : trace.steps) {
      directory.begin_step(step.phase, step.rows);
      if (seed % 2 == 0 && random() % 4 == 0)  // slots come and go
        shadow.set_usable(shape.top_k +
                          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(slots - shape.top_k + 1)));
      std::vector<std::int32_t> guesses;  // held for the layer to come
      for (std::size_t a = 0; a < step.accesses.size(); ++a) {
        const LayerAccess& access = step.accesses[a];
        std::set<std::int32_t> before;
        for (const std::int32_t id : access.needed)
          if (directory.slot(access.layer, id) >= 0) before.insert(id);
        directory.request(access.layer, access.needed, access.rows, found);
        std::vector<std::int32_t> held;
        for (std::size_t i = 0; i < found.size(); ++i) {
          EXPECT_EQ(found[i] >= 0, before.contains(access.needed[i]));
          ++needed;
          if (found[i] < 0) continue;
          ++hits;
          shadow.hold(access.layer, access.needed[i]);
          held.push_back(access.needed[i]);
        }
        for (std::size_t i = 0; i < found.size(); ++i) {
          if (found[i] >= 0) continue;
          auto placement = directory.place(access.layer, access.needed[i]);
          while (!placement) {
            ASSERT_FALSE(held.empty()) << "no slot although nothing is in use";
            shadow.release(access.layer, held.back());
            held.pop_back();
            placement = directory.place(access.layer, access.needed[i]);
          }
          shadow.placed(access.layer, access.needed[i], *placement);
          shadow.hold(access.layer, access.needed[i]);
          held.push_back(access.needed[i]);
        }
        if (a + 1 < step.accesses.size())
          for (const std::int32_t id : step.accesses[a + 1].predicted)
            if (const auto placement = directory.place_predicted(step.accesses[a + 1].layer, id)) {
              shadow.placed(step.accesses[a + 1].layer, id, *placement);
              EXPECT_TRUE(directory.held(step.accesses[a + 1].layer, id));
            }
        for (const std::int32_t id : held) shadow.release(access.layer, id);
        EXPECT_LE(directory.resident(), directory.usable());
        EXPECT_EQ(static_cast<std::size_t>(directory.resident()), shadow.resident());
      }
    }
    const CacheCounts &p = directory.counts(StepPhase::kPrefill), &d = directory.counts(StepPhase::kDecode);
    EXPECT_EQ(p.needed + d.needed, needed);
    EXPECT_EQ(p.hits + d.hits, hits);
    EXPECT_LE(p.prefetched + d.prefetched, hits);
  }
}

TEST_P(Policies, NoPolicyBeatsTheOptimumAndReplayIsRepeatable) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    const Trace trace = random_trace(seed, 4, 10, 2, 120);
    const CacheShape shape = cache_shape(trace.model);
    for (const std::int64_t slots : {2, 5, 8, 13, 20, 29, 30}) {
      CacheDirectory one(shape, slots, policy(GetParam(), shape)), two(shape, slots, policy(GetParam(), shape));
      const ReplayHits hits = replay(trace, one), again = replay(trace, two), best = belady_hits(trace, slots);
      EXPECT_LE(hits.decode.hits + hits.prefill.hits, best.decode.hits + best.prefill.hits);
      EXPECT_EQ(hits.decode.hits, again.decode.hits);
      EXPECT_EQ(hits.prefill.hits, again.prefill.hits);
      EXPECT_EQ(hits.decode.needed, best.decode.needed);
      if (slots == 30) {  // everything fits: each expert is missed once
        EXPECT_EQ(hits.decode.hits + hits.prefill.hits, best.decode.hits + best.prefill.hits);
      }
    }
  }
}

// The most hits by trying every way of keeping experts, for tiny traces of one layer.
std::uint64_t exhaustive(const Trace& trace, std::size_t step, std::uint32_t kept, int slots,
                         std::map<std::pair<std::size_t, std::uint32_t>, std::uint64_t>& known) {
  if (step == trace.steps.size()) return 0;
  const auto [it, fresh] = known.try_emplace({step, kept}, 0);
  if (!fresh) return it->second;
  std::uint32_t used = 0;
  for (const std::int32_t id : trace.steps[step].accesses.front().needed) used |= 1u << id;
  const std::uint32_t all = kept | used;
  std::uint64_t best = 0;
  for (std::uint32_t next = all;; next = (next - 1) & all) {
    if (__builtin_popcount(next) <= slots) best = std::max(best, exhaustive(trace, step + 1, next, slots, known));
    if (next == 0) break;
  }
  best += static_cast<std::uint64_t>(__builtin_popcount(kept & used));
  known[{step, kept}] = best;
  return best;
}

TEST(Belady, IsTheBestOfAllWaysToKeepExperts) {
  for (std::uint32_t seed = 1; seed <= 25; ++seed) {
    const Trace trace = random_trace(seed, 2, 6, 2, 14);
    for (const int slots : {1, 2, 3, 4}) {
      std::map<std::pair<std::size_t, std::uint32_t>, std::uint64_t> known;
      const ReplayHits best = belady_hits(trace, slots);
      EXPECT_EQ(best.decode.hits + best.prefill.hits, exhaustive(trace, 0, 0, slots, known))
          << "seed " << seed << " slots " << slots;
    }
  }
}

TEST(Belady, SmallExampleByHand) {
  // One layer, two slots. 0 and 1 are read; 2 passes by (0 and 1 come back sooner than it), 0 and 1 hit, 2 is read again.
  Trace trace;
  trace.model = {1, 4, 1, 1};
  for (const std::int32_t id : {0, 1, 2, 0, 1, 2}) trace.steps.push_back({StepPhase::kDecode, 1, 0, {need(0, {id})}});
  EXPECT_EQ(belady_hits(trace, 2).decode.hits, 2u);
  EXPECT_EQ(belady_hits(trace, 3).decode.hits, 3u);
  EXPECT_EQ(belady_hits(trace, 1).decode.hits, 1u);
}

TEST(Lru, SmallExampleByHand) {
  Trace trace;
  trace.model = {1, 4, 1, 1};
  for (const std::int32_t id : {0, 1, 0, 2, 0, 1}) trace.steps.push_back({StepPhase::kDecode, 1, 0, {need(0, {id})}});
  const CacheShape shape = cache_shape(trace.model);
  CacheDirectory directory(shape, 2, policy("lru", shape));
  EXPECT_EQ(replay(trace, directory).decode.hits, 2u);  // the second and third 0; 2 pushed out 1
  EXPECT_GE(directory.slot(0, 0), 0);
  EXPECT_GE(directory.slot(0, 1), 0);
  EXPECT_EQ(directory.slot(0, 2), CacheDirectory::kNone);
}

TEST(Lru, IsWorthNothingBelowOneTokensExpertsAndTheDefaultIsNot) {
  Trace trace;
  trace.model = {4, 8, 2, 1};
  for (int i = 0; i < 50; ++i)
    trace.steps.push_back({StepPhase::kDecode, 1, 0, {need(0, {0, 1}), need(1, {2, 3}), need(2, {4, 5}), need(3, {6, 7})}});
  const CacheShape shape = cache_shape(trace.model);
  CacheDirectory lru(shape, 6, policy("lru", shape)), learned(shape, 6, policy("default", shape));
  EXPECT_EQ(replay(trace, lru).decode.hits, 0u);
  // Two slots pass the two or so experts that do not fit; four of eight stay.
  EXPECT_GE(replay(trace, learned).decode.rate(), 0.45);
}

TEST(CacheDirectory, PredictedExpertsStayForTheirLayerAndAreCounted) {
  const CacheShape shape{3, 4, 1};
  CacheDirectory directory(shape, 3, policy("lru", shape));
  std::vector<std::int32_t> found;
  const std::vector<std::int32_t> one = {1}, rows = {1};
  directory.begin_step(StepPhase::kDecode, 1);
  directory.request(0, one, rows, found);
  ASSERT_TRUE(directory.place(0, 1));
  EXPECT_TRUE(directory.place_predicted(1, 1));
  EXPECT_FALSE(directory.place_predicted(1, 1)) << "it is there already";
  EXPECT_FALSE(directory.place_predicted(1, 2)) << "one at a time with so few slots";
  directory.release(0, 1);
  directory.request(1, one, rows, found);
  EXPECT_GE(found.front(), 0);
  EXPECT_EQ(directory.counts(StepPhase::kDecode).prefetched, 1u);
  EXPECT_TRUE(directory.place_predicted(2, 3));
  directory.release(1, 1);
  EXPECT_FALSE(directory.held(1, 1));
  EXPECT_TRUE(directory.held(2, 3));
  directory.request(2, one, rows, found);
  EXPECT_EQ(found.front(), CacheDirectory::kNone);
  EXPECT_EQ(directory.counts(StepPhase::kDecode).unused, 1u);
  EXPECT_FALSE(directory.held(2, 3));
  // A read that failed gives its slot back.
  const auto placement = directory.place(2, 1);
  ASSERT_TRUE(placement);
  const std::int64_t resident = directory.resident();
  directory.drop(2, 1);
  EXPECT_EQ(directory.slot(2, 1), CacheDirectory::kNone);
  EXPECT_EQ(directory.resident(), resident - 1);
  // A new step ends what an aborted one had predicted.
  ASSERT_TRUE(directory.place_predicted(1, 3));
  directory.begin_step(StepPhase::kDecode, 1);
  EXPECT_FALSE(directory.held(1, 3));
}

TEST(CacheDirectory, PinsLeaveRoomForARow) {
  const CacheShape shape{2, 8, 2};
  CacheDirectory directory(shape, 5, policy("default", shape));
  int pinned = 0;
  for (std::int32_t e = 0; e < 8; ++e) pinned += directory.pin(0, e).has_value();
  EXPECT_EQ(pinned, 3);
  const auto again = directory.pin(0, 0);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->slot, CacheDirectory::kNone) << "nothing to read";
}

TEST(CacheDirectory, TheLeastWorthLeaveTheSlotsThatGoAndWhatIsInUseStays) {
  const CacheShape shape{1, 10, 2};
  CacheDirectory directory(shape, 6, policy("lru", shape));
  std::vector<std::int32_t> slots;
  const std::vector<std::int32_t> one_row = {1, 1};
  for (const std::vector<std::int32_t>& ids : {std::vector{0, 1}, {2, 3}, {4, 5}}) {
    directory.begin_step(StepPhase::kDecode, 1);
    directory.request(0, ids, one_row, slots);
    for (const std::int32_t id : ids) ASSERT_TRUE(directory.place(0, id));
    for (const std::int32_t id : ids) directory.release(0, id);
  }
  directory.hold(0, 0);  // as a read in flight does
  const std::int32_t second = directory.slot(0, 1), third = directory.slot(0, 2);
  const auto gone = directory.set_usable(4);
  EXPECT_EQ(std::set(gone.begin(), gone.end()), std::set({second, third}));
  EXPECT_EQ(directory.usable(), 4);
  for (const std::int64_t expert : {0, 3, 4, 5}) EXPECT_NE(directory.slot(0, expert), CacheDirectory::kNone) << expert;

  directory.hold(0, 4);
  directory.hold(0, 5);
  EXPECT_EQ(directory.set_usable(2).size(), 1u);
  EXPECT_EQ(directory.usable(), 3) << "three are in use";
  directory.release(0, 0);
  EXPECT_EQ(directory.set_usable(2).size(), 1u);
  EXPECT_EQ(directory.slot(0, 0), CacheDirectory::kNone);

  EXPECT_TRUE(directory.set_usable(6).empty());
  EXPECT_EQ(directory.resident(), 2);
  directory.begin_step(StepPhase::kDecode, 1);
  directory.request(0, std::vector{6, 7}, one_row, slots);
  for (const std::int32_t id : {6, 7}) EXPECT_EQ(directory.place(0, id).value().evicted, CacheDirectory::kNone);
}

TEST(CacheDirectory, ARetiredSlotIsNeverUsedAgain) {
  const CacheShape shape{1, 10, 2};
  CacheDirectory directory(shape, 5, policy("lru", shape));
  const auto gone = directory.set_usable(2);
  ASSERT_EQ(gone.size(), 3u);
  const std::int32_t retired = gone[1];
  directory.retire(retired);
  EXPECT_EQ(directory.slots(), 4);
  EXPECT_EQ(directory.usable(), 2);
  EXPECT_TRUE(directory.set_usable(4).empty());
  EXPECT_EQ(directory.usable(), 4);
  std::vector<std::int32_t> slots;
  for (std::int32_t e = 0; e < 10; e += 2) {
    directory.begin_step(StepPhase::kDecode, 1);
    directory.request(0, std::vector{e, e + 1}, std::vector{1, 1}, slots);
    for (const std::int32_t id : {e, e + 1}) {
      EXPECT_NE(directory.place(0, id).value().slot, retired);
      EXPECT_LE(directory.resident(), 4);
    }
    for (const std::int32_t id : {e, e + 1}) directory.release(0, id);
  }
  EXPECT_EQ(directory.resident(), 4);
}

TEST(CacheDirectory, LayerLimitsAndFloorsHold) {
  const Trace trace = random_trace(9, 4, 12, 2, 80);
  const CacheShape shape = cache_shape(trace.model);
  CacheDirectory limited(shape, 18, policy("lru", shape), {0, 6});
  replay(trace, limited);
  for (std::int64_t layer = 1; layer < 4; ++layer) {
    int resident = 0;
    for (std::int64_t e = 0; e < 12; ++e) resident += limited.slot(layer, e) >= 0;
    EXPECT_LE(resident, 6);
  }
  // Layer 1 has had its experts long ago, layer 2 is busy: the floor is what layer 1 keeps.
  CacheDirectory floored(shape, 8, policy("lru", shape), {3, 0});
  Trace lopsided;
  lopsided.model = trace.model;
  lopsided.steps.push_back({StepPhase::kDecode, 4, 0, {need(1, {0, 1, 2, 3, 4, 5})}});
  for (std::int32_t i = 0; i < 12; ++i) lopsided.steps.push_back({StepPhase::kDecode, 1, 0, {need(2, {i})}});
  replay(lopsided, floored);
  int kept = 0;
  for (std::int64_t e = 0; e < 12; ++e) kept += floored.slot(1, e) >= 0;
  EXPECT_EQ(kept, 3);
}

// Two halves of one text with a long unrelated prompt between them.
Trace with_and_without_prompt(bool prompt, int tokens) {
  RoutingOptions o;
  o.layers = 6, o.experts = 64, o.top_k = 4, o.seed = 11;
  o.phrase = 0;  // the text goes on where it stopped
  o.topic_tokens = 1e6;
  const RoutingModel text(o);
  o.seed = 12;
  const RoutingModel other(o);
  const std::vector<std::int64_t> layers = {1, 2, 3, 4, 5};
  Trace trace = trace_of(text, layers, {0, 128, 400, 1, 1});
  if (prompt)
    for (TraceStep& step : trace_of(other, layers, {4096, 128, 0, 1, 1}).steps) trace.steps.push_back(std::move(step));
  const Trace whole = trace_of(text, layers, {0, 128, 400 + tokens, 1, 1});
  trace.steps.insert(trace.steps.end(), whole.steps.begin() + 400, whole.steps.end());
  return trace;
}

double hit_rate_of_last_steps(const Trace& trace, std::string_view name, std::size_t count) {
  const CacheShape shape = cache_shape(trace.model);
  CacheDirectory directory(shape, 80, policy(name, shape));
  Trace head = trace, tail = trace;
  head.steps.resize(trace.steps.size() - count);
  tail.steps.erase(tail.steps.begin(), tail.steps.end() - static_cast<std::ptrdiff_t>(count));
  replay(head, directory);
  return replay(tail, directory).decode.rate();
}

TEST(Prefill, ALongPromptDoesNotFlushWhatDecodeUses) {
  for (const int tokens : {1, 4}) {
    const auto count = static_cast<std::size_t>(tokens);
    const Trace without = with_and_without_prompt(false, tokens), with = with_and_without_prompt(true, tokens);
    const double undisturbed = hit_rate_of_last_steps(without, "default", count);
    EXPECT_GT(undisturbed, 0.4);
    EXPECT_GE(hit_rate_of_last_steps(with, "default", count), 0.8 * undisturbed) << tokens << " tokens after a prompt of 4096";
    // The test can fail: this is what recency alone does.
    EXPECT_LT(hit_rate_of_last_steps(with, "lru", count), 0.65 * hit_rate_of_last_steps(without, "lru", count));
  }
}

TEST(DefaultPolicy, ClosesItsShareOfTheGapOnTheRoutingModel) {
  RoutingOptions o;
  o.layers = 5, o.experts = 64, o.top_k = 4, o.seed = 5;
  const Trace trace = trace_of(RoutingModel(o), {1, 2, 3, 4}, {0, 128, 1500, 1, 1});
  const auto sizes = compare_caches(trace, {32, 64}, nullptr);
  for (const ReplaySize& size : sizes)
    for (const ReplayRow& row : size.rows)
      if (row.cache == "default") {
        EXPECT_GT(row.gap_closed, size.slots == 32 ? 0.25 : 0.12) << size.slots << " slots";
      }
}

TEST(CachePolicy, UnknownNameIsAnErrorThatNamesThePolicies) {
  const auto result = make_cache_policy("mru", {1, 1, 1});
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("'mru'"), std::string::npos);
  EXPECT_NE(result.error().message.find("default"), std::string::npos);
}

}  // namespace
}  // namespace colibri

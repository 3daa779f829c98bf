// What the default policy learns from, and the parts of a synthetic score that yardsticks are told.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "experts/cache_policy.h"
#include "experts/passage_memory.h"
#include "experts/replay.h"
#include "experts/routing_model.h"

namespace colibri {
namespace {

// Passages that use experts 0 to 3 or 4 to 7 in every turn, and expert 8 always.
constexpr std::size_t kExperts = 10;
std::vector<double> subject(int which) {
  std::vector<double> used(kExperts);
  for (std::size_t e = 0; e < 4; ++e) used[static_cast<std::size_t>(which) * 4 + e] = 1;
  used[8] = 1;
  return used;
}
void read_passage(PassageMemory& memory, int which) {
  for (int turn = 0; turn < PassageMemory::kTurns; ++turn) {
    memory.note(0, subject(which));
    memory.end_turn();
  }
}

TEST(PassageMemory, RecallsWhatPassagesLikeThePresentOneUsed) {
  PassageMemory memory(kExperts);
  memory.recall(subject(0));
  for (std::size_t e = 0; e < kExperts; ++e) EXPECT_EQ(memory.recalled(e), 0) << "nothing is remembered yet";
  for (const int which : {0, 1, 1}) read_passage(memory, which);

  // A part of the first subject is enough to tell it.
  std::vector<double> present(kExperts);
  present[0] = present[1] = present[8] = 0.5;
  memory.recall(present);
  EXPECT_GT(memory.recalled(3), 0.95);
  EXPECT_LT(memory.recalled(4), 0.05);
  EXPECT_NEAR(memory.recalled(8), 1, 0.01) << "used in every passage";
  EXPECT_EQ(memory.recalled(9), 0) << "used in none";
  memory.recall(subject(1));
  EXPECT_LT(memory.recalled(3), 0.05);
  EXPECT_GT(memory.recalled(4), 0.95);
}

TEST(PassageMemory, APresentLikeNoPassageRecallsTheirMean) {
  PassageMemory memory(kExperts);
  for (const int which : {0, 1, 1, 1}) read_passage(memory, which);
  std::vector<double> mean(kExperts);
  for (std::size_t e = 0; e < kExperts; ++e) mean[e] = 0.25 * subject(0)[e] + 0.75 * subject(1)[e];
  memory.recall(mean);
  for (std::size_t e = 0; e < kExperts; ++e) EXPECT_NEAR(memory.recalled(e), mean[e], 0.01) << e;
}

TEST(PassageMemory, TheOldestMakeRoomAndAPassageUnderWayIsNotRecalled) {
  PassageMemory memory(kExperts);
  read_passage(memory, 0);
  for (std::size_t i = 1; i < PassageMemory::kPassages; ++i) read_passage(memory, 1);
  memory.recall(subject(0));
  EXPECT_GT(memory.recalled(0), 0.5);
  for (int turn = 0; turn + 1 < PassageMemory::kTurns; ++turn) {
    memory.note(0, subject(1));
    memory.end_turn();
  }
  memory.recall(subject(0));
  EXPECT_GT(memory.recalled(0), 0.5);
  memory.note(0, subject(1));
  memory.end_turn();
  memory.recall(subject(0));
  EXPECT_EQ(memory.recalled(0), 0) << "the first passage was the oldest";
}

TEST(PassageMemory, LayersAreNotedByThemselves) {
  PassageMemory memory(6);
  for (int turn = 0; turn < PassageMemory::kTurns; ++turn) {
    memory.note(0, std::vector<double>{0.25, 0, 0});
    memory.note(3, std::vector<double>{0, 0, 0.5});
    memory.end_turn();
  }
  memory.recall(std::vector<double>(6));
  EXPECT_NEAR(memory.recalled(0), 0.25, 0.01);
  EXPECT_NEAR(memory.recalled(5), 0.5, 0.01);
  EXPECT_EQ(memory.recalled(1), 0);
}

// The directory remembers the least expert of a layer until the layer's next access.
TEST(CachePolicy, WorthChangesOnlyWhenTheLayerIsAccessed) {
  RoutingOptions o;
  o.layers = 3, o.experts = 32, o.top_k = 4;
  const Trace trace = trace_of(RoutingModel(o), {0, 1, 2}, {64, 32, 150, 2, 1});
  const CacheShape shape = cache_shape(trace.model);
  for (const CachePolicyInfo& info : cache_policies()) {
    const auto policy = info.make(shape);
    std::vector<double> before(shape.count());
    for (const TraceStep& step : trace.steps) {
      policy->begin_step(step.phase, step.rows);
      for (const LayerAccess& access : step.accesses) {
        policy->access(access.layer, access.needed, access.rows);
        for (std::int64_t layer = 0; layer < shape.layers; ++layer)
          for (std::int64_t e = 0; e < shape.experts; ++e) {
            double& known = before[shape.index(layer, e)];
            if (layer != access.layer) {
              ASSERT_EQ(policy->value(layer, e), known) << info.name;
            }
            known = policy->value(layer, e);
          }
      }
    }
  }
}

// The averages of a prompt twice as long differ little; what tells is whether the memory has closed passages.
TEST(DefaultPolicy, ChunksOfAPromptFillPassagesAsDecodeStepsDo) {
  const CacheShape shape{1, 16};
  const std::vector<std::int32_t> ids = {0, 1, 2, 3}, rows = {8, 8, 8, 8}, one = {1, 1, 1, 1};
  const auto worth_after = [&](int chunks) {
    const auto policy = std::move(*make_cache_policy("default", shape));
    for (int i = 0; i < chunks; ++i) {
      policy->begin_step(StepPhase::kPrefill, 8);
      policy->access(0, ids, rows);
    }
    policy->begin_step(StepPhase::kDecode, 1);
    policy->access(0, ids, one);
    return policy->value(0, 0);
  };
  EXPECT_GT(worth_after(2 * PassageMemory::kTurns), worth_after(PassageMemory::kTurns - 2) + 0.05);
}

TEST(DefaultPolicy, ClosesMoreOfTheGapWhenTopicsReturn) {
  RoutingOptions o;
  o.layers = 2, o.experts = 128, o.top_k = 4, o.topics = 6;
  const RoutingModel model(o);
  const auto closed = [&](std::int64_t tokens) {
    const Trace trace = trace_of(model, {0, 1}, {0, 128, tokens, 1, 1});
    const CacheShape shape = cache_shape(trace.model);
    const auto hits = [&](std::string_view policy) {
      CacheDirectory directory(shape, 128, std::move(*make_cache_policy(policy, shape)));
      return replay(trace, directory).decode.rate();
    };
    const double low = hits("lru");
    return (hits("default") - low) / (belady_hits(trace, 128).decode.rate() - low);
  };
  const double soon = closed(800), late = closed(4000);
  EXPECT_GT(soon, 0.05);
  EXPECT_GT(late, 0.18);
  EXPECT_GT(late, soon);
}

TEST(RoutingModel, WithoutNoiseTheBestSumsOfPartsAreChosen) {
  RoutingOptions o;
  o.layers = 2, o.experts = 40, o.top_k = 5, o.noise = 0;
  const RoutingModel model(o);
  std::vector<std::int32_t> chosen, best(static_cast<std::size_t>(o.experts));
  std::vector<double> score(best.size());
  for (std::int64_t position = 0; position < 400; position += 7)
    for (std::int64_t layer = 0; layer < o.layers; ++layer) {
      for (std::size_t e = 0; e < score.size(); ++e) {
        const auto expert = static_cast<std::int64_t>(e);
        score[e] = model.lasting_part(layer, expert) + model.topic_part(model.topic_at(position), layer, expert) +
                   model.phrase_part(model.phrase_at(position), layer, expert);
      }
      std::iota(best.begin(), best.end(), 0);
      std::sort(best.begin(), best.end(), [&](std::int32_t a, std::int32_t b) {
        const double x = score[static_cast<std::size_t>(a)], y = score[static_cast<std::size_t>(b)];
        return x != y ? x > y : a < b;
      });
      model.choose(position, layer, chosen);
      EXPECT_TRUE(std::equal(chosen.begin(), chosen.end(), best.begin())) << position << " " << layer;
      EXPECT_LE(model.phrase_at(position), position);
    }
}

}  // namespace
}  // namespace colibri

// Traces: what is written is read back; what is malformed is an error with its line; the recorder sees what passes.
#include "experts/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <set>

#include "experts/routing_model.h"
#include "experts/trace_recorder.h"
#include "experts/trace_writer.h"
#include "experts_cache_util.h"

namespace colibri {
namespace {

std::filesystem::path temporary(const char* name) {
  return std::filesystem::path(testing::TempDir()) / fmt::format("{}-{}", name, getpid());
}

void expect_equal(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  EXPECT_EQ(a.model.layers, b.model.layers);
  EXPECT_EQ(a.model.experts, b.model.experts);
  EXPECT_EQ(a.model.top_k, b.model.top_k);
  EXPECT_EQ(a.model.expert_bytes, b.model.expert_bytes);
  for (std::size_t s = 0; s < a.steps.size(); ++s) {
    EXPECT_EQ(a.steps[s].phase, b.steps[s].phase);
    EXPECT_EQ(a.steps[s].rows, b.steps[s].rows);
    EXPECT_EQ(a.steps[s].tail_ns, b.steps[s].tail_ns);
    ASSERT_EQ(a.steps[s].accesses.size(), b.steps[s].accesses.size());
    for (std::size_t i = 0; i < a.steps[s].accesses.size(); ++i) {
      const LayerAccess &x = a.steps[s].accesses[i], &y = b.steps[s].accesses[i];
      EXPECT_EQ(x.layer, y.layer);
      EXPECT_EQ(x.before_ns, y.before_ns);
      EXPECT_EQ(x.shared_ns, y.shared_ns);
      EXPECT_EQ(x.expert_ns, y.expert_ns);
      EXPECT_EQ(x.needed, y.needed);
      EXPECT_EQ(x.rows, y.rows);
      EXPECT_EQ(x.predicted, y.predicted);
    }
  }
}

TEST(Trace, WrittenAndReadBack) {
  const Trace trace = random_trace(3, 6, 20, 4, 300);
  const auto path = temporary("trace");
  auto writer = TraceWriter::create(path, trace.model);
  ASSERT_TRUE(writer) << writer.error().message;
  for (const TraceStep& step : trace.steps) ASSERT_TRUE(writer->write(step));
  ASSERT_TRUE(writer->finish());
  EXPECT_FALSE(writer->write(trace.steps[0])) << "a finished trace takes no more";
  const auto read = read_trace(path);
  ASSERT_TRUE(read) << read.error().message;
  expect_equal(trace, *read);
  std::filesystem::remove(path);
}

TEST(Trace, FilesThatCannotBeOpenedAreNamed) {
  EXPECT_NE(read_trace("/nonexistent/trace").error().message.find("/nonexistent/trace"), std::string::npos);
  EXPECT_NE(TraceWriter::create("/nonexistent/trace", {1, 1, 1, 1}).error().message.find("/nonexistent/trace"),
            std::string::npos);
}

TEST(Trace, MalformedLinesAreErrorsThatNameTheLine) {
  const std::string head = "coli-trace 1\nmodel 4 8 2 1000\n";
  const std::string step = head + "step decode 2 5\n";
  const struct {
    std::string text;
    int line;
    const char* says;
  } cases[] = {
      {"", 0, "coli-trace 1"},
      {"coli-trace 2\n", 1, "coli-trace 1"},
      {"coli-trace 1\n", 1, "model"},
      {"coli-trace 1\nmodel 4 8 2\n", 2, "bytes"},
      {"coli-trace 1\nmodel 4 8 9 1000\n", 2, "experts per row"},
      {"coli-trace 1\nmodel 99999999999999999999 8 2 1000\n", 2, "layers"},
      {"coli-trace 1\nmodel 4 8 2 1000 7\n", 2, "four numbers"},
      {head + "layer 1 0 0 0 | 1 |\n", 3, "'step' line"},
      {head + "step sideways 1 0\n", 3, "prefill"},
      {head + "step decode 0 0\n", 3, "rows"},
      {head + "step decode 1 -4\n", 3, "nanoseconds"},
      {head + "pets 3\n", 3, "'step' or 'layer'"},
      {step + "layer 4 0 0 0 | 1 |\n", 4, "layer"},
      {step + "layer 1 0 0 0 1 |\n", 4, "'|'"},
      {step + "layer 1 0 0 0 | 1\n", 4, "'|'"},
      {step + "layer 1 0 0 0 | |\n", 4, "at least one"},
      {step + "layer 1 0 0 0 | 8 |\n", 4, "from 0 to 7"},
      {step + "layer 1 0 0 0 | -1 |\n", 4, "from 0 to 7"},
      {step + "layer 1 0 0 0 | 3 3 |\n", 4, "twice"},
      {step + "layer 1 0 0 0 | 3*3 |\n", 4, "rows"},
      {step + "layer 1 0 0 0 | 3* |\n", 4, "rows"},
      {step + "layer 1 0 0 0 | 3 | x\n", 4, "predicted"},
      {step + "layer 1 0 0 0 | 3 | 5 5\n", 4, "twice"},
      {step + "layer 2 0 0 0 | 3 |\nlayer 2 0 0 0 | 3 |\n", 5, "in order"},
      {step + std::string("layer 1 0 0 0 | \0 |\n", 20), 4, "from 0 to 7"},
  };
  for (const auto& c : cases) {
    const auto result = parse_trace(c.text, "t.trace");
    ASSERT_FALSE(result) << c.text;
    const std::string& message = result.error().message;
    EXPECT_NE(message.find(fmt::format("t.trace:{}:", c.line)), std::string::npos) << message;
    EXPECT_NE(message.find(c.says), std::string::npos) << message;
  }
}

TEST(Trace, DamagedTextNeverCrashes) {
  std::vector<char> good;
  const Trace trace = random_trace(4, 4, 9, 2, 12);
  append_trace_header(trace.model, good);
  for (const TraceStep& step : trace.steps) append_trace_step(step, good);
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string text(good.begin(), good.end());
    for (int n = 1 + static_cast<int>(random() % 4); n > 0; --n) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text[at] = static_cast<char>(random() % 256); break;
        case 1: text.erase(at, random() % 9); break;
        default: text.insert(at, text.substr(random() % text.size(), random() % 20)); break;
      }
    }
    const auto result = parse_trace(text, "t");
    if (!result) continue;
    ++accepted;
    for (const TraceStep& step : result->steps)
      for (const LayerAccess& access : step.accesses)
        for (const std::int32_t id : access.needed) ASSERT_TRUE(id >= 0 && id < result->model.experts);
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 4000);
}

// Hands out what is asked for; everything is there.
class EmptyHanded final : public ExpertSource {
 public:
  Result<void> request(std::int64_t, std::span<const std::int32_t> ids, std::span<const std::int32_t>) override {
    left_ = ids.size();
    return {};
  }
  Result<std::optional<Ready>> next(bool) override {
    if (left_ == 0) return std::nullopt;
    return Ready{--left_, {}};
  }
  void release(std::size_t) override { ++released; }
  int released = 0;

 private:
  std::size_t left_ = 0;
};

TEST(TraceRecorder, RecordsWhatPasses) {
  EmptyHanded source;
  std::vector<TraceStep> steps;
  TraceRecorder recorder(source, [&](const TraceStep& step) { steps.push_back(step); });
  ASSERT_TRUE(recorder.wants_predictions());
  const std::vector<std::int32_t> ids = {4, 2, 7}, rows = {2, 1, 2}, guess = {2, 5};
  recorder.begin_step(StepPhase::kPrefill, 2);  // an aborted step leaves no trace
  ASSERT_TRUE(recorder.request(1, ids, rows));
  recorder.begin_step(StepPhase::kPrefill, 2);
  for (const std::int64_t layer : {1, 2, 5}) {
    ASSERT_TRUE(recorder.request(layer, ids, rows));
    if (layer == 1) recorder.predict(2, guess);
    while (true) {
      auto ready = recorder.next(true);
      ASSERT_TRUE(ready);
      if (!*ready) break;
      recorder.release((*ready)->index);
    }
  }
  recorder.end_step();
  EXPECT_EQ(source.released, 9);
  EXPECT_TRUE(steps.empty());  // logits may come
  recorder.logits_computed(std::chrono::hours(1));
  recorder.begin_step(StepPhase::kDecode, 1);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_GE(steps[0].tail_ns, std::chrono::nanoseconds(std::chrono::hours(1)).count());
  recorder.abandon_step();
  recorder.flush();
  ASSERT_EQ(steps.size(), 1u);
  recorder.begin_step(StepPhase::kDecode, 1);
  recorder.end_step();
  recorder.flush();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1].phase, StepPhase::kDecode);
  EXPECT_EQ(steps[0].phase, StepPhase::kPrefill);
  EXPECT_EQ(steps[0].rows, 2);
  ASSERT_EQ(steps[0].accesses.size(), 3u);
  EXPECT_EQ(steps[0].accesses[2].layer, 5);
  for (const LayerAccess& access : steps[0].accesses) {
    EXPECT_EQ(access.needed, ids);
    EXPECT_EQ(access.rows, rows);
    EXPECT_EQ(access.predicted, access.layer == 2 ? guess : std::vector<std::int32_t>{});
    EXPECT_GE(access.before_ns, 0);
    EXPECT_GE(access.shared_ns, 0);
    EXPECT_GE(access.expert_ns, 0);
  }
}

RoutingOptions small_model() {
  RoutingOptions o;
  o.layers = 4, o.experts = 64, o.top_k = 4, o.seed = 7;
  return o;
}

TEST(RoutingModel, DependsOnSeedPositionAndLayerAlone) {
  const RoutingModel one(small_model()), two(small_model());
  std::vector<std::int32_t> a, b;
  std::set<std::vector<std::int32_t>> seen;
  for (const std::int64_t position : {0, 1, 2, 3, 50, 51, 1000, 100000}) one.choose(position, 2, a);
  for (const std::int64_t position : {1000, 3, 100000, 0}) {
    one.choose(position, 2, a);
    two.choose(position, 2, b);
    EXPECT_EQ(a, b);
    EXPECT_EQ(std::set<std::int32_t>(a.begin(), a.end()).size(), 4u);
    for (const std::int32_t id : a) EXPECT_TRUE(id >= 0 && id < 64);
    seen.insert(a);
    one.choose(position, 1, a);
    seen.insert(a);
  }
  EXPECT_GT(seen.size(), 6u) << "positions and layers differ";
  RoutingOptions other = small_model();
  other.seed = 8;
  one.choose(3, 2, a);
  RoutingModel(other).choose(3, 2, b);
  EXPECT_NE(a, b);
}

TEST(RoutingModel, ChunksChangeNothing) {
  const RoutingModel model(small_model());
  const std::vector<std::int64_t> layers = {1, 3};
  const Trace whole = trace_of(model, layers, {24, 24, 0, 1, 1}), chunks = trace_of(model, layers, {24, 5, 0, 1, 1});
  for (std::size_t l = 0; l < layers.size(); ++l) {
    std::map<std::int32_t, int> a, b;
    for (const Trace* t : {&whole, &chunks})
      for (const TraceStep& step : t->steps)
        for (std::size_t i = 0; i < step.accesses[l].needed.size(); ++i)
          (t == &whole ? a : b)[step.accesses[l].needed[i]] += step.accesses[l].rows[i];
    EXPECT_EQ(a, b);
  }
}

TEST(RoutingModel, PredictionsHaveTheRecallAskedFor) {
  for (const double recall : {0.0, 0.5, 0.75, 1.0}) {
    RoutingOptions o = small_model();
    o.recall = recall;
    const RoutingModel model(o);
    std::vector<std::int32_t> chosen, predicted;
    int found = 0, total = 0;
    for (std::int64_t p = 0; p < 2000; ++p) {
      model.choose(p, 1, chosen);
      model.predict(p, 1, predicted);
      EXPECT_EQ(std::set<std::int32_t>(predicted.begin(), predicted.end()).size(), 4u);
      for (const std::int32_t id : chosen) found += std::count(predicted.begin(), predicted.end(), id) > 0;
      total += 4;
    }
    EXPECT_NEAR(static_cast<double>(found) / total, recall, 0.02);
  }
}

TEST(RoutingModel, IsSkewedAndCorrelatedOverTime) {
  RoutingOptions o;
  o.layers = 2, o.experts = 256, o.top_k = 8, o.seed = 3;
  const Trace trace = trace_of(RoutingModel(o), {0, 1}, {0, 1, 1500, 1, 1});
  std::vector<int> count(512);
  int kept = 0, total = 0;
  for (std::size_t s = 0; s < trace.steps.size(); ++s)
    for (std::size_t l = 0; l < 2; ++l)
      for (const std::int32_t id : trace.steps[s].accesses[l].needed) {
        ++count[l * 256 + static_cast<std::size_t>(id)];
        if (s == 0) continue;
        const auto& before = trace.steps[s - 1].accesses[l].needed;
        kept += std::count(before.begin(), before.end(), id) > 0;
        ++total;
      }
  std::sort(count.rbegin(), count.rend());
  const double all = 1500 * 16, top = std::accumulate(count.begin(), count.begin() + 51, 0) / all;
  // Uniform routing would give 0.03 and 0.10.
  EXPECT_NEAR(static_cast<double>(kept) / total, 0.33, 0.05);
  EXPECT_NEAR(top, 0.45, 0.08) << "share of the hottest tenth";
}

}  // namespace
}  // namespace colibri

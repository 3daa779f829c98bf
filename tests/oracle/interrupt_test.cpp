// A step that is given up part way leaves no mark: the session stands at a whole chunk, and everything after it has the
// bits it would have had without the interrupted step. Experts in memory and streamed alike.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "engine/generate.h"
#include "experts/trace.h"
#include "format/safetensors.h"

namespace colibri {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kChunk = 7;
constexpr std::int64_t kLayers = 4;  // of the model below, three of them with experts

enum class Experts : std::uint8_t { kResident, kStreamed, kReadSerially };

// Says yes `left` times, then no.
class Countdown {
 public:
  explicit Countdown(std::int64_t left) : left_(left) {}
  KeepGoing ask() {
    return [this] { return left_-- > 0; };
  }

 private:
  std::int64_t left_;
};

class Interrupt : public testing::TestWithParam<Experts> {
 protected:
  static fs::path dir() { return fs::path(COLIBRI_SOURCE_DIR) / "tests/oracle/cases/glm-dsa-tiny-g64"; }

  void SetUp() override {
    auto tensors = read_safetensors(dir() / "expected.safetensors");
    ASSERT_TRUE(tensors) << tensors.error().message;
    prompt_ = tensors->at("input_ids").ints();
    ASSERT_GE(prompt_.size(), 24U);
    prompt_.resize(24);  // past the indexer's top 8, and no multiple of the chunk
    engine_ = open(kChunk);
    reference_ = logits_of(prompt_);
  }

  static std::unique_ptr<Engine> open(std::int64_t chunk, const fs::path& trace = {}) {
    EngineOptions options;
    options.model = dir();
    options.threads = 2;
    options.context = 64;
    options.prefill_chunk = chunk;
    options.trace = trace;
    if (GetParam() != Experts::kResident) options.expert_slots = 5;
    if (GetParam() == Experts::kReadSerially) options.disk.in_flight = 0;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine) << engine.error().message;
    return std::move(*engine);
  }

  std::vector<float> logits_of(std::span<const std::int32_t> ids) {
    Session session(*engine_);
    EXPECT_TRUE(session.prefill(ids));
    return {session.logits().begin(), session.logits().end()};
  }

  static void expect_bits(const Session& session, const std::vector<float>& expected) {
    ASSERT_EQ(session.logits().size(), expected.size());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), session.logits().begin()));
  }

  // A serial reader starts nothing of its own accord: what a stopped step left queued is still there.
  void expect_nothing_queued() const {
    if (GetParam() == Experts::kReadSerially) {
      EXPECT_EQ(engine_->streaming()->reader().outstanding(), 0U);
    }
  }

  std::unique_ptr<Engine> engine_;
  std::vector<std::int32_t> prompt_;
  std::vector<float> reference_;
};

TEST_P(Interrupt, APromptContinuesWithTheSameBits) {
  for (std::int64_t stop = 0;; ++stop) {
    SCOPED_TRACE(stop);
    Session session(*engine_);
    Countdown countdown(stop);
    ASSERT_TRUE(session.prefill(prompt_, countdown.ask()));
    if (!session.logits().empty()) {
      expect_bits(session, reference_);
      EXPECT_GE(stop, 4 * (2 * kLayers - 1)) << "a chunk is asked for less than twice a layer";
      return;
    }
    expect_nothing_queued();
    ASSERT_EQ(session.position() % kChunk, 0);
    ASSERT_LT(session.position(), static_cast<std::int64_t>(prompt_.size()));
    ASSERT_TRUE(session.prefill(std::span(prompt_).subspan(static_cast<std::size_t>(session.position()))));
    expect_bits(session, reference_);
  }
}

TEST_P(Interrupt, AnotherPromptIsNotTouchedByIt) {
  std::vector<std::int32_t> other(prompt_.rbegin(), prompt_.rend());
  const std::vector<float> expected = logits_of(other);
  for (const std::int64_t stop : {0, 3, 9, 12, 17}) {
    SCOPED_TRACE(stop);
    Session session(*engine_);
    Countdown countdown(stop);
    ASSERT_TRUE(session.prefill(prompt_, countdown.ask()));
    ASSERT_TRUE(session.logits().empty());
    session.truncate(0);
    ASSERT_TRUE(session.prefill(other));
    expect_bits(session, expected);
  }
}

TEST_P(Interrupt, AStepOfOneTokenCanBeGivenUp) {
  std::vector<std::int32_t> longer = prompt_;
  longer.push_back(11);
  const std::vector<float> expected = logits_of(longer);
  Session session(*engine_);
  ASSERT_TRUE(session.prefill(prompt_));
  for (std::int64_t stop = 0;; ++stop) {
    Countdown countdown(stop);
    ASSERT_TRUE(session.append(11, countdown.ask()));
    if (!session.logits().empty()) break;
    expect_nothing_queued();
    ASSERT_EQ(session.position(), static_cast<std::int64_t>(prompt_.size()));
  }
  expect_bits(session, expected);
}

TEST_P(Interrupt, GenerateReportsWhatIsWhole) {
  const auto run = [&](Session& session, std::vector<std::int32_t>& ids, const KeepGoing& keep_going) {
    GenerateOptions options;
    options.max_tokens = 6;
    auto stats = generate(
        session, prompt_, options,
        [&](std::int32_t id) {
          ids.push_back(id);
          return true;
        },
        keep_going);
    EXPECT_TRUE(stats) << stats.error().message;
    return *stats;
  };
  Session whole(*engine_);
  std::vector<std::int32_t> expected;
  run(whole, expected, {});
  bool in_prompt = false, in_answer = false;
  for (std::int64_t stop = 0;; stop += 3) {
    SCOPED_TRACE(stop);
    Session session(*engine_);
    std::vector<std::int32_t> ids;
    Countdown countdown(stop);
    const GenerateStats stats = run(session, ids, countdown.ask());
    if (stats.reason != StopReason::kCancelled) {
      EXPECT_EQ(ids, expected);
      break;
    }
    EXPECT_EQ(stats.decode_tokens, static_cast<std::int64_t>(ids.size()));
    (ids.empty() ? in_prompt : in_answer) = true;
    EXPECT_EQ(stats.prompt_tokens, ids.empty() ? session.position() : static_cast<std::int64_t>(prompt_.size()));
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.begin()));
    std::vector<std::int32_t> held = prompt_;
    if (ids.empty())
      held.resize(static_cast<std::size_t>(session.position()));
    else
      held.insert(held.end(), ids.begin(), ids.end() - 1);  // the last one reported was not computed
    EXPECT_EQ(session.tokens(), held);
  }
  EXPECT_TRUE(in_prompt && in_answer);
}

TEST_P(Interrupt, ATraceHoldsWholeStepsOnly) {
  const fs::path path = fs::temp_directory_path() / fmt::format("colibri-interrupt-{}", ::getpid());
  auto engine = open(kChunk, path);
  Session session(*engine);
  int asked = 0;
  ASSERT_TRUE(session.prefill(prompt_, [&] { return session.position() < kChunk || ++asked < 8; }));
  ASSERT_EQ(session.position(), kChunk);
  ASSERT_TRUE(session.prefill(std::span(prompt_).subspan(kChunk)));
  ASSERT_TRUE(engine->finish_trace());
  auto trace = read_trace(path);
  fs::remove(path);
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->steps.size(), 4U);
  for (const TraceStep& step : trace->steps) EXPECT_EQ(step.accesses.size(), 3U);
}

std::string name_of(const testing::TestParamInfo<Experts>& param) {
  constexpr const char* kNames[] = {"Resident", "Streamed", "ReadSerially"};
  return kNames[static_cast<std::size_t>(param.param)];
}

INSTANTIATE_TEST_SUITE_P(All, Interrupt, testing::Values(Experts::kResident, Experts::kStreamed, Experts::kReadSerially),
                         name_of);

}  // namespace
}  // namespace colibri

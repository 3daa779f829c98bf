// Experts streamed from disk through a cache: the same bits as with everything in memory, whatever the size of the cache, the
// policy, prefetching, the reader and its modes, and whatever goes wrong on the disk.
#include <gtest/gtest.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <filesystem>
#include <functional>

#include "engine/oracle.h"
#include "whole_runs.h"

namespace colibri {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::prompt_of;
using test::run;
const fs::path kRoot = COLIBRI_SOURCE_DIR;

EngineOptions options_for(const fs::path& model) {
  EngineOptions options;
  options.model = model;
  options.threads = 2;
  options.context = 512;
  return options;
}

TEST(Streaming, SameBitsForEveryCacheAndReader) {
  const fs::path dir = kRoot / "models/demo";
  const std::vector<std::int32_t> prompt = prompt_of(dir, "ids.long", 40);
  constexpr std::int64_t kTokens = 8;
  auto resident = Engine::open(options_for(dir));
  ASSERT_TRUE(resident) << resident.error().message;
  ASSERT_EQ((*resident)->streaming(), nullptr);
  const Outcome reference = run(**resident, prompt, kTokens);

  for (const std::int64_t slots : {3, 5, 24, 100}) {
    for (const char* policy : {"default", "lru"}) {
      for (const bool prefetch : {true, false}) {
        EngineOptions options = options_for(dir);
        options.expert_slots = slots;
        options.cache_policy = policy;
        options.prefetch = prefetch;
        options.disk.in_flight = slots % 2 == 0 ? 4 : 1;
        auto engine = Engine::open(options);
        ASSERT_TRUE(engine) << engine.error().message;
        ASSERT_NE((*engine)->streaming(), nullptr);
        EXPECT_EQ(run(**engine, prompt, kTokens), reference) << slots << " slots, " << policy << ", prefetch " << prefetch;
        const StreamingStats stats = (*engine)->streaming()->stats();
        EXPECT_EQ(stats.decode.needed, static_cast<std::uint64_t>((kTokens - 1) * 6 * 3));  // six sparse layers, top 3
        EXPECT_LE(stats.decode.hits, stats.decode.needed);
        EXPECT_GT(stats.reader.bytes, 0u);
        if (!prefetch) {
          EXPECT_EQ(stats.decode.prefetched, 0u);
          EXPECT_EQ(stats.reader.prefetch_records, 0u);
        }
      }
    }
  }
}

TEST(Streaming, SameBitsForEveryWayOfReading) {
  const fs::path dir = kRoot / "tests/oracle/cases/glm-dsa-tiny-mixed";
  const std::vector<std::int32_t> prompt = prompt_of(dir, "input_ids", 24);
  auto resident = Engine::open(options_for(dir));
  ASSERT_TRUE(resident) << resident.error().message;
  const Outcome reference = run(**resident, prompt, 10);
  for (const ReadBackend backend : {ReadBackend::kThreads, ReadBackend::kRing})
    for (const bool direct : {true, false})
      for (const int in_flight : {0, 8}) {
        EngineOptions options = options_for(dir);
        options.expert_slots = 9;
        options.disk.backend = backend;
        options.disk.direct = direct;
        options.disk.in_flight = in_flight;
        auto engine = Engine::open(options);
        ASSERT_TRUE(engine) << engine.error().message;
        EXPECT_EQ(run(**engine, prompt, 10), reference)
            << backend_name(backend) << ", direct " << direct << ", in flight " << in_flight;
      }
}

TEST(Streaming, OracleCasesPassWithHalfOfTheExperts) {
  for (const char* name :
       {"glm-dsa-tiny", "glm-dsa-tiny-g64", "glm-dsa-tiny-i4row", "glm-dsa-tiny-mixed", "glm-dense-attn", "glm-odd-dims"}) {
    EngineOptions options = options_for(kRoot / "tests/oracle/cases" / name);
    options.expert_slots = 20;
    auto engine = Engine::open(options);
    ASSERT_TRUE(engine) << engine.error().message;
    ASSERT_NE((*engine)->streaming(), nullptr);
    auto report = check_against_oracle(**engine);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->passed()) << name;
    EXPECT_EQ(report->contract_bits_differ, 0) << name;
  }
}

// A sample a step, `apart` seconds apart; steps 3 to `last` under pressure.
std::function<std::optional<MemorySample>()> pressed_until(int last, double apart) {
  return [last, apart, step = 0]() mutable -> std::optional<MemorySample> {
    MemorySample sample;
    sample.seconds = apart * ++step;
    sample.pressure = step >= 3 && step <= last ? MemoryPressure::kCritical : MemoryPressure::kNormal;
    return sample;
  };
}

// Memory gets short in the middle of a run, down to the smallest arena, and is there again: the same bits.
TEST(Streaming, SameBitsWhileSlotsComeAndGo) {
  const fs::path dir = kRoot / "models/demo";
  const std::vector<std::int32_t> prompt = prompt_of(dir, "ids.long", 40);
  constexpr std::int64_t kTokens = 30, kSlots = 48, kLeast = 3;
  auto resident = Engine::open(options_for(dir));
  ASSERT_TRUE(resident) << resident.error().message;
  const Outcome reference = run(**resident, prompt, kTokens);

  for (const char* policy : {"default", "lru"}) {
    for (const bool prefetch : {true, false}) {
      EngineOptions options = options_for(dir);
      options.expert_slots = kSlots;
      options.cache_policy = policy;
      options.prefetch = prefetch;
      options.prefill_chunk = 8;
      options.memory_samples = pressed_until(24, 10);  // in the prompt and in the answer
      auto engine = Engine::open(options);
      ASSERT_TRUE(engine) << engine.error().message;
      EXPECT_EQ(run(**engine, prompt, kTokens), reference) << policy << ", prefetch " << prefetch;
      const StreamingStats stats = (*engine)->streaming()->stats();
      EXPECT_EQ(stats.slots, kSlots);
      EXPECT_EQ(stats.most_given_up, kSlots - kLeast);
      EXPECT_GT(stats.given_up, 0);
      EXPECT_LT(stats.given_up, kSlots / 2) << "they come back";
    }
  }
}

#if defined(__linux__)
// Slots that the system does not take back are left alone for good: the same bits with those that remain.
TEST(Streaming, SameBitsWhenTheSystemKeepsSlotsThatWereGivenUp) {
  const fs::path dir = kRoot / "models/demo";
  const std::vector<std::int32_t> prompt = prompt_of(dir, "ids.long", 40);
  constexpr std::int64_t kTokens = 30, kSlots = 24, kLeast = 3;
  auto resident = Engine::open(options_for(dir));
  ASSERT_TRUE(resident) << resident.error().message;
  const Outcome reference = run(**resident, prompt, kTokens);
  EngineOptions options = options_for(dir);
  options.expert_slots = kSlots;
  options.prefill_chunk = 8;
  options.memory_samples = pressed_until(12, 100);
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  const SlabArena& arena = (*engine)->streaming()->arena();
  for (std::uint64_t i = 0; i < arena.slots(); ++i)
    if (::syscall(SYS_mlock, arena.slot(i) + arena.slot_bytes() / 2, 1) != 0) GTEST_SKIP() << "no pages may be locked here";
  EXPECT_EQ(run(**engine, prompt, kTokens), reference);
  const StreamingStats stats = (*engine)->streaming()->stats();
  EXPECT_EQ(stats.slots, kSlots);
  EXPECT_EQ(stats.most_given_up, kSlots - kLeast);
  EXPECT_EQ(stats.lost, kSlots - kLeast) << "every slot given up had a locked page";
  EXPECT_EQ(stats.given_up, stats.lost) << "they do not come back";
}
#endif

// A prompt whose layers need more experts than there are slots runs in waves and reads each needed expert once per chunk.
TEST(Streaming, PrefillReadsEachNeededExpertOncePerChunk) {
  const fs::path dir = kRoot / "models/demo";
  const std::vector<std::int32_t> prompt = prompt_of(dir, "ids.long", 100);
  EngineOptions options = options_for(dir);
  options.expert_slots = 5;
  options.prefetch = false;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  Session session(**engine);
  ASSERT_TRUE(session.prefill(prompt));
  const StreamingStats stats = (*engine)->streaming()->stats();
  EXPECT_EQ(stats.reader.demand_records + stats.prefill.hits, stats.prefill.needed);
  EXPECT_GT(stats.prefill.needed, 5u * 6u);
}

TEST(Streaming, TooSmallABudgetIsRefusedWithTheSmallestThatWorks) {
  EngineOptions options = options_for(kRoot / "models/demo");
  options.ram = 1 << 20;
  auto refused = Engine::open(options);
  ASSERT_FALSE(refused);
  const std::string& message = refused.error().message;
  const auto at = message.find("use --ram ");
  ASSERT_NE(at, std::string::npos) << message;
  options.ram = static_cast<std::uint64_t>(std::stod(message.substr(at + 10)) * 1e9);
  auto smallest = Engine::open(options);
  ASSERT_TRUE(smallest) << smallest.error().message;
  ASSERT_NE((*smallest)->streaming(), nullptr);
  EXPECT_LE((*smallest)->memory().total(), options.ram);
}

}  // namespace
}  // namespace colibri

// What an engine would do, told before it does it: how the disk is read and what it allows; and what it learns for the next
// start.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "engine/generate.h"
#include "format/file.h"

namespace colibri {
namespace {

namespace fs = std::filesystem;

TEST(Forecast, IsWhatTheDiskAllows) {
  ForecastFacts facts{.bytes_per_token = 8'000'000'000, .experts = 1000, .slots = 250, .disk_bytes_per_second = 3e9};
  SpeedForecast forecast = forecast_speed(facts);
  EXPECT_DOUBLE_EQ(forecast.hit_rate, 0.25);
  EXPECT_DOUBLE_EQ(forecast.tokens_per_second, 0.5);
  facts.disk_bytes_per_second = 0;
  EXPECT_EQ(forecast_speed(facts).tokens_per_second, 0) << "not known";
  facts.disk_bytes_per_second = 3e9;
  facts.share_of_hottest = 0.75;
  EXPECT_DOUBLE_EQ(forecast_speed(facts).tokens_per_second, 1.5) << "what was learned is better than the share of experts";
  facts = {.bytes_per_token = 8'000'000'000, .experts = 1000, .slots = 1000, .disk_bytes_per_second = 3e9};
  EXPECT_DOUBLE_EQ(forecast_speed(facts).hit_rate, 1);
  EXPECT_EQ(forecast_speed(facts).tokens_per_second, 0) << "the disk has nothing to do";
}

// Links to the demo model's files in a folder of their own, so that side files can lie beside them.
class Plan : public testing::Test {
 protected:
  Plan() {
    std::string name = (fs::temp_directory_path() / "colibri-plan-XXXXXX").string();
    dir_ = mkdtemp(name.data());
    for (const auto& entry : fs::directory_iterator(fs::path(COLIBRI_SOURCE_DIR) / "models/demo"))
      if (entry.path().filename().string().front() != '.') fs::create_symlink(entry.path(), dir_ / entry.path().filename());
    options_.model = dir_;
    options_.threads = 1;
    options_.context = 64;
    options_.expert_slots = 9;
    options_.probe_disk = true;
  }
  ~Plan() override { fs::remove_all(dir_); }

  void remember(const std::string& samples) {
    std::vector<fs::path> shards;
    for (const auto& entry : fs::directory_iterator(dir_))
      if (entry.path().extension() == ".safetensors") shards.push_back(entry.path());
    std::ofstream(dir_ / ".coli_ssd") << "device " << device_of(shards) << '\n' << samples;
  }
  EnginePlan plan() {
    auto plan = Engine::plan(options_);
    if (!plan) throw std::runtime_error(plan.error().message);
    return std::move(*plan);
  }

  fs::path dir_;
  EngineOptions options_;
};

TEST_F(Plan, TheRememberedWayOfReadingIsUsedAndCounted) {
  remember("threads direct 6 2.000 GB/s\nthreads buffered 2 1.000 GB/s\n");
  const EnginePlan found = plan();
  ASSERT_TRUE(found.disk);
  EXPECT_EQ(found.disk->source, "remembered");
  EXPECT_TRUE(found.disk->options.direct);
  EXPECT_EQ(found.disk->options.in_flight, 6);
  for (const MemoryTerm& term : found.memory.terms)
    if (term.name == "read buffers") {
      EXPECT_EQ(term.bytes, RecordReader::buffer_bytes(found.disk->options));
    }
  const SpeedForecast& f = found.forecast;
  EXPECT_GT(f.bytes_per_token, 0u);
  EXPECT_GT(f.hit_rate, 0);
  EXPECT_LT(f.hit_rate, 1);
  EXPECT_DOUBLE_EQ(f.tokens_per_second, 2e9 / (static_cast<double>(f.bytes_per_token) * (1 - f.hit_rate)));

  auto engine = Engine::open(options_);
  ASSERT_TRUE(engine) << engine.error().message;
  ASSERT_NE((*engine)->streaming(), nullptr);
  EXPECT_EQ((*engine)->streaming()->reader().options().in_flight, 6);
}

TEST_F(Plan, WhatTheUserFixedIsKept) {
  remember("threads direct 6 2.000 GB/s\nthreads buffered 2 1.000 GB/s\n");
  options_.disk.direct = false;
  EXPECT_FALSE(plan().disk->options.direct);
  EXPECT_EQ(plan().disk->options.in_flight, 2) << "the best among the buffered ways";
  options_.disk.in_flight = 0;
  EXPECT_EQ(plan().disk->options.in_flight, 0);
}

TEST_F(Plan, NothingIsMeasuredUnlessAskedFor) {
  remember("threads direct 6 2.000 GB/s\n");
  options_.probe_disk = false;
  EXPECT_EQ(plan().disk->source, "default");
  options_.probe_disk = true;
  options_.expert_slots = 0;  // all in memory: how experts would be read is nobody's question
  EXPECT_FALSE(plan().disk);
}

// A budget that leaves no room for more reads at a time: the smallest that works is not refused because the disk would like more.
TEST_F(Plan, TheSmallestBudgetHoldsWhateverTheDiskLikes) {
  remember("threads direct 32 2.000 GB/s\n");
  options_.expert_slots = 0;
  options_.ram = 1 << 20;
  const auto refused = Engine::plan(options_);
  ASSERT_FALSE(refused);
  const std::string& message = refused.error().message;
  const auto at = message.find("use --ram ");
  ASSERT_NE(at, std::string::npos) << message;
  options_.ram = static_cast<std::uint64_t>(std::stod(message.substr(at + 10)) * 1e9);
  const EnginePlan smallest = plan();
  EXPECT_LE(smallest.memory.total(), options_.ram);
}

// ---- the history of used experts

class Learned : public Plan {
 protected:
  Learned() {
    options_.probe_disk = false;
    options_.expert_slots = 40;
    options_.usage = dir_ / ".coli_usage";
  }
  // Some tokens from a new engine.
  std::uint64_t logits_of(std::unique_ptr<Engine>& engine) {
    auto opened = Engine::open(options_);
    if (!opened) throw std::runtime_error(opened.error().message);
    engine = std::move(*opened);
    Session session(*engine);
    GenerateOptions generation;
    generation.max_tokens = 6;
    const std::int32_t prompt[] = {5, 9, 17, 300, 42};
    const auto stats = generate(session, prompt, generation, [](std::int32_t) { return true; });
    if (!stats) throw std::runtime_error(stats.error().message);
    return stats->logits_hash;
  }
  std::string file() const { return *read_text(options_.usage, 1 << 20); }
  void write(const std::string& text) const { std::ofstream(options_.usage) << text; }
};

TEST_F(Learned, ARunIsCountedAndTheNextOneAddsToIt) {
  std::unique_ptr<Engine> engine;
  const auto logits = logits_of(engine);
  EXPECT_FALSE(fs::exists(options_.usage)) << "only when asked";
  ASSERT_TRUE(engine->save_usage());
  const auto shape = [&] { return CacheShape{static_cast<std::int64_t>(engine->weights().experts.size()), 24, 3}; };
  std::string notice;
  const std::uint64_t once = UsageHistory::load(options_.usage, shape(), 1, notice).total();
  EXPECT_EQ(notice, "");
  EXPECT_EQ(once, (5u + 5u) * 6 * 3) << "rows times sparse layers times experts per token";
  EXPECT_EQ(logits_of(engine), logits);
  ASSERT_TRUE(engine->save_usage());
  EXPECT_EQ(UsageHistory::load(options_.usage, shape(), 1, notice).total(), 2 * once);
}

TEST_F(Learned, TheHottestArePinnedAndTheLogitsStayTheSame) {
  std::unique_ptr<Engine> engine;
  const auto logits = logits_of(engine);
  EXPECT_EQ(engine->streaming()->stats().decode.pinned, 0u);
  std::string text;
  for (int layer = 0; layer < 8; ++layer)  // dense layers too, as a stranger's file might have it
    for (int expert = 0; expert < 12; ++expert) text += fmt::format("{} {} 5000\n", layer, expert);
  write(text);
  EXPECT_GT(plan().pins, 0);
  EXPECT_EQ(logits_of(engine), logits);
  EXPECT_GT(engine->streaming()->stats().decode.pinned, 0u);
  options_.pin_hottest = false;
  EXPECT_EQ(plan().pins, 0);
  EXPECT_EQ(logits_of(engine), logits);
  EXPECT_EQ(engine->streaming()->stats().decode.pinned, 0u);
}

TEST_F(Learned, ADamagedFileIsANoticeAndIsLeftAlone) {
  std::unique_ptr<Engine> engine;
  const auto logits = logits_of(engine);
  for (const char* text : {"1 2\n", "-1 3 7\n1 1 1\n", "noise"}) {
    write(text);
    EXPECT_EQ(logits_of(engine), logits);
    ASSERT_EQ(engine->notices().size(), 1u) << text;
    EXPECT_NE(engine->notices()[0].find(".coli_usage"), std::string::npos);
    EXPECT_NE(engine->notices()[0].find("delete it"), std::string::npos);
    EXPECT_TRUE(engine->save_usage());
    EXPECT_EQ(file(), text);
  }
}

TEST_F(Learned, AFolderThatCannotBeWrittenIsNoError) {
  options_.usage = dir_ / "absent" / ".coli_usage";
  std::unique_ptr<Engine> engine;
  (void)logits_of(engine);
  EXPECT_TRUE(engine->notices().empty());
  EXPECT_TRUE(engine->save_usage());
  EXPECT_FALSE(fs::exists(dir_ / "absent"));
}

}  // namespace
}  // namespace colibri

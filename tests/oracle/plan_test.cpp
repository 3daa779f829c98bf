// What an engine would do, told before it does it: how the disk is read and what it allows.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "engine/engine.h"

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

}  // namespace
}  // namespace colibri

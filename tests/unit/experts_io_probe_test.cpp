// The choice of how to read: pure decisions, the remembered file, and a real (small) measurement.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "experts/disk_probe.h"
#include "experts/disk_probe_cache.h"
#include "experts_io_support.h"
#include "format/file.h"

namespace colibri::experts_io {
namespace {

constexpr auto kThreads = ReadBackend::kThreads;
constexpr auto kRing = ReadBackend::kRing;

// ---- decisions

TEST(DiskChoiceTest, TheFastestWins) {
  const DiskSample samples[] = {
      {kThreads, true, 4, 1e9}, {kThreads, false, 4, 2e9}, {kThreads, true, 8, 3e9}, {kRing, true, 8, 1e9}};
  const DiskChoice choice = disk_choice(samples, {});
  EXPECT_TRUE(choice.options.direct);
  EXPECT_EQ(choice.options.in_flight, 8);
  EXPECT_EQ(choice.options.backend, kThreads);
  EXPECT_EQ(choice.bytes_per_second, 3e9);
  EXPECT_EQ(choice.source, "measured");
}

TEST(DiskChoiceTest, NearlyEqualMeansUncachedThenFewer) {
  const DiskSample samples[] = {
      {kThreads, false, 1, 1.00e9}, {kThreads, true, 8, 0.99e9}, {kThreads, true, 4, 0.96e9}, {kThreads, true, 1, 0.94e9}};
  const DiskSample* best = best_sample(samples, {});
  ASSERT_NE(best, nullptr);
  EXPECT_TRUE(best->direct);
  EXPECT_EQ(best->in_flight, 4);
}

TEST(DiskChoiceTest, WishesAreKept) {
  const DiskSample samples[] = {
      {kThreads, true, 4, 3e9}, {kThreads, false, 4, 1e9}, {kThreads, false, 8, 2e9}, {kRing, true, 8, 3.5e9}};
  DiskChoice choice = disk_choice(samples, {.direct = false, .in_flight = {}, .backend = {}});
  EXPECT_FALSE(choice.options.direct);
  EXPECT_EQ(choice.options.in_flight, 8);
  EXPECT_EQ(choice.bytes_per_second, 2e9);
  choice =
      disk_choice(samples, {.direct = {}, .in_flight = 3, .backend = {}});  // never measured: the fastest way, three at a time
  EXPECT_EQ(choice.options.in_flight, 3);
  EXPECT_EQ(choice.options.backend, kRing);
  EXPECT_TRUE(choice.options.direct);
  choice = disk_choice(samples, {.direct = false, .in_flight = 0, .backend = kRing});
  EXPECT_FALSE(choice.options.direct);
  EXPECT_EQ(choice.options.in_flight, 0);
  EXPECT_EQ(choice.options.backend, kRing);
}

TEST(DiskChoiceTest, WithoutSamplesTheDefault) {
  const DiskChoice choice = disk_choice({}, {.direct = true, .in_flight = {}, .backend = {}});
  EXPECT_EQ(choice.source, "default");
  EXPECT_TRUE(choice.options.direct);
  EXPECT_GT(choice.options.in_flight, 0);
  EXPECT_EQ(choice.bytes_per_second, 0);
  EXPECT_FALSE(disk_choice({}, {}).options.direct);
}

// ---- memory

TEST(DiskMemoryTest, SurvivesARoundTrip) {
  DiskMemory memory;
  memory["259:1"] = {{kThreads, true, 4, 1.312e9}, {kRing, true, 8, 13.7e9}};
  memory["8:0+8:1"] = {{kThreads, false, 1, 0.15e9}};
  const std::string text = disk_memory_text(memory);
  const DiskMemory again = parse_disk_memory(text);
  EXPECT_EQ(disk_memory_text(again), text);
  ASSERT_EQ(again.size(), 2u);
  ASSERT_EQ(again.at("259:1").size(), 2u);
  EXPECT_EQ(again.at("259:1")[1].backend, kRing);
  EXPECT_EQ(again.at("259:1")[1].in_flight, 8);
  EXPECT_DOUBLE_EQ(again.at("259:1")[1].bytes_per_second, 13.7e9);
  EXPECT_FALSE(again.at("8:0+8:1")[0].direct);
}

TEST(DiskMemoryTest, NonsenseIsPassedOver) {
  const DiskMemory memory = parse_disk_memory(
      "threads direct 4 9.0 GB/s\n"  // before any device
      "device 1:2\n"
      "\n"
      "threads direct 4 1.5 GB/s\n"
      "threads direct 4 1.5\n"
      "threads direct 0 1.5 GB/s\n"
      "threads direct 4 -1.5 GB/s\n"
      "threads direct 4 nan GB/s\n"
      "threads sideways 4 1.5 GB/s\n"
      "tape direct 4 1.5 GB/s\n"
      "device\n"
      "threads direct 4 7.0 GB/s\n"
      "device 3:4\n" +
      std::string("\0\xff garbage", 10));
  ASSERT_EQ(memory.size(), 1u);
  ASSERT_EQ(memory.at("1:2").size(), 1u);
  EXPECT_DOUBLE_EQ(memory.at("1:2")[0].bytes_per_second, 1.5e9);
}

// ---- the page cache

TEST(PageCache, WhatWasReadIsCached) {
  Shards shards{{1 << 20}};
  const int fd = ::open(shards.paths[0].c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);
  std::vector<std::byte> bytes(1 << 20);
  ASSERT_EQ(::pread(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  const auto all = cached_bytes(fd, 0, 1 << 20);
  ASSERT_TRUE(all);
  EXPECT_EQ(*all, std::uint64_t{1} << 20);
  ::fsync(fd);  // only clean pages can go
  drop_cached(fd, 0, 1 << 20);
  EXPECT_LE(cached_bytes(fd, 0, 1 << 20).value(), *all);  // a file system in memory keeps them
  ::close(fd);
}

// ---- measuring

class DiskProbe : public testing::Test {
 protected:
  DiskProbe() {
    for (const auto& path : shards.paths) {  // written pages would count as cached
      const int fd = ::open(path.c_str(), O_RDONLY);
      if (fd < 0) {
        cold = false;
        continue;
      }
      ::fsync(fd);
      drop_cached(fd, 0, std::uint64_t{1} << 30);
      const auto cached = cached_bytes(fd, 0, kBytes);
      cold = cold && cached && *cached == 0;
      ::close(fd);
    }
  }
  static constexpr std::size_t kBytes = 80'000'000;
  Shards shards{{kBytes, kBytes}};
  bool cold = true;
};

TEST_F(DiskProbe, MeasuresColdBytesOnceAndRemembers) {
  if (!cold) GTEST_SKIP() << "the folder for temporary files is in memory or keeps its pages";
  const ProbeLimits limits{0.35, 100'000'000, 72};
  const DiskChoice measured = choose_disk_mode(shards.folder.path(), shards.paths, {}, limits);
  EXPECT_EQ(measured.source, "measured");
  EXPECT_EQ(measured.notice, "");
  EXPECT_GT(measured.bytes_per_second, 0);
  ASSERT_TRUE(std::filesystem::exists(shards.folder.path() / ".coli_ssd"));

  const DiskChoice remembered = choose_disk_mode(shards.folder.path(), shards.paths, {}, limits);
  EXPECT_EQ(remembered.source, "remembered");
  EXPECT_EQ(remembered.options.direct, measured.options.direct);
  EXPECT_EQ(remembered.options.in_flight, measured.options.in_flight);
  EXPECT_EQ(remembered.options.backend, measured.options.backend);
  EXPECT_NEAR(remembered.bytes_per_second, measured.bytes_per_second, 1e6);

  // The choice can be opened as it is.
  auto reader = RecordReader::open(shards.paths, remembered.options);
  ASSERT_TRUE(reader) << reader.error().message;

  // Another device's line is left alone and does not answer for this one.
  std::ofstream(shards.folder.path() / ".coli_ssd") << "device 0:0\nthreads direct 1 5.000 GB/s\n";
  EXPECT_EQ(choose_disk_mode(shards.folder.path(), shards.paths, {}, limits).source, "measured");
  const auto text = read_text(shards.folder.path() / ".coli_ssd", 100'000);
  ASSERT_TRUE(text);
  EXPECT_EQ(parse_disk_memory(*text).count("0:0"), 1u);
  EXPECT_EQ(parse_disk_memory(*text).size(), 2u);
}

TEST_F(DiskProbe, LeavesThePageCacheAsItWas) {
  if (!cold) GTEST_SKIP() << "the folder for temporary files is in memory or keeps its pages";
  const auto samples = measure_disk(shards.paths, {0.35, 100'000'000, 0});
  EXPECT_FALSE(samples.empty());
  std::uint64_t cached = 0;
  for (const auto& path : shards.paths) {
    const int fd = ::open(path.c_str(), O_RDONLY);
    cached += cached_bytes(fd, 0, kBytes).value();
    ::close(fd);
  }
  EXPECT_LT(cached, 2 * kBytes / 4) << "what the system read ahead may stay, what was measured goes";
}

TEST_F(DiskProbe, CachedBytesAreNeverMeasured) {
  for (std::size_t i = 0; i < shards.paths.size(); ++i) {
    std::ifstream in(shards.paths[i], std::ios::binary);
    std::vector<char> bytes(kBytes);
    ASSERT_TRUE(in.read(bytes.data(), static_cast<std::streamsize>(bytes.size())));
  }
  EXPECT_TRUE(measure_disk(shards.paths, {}).empty());
  const DiskChoice choice = choose_disk_mode(shards.folder.path(), shards.paths, {}, {});
  EXPECT_EQ(choice.source, "default");
  EXPECT_FALSE(std::filesystem::exists(shards.folder.path() / ".coli_ssd")) << "a guess is not remembered";
}

TEST_F(DiskProbe, AFolderThatCannotBeWrittenIsToldNotFatal) {
  if (!cold) GTEST_SKIP() << "the folder for temporary files is in memory or keeps its pages";
  const std::filesystem::path nowhere = shards.folder.path() / "absent";
  const DiskChoice choice = choose_disk_mode(nowhere, shards.paths, {}, {0.35, 100'000'000, 0});
  EXPECT_EQ(choice.source, "measured");
  EXPECT_NE(choice.notice.find("measured again at every start"), std::string::npos);
}

}  // namespace
}  // namespace colibri::experts_io

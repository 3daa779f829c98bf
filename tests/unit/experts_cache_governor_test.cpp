// How many slots of the arena may be used under memory pressure: decisions on recorded counters, and on a machine in small.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "experts/arena_governor.h"

namespace colibri {
namespace {

constexpr std::uint64_t kMegabyte = 1000000;

// A Mac with 32 GB: a budget of 24 GB, of which 900 slots of 21 MB are the arena.
constexpr ArenaLimits kLimits = {900, 8, 21 * kMegabyte, 24000 * kMegabyte};

// One line of a recording; all but the time in megabytes, the last three counted from the start of the system.
struct Line {
  double seconds;
  std::uint64_t footprint, displaced, compressed, decompressed, swapped_out;
  MemoryPressure pressure;
  std::int64_t slots;  // expected
};
constexpr auto kNormal = MemoryPressure::kNormal, kWarning = MemoryPressure::kWarning, kCritical = MemoryPressure::kCritical;

MemorySample sample_of(const Line& line) {
  return {line.seconds,
          line.footprint * kMegabyte,
          line.displaced * kMegabyte,
          line.compressed * kMegabyte,
          line.decompressed * kMegabyte,
          line.swapped_out * kMegabyte,
          line.pressure};
}

void replay(ArenaGovernor& governor, const std::vector<Line>& recording) {
  for (const Line& line : recording) EXPECT_EQ(governor.update(sample_of(line)), line.slots) << "at " << line.seconds << " s";
}

// The counters of a long uptime are large, idle programs are compressed now and then, a little of this one too.
TEST(ArenaGovernor, ACalmRunKeepsEverySlot) {
  ArenaGovernor governor(kLimits);
  replay(governor, {{100, 22950, 31, 81200, 55010, 9300, kNormal, 900},
                    {101, 23310, 31, 81204, 55010, 9300, kNormal, 900},
                    {102, 23340, 34, 81239, 55012, 9300, kNormal, 900},
                    {103, 23360, 58, 81290, 55013, 9311, kNormal, 900},
                    {104, 23390, 58, 81290, 55047, 9311, kNormal, 900},
                    {109, 24210, 61, 81301, 55047, 9311, kNormal, 900},  // within the 3 % over the budget
                    {110, 23980, 61, 81301, 55049, 9311, kNormal, 900},
                    {140, 23990, 74, 81410, 55090, 9311, kNormal, 900}});
}

// Its memory pushes ours out: a warning, and parts of this process are compressed. Then both have found their place.
TEST(ArenaGovernor, ABrowserOpenedBesideTakesAThird) {
  ArenaGovernor governor(kLimits);
  replay(governor, {{200, 23380, 40, 90000, 60000, 9400, kNormal, 900},
                    {201, 23380, 44, 90110, 60008, 9400, kNormal, 900},
                    {202, 23385, 190, 90700, 60030, 9400, kNormal, 900},   // little of ours so far
                    {203, 23390, 460, 91400, 60110, 9400, kNormal, 880},   // 420 MB in all
                    {204, 22990, 470, 91900, 60160, 9400, kWarning, 770},  // an eighth
                    {205, 20660, 480, 92010, 60170, 9404, kWarning, 770},  // to be felt first
                    {208, 20650, 480, 92030, 60230, 9404, kWarning, 770},
                    {209, 20650, 481, 92040, 60240, 9404, kWarning, 673},
                    {210, 18610, 481, 92044, 60241, 9404, kNormal, 673},
                    {218, 18610, 470, 92051, 60260, 9404, kNormal, 673},  // calm, but not for long enough
                    {220, 18610, 470, 92053, 60262, 9404, kNormal, 729},
                    {221, 18790, 470, 92053, 60262, 9404, kNormal, 729},
                    {230, 19790, 470, 92060, 60280, 9404, kNormal, 785},
                    {231, 19990, 478, 92160, 60285, 9404, kWarning, 686},  // too much, so 785 are tried again later
                    {232, 18900, 478, 92161, 60285, 9404, kNormal, 686},
                    {240, 18900, 478, 92170, 60290, 9404, kNormal, 686},
                    {241, 18900, 478, 92170, 60290, 9404, kNormal, 742},
                    {260, 19980, 478, 92190, 60310, 9404, kNormal, 742},
                    {261, 19980, 478, 92190, 60310, 9404, kNormal, 798},
                    {320, 20120, 478, 92190, 60310, 9404, kNormal, 798},
                    {321, 20120, 478, 92190, 60310, 9404, kNormal, 854},
                    {331, 21310, 478, 92190, 60310, 9404, kNormal, 900}});
}

// The disk takes what the compressor cannot hold: a quarter every five seconds, down to what a run needs.
TEST(ArenaGovernor, ASwapStormEmptiesTheArenaAndItRecovers) {
  ArenaGovernor governor(kLimits);
  replay(governor, {{300, 23400, 90, 99000, 70000, 9500, kNormal, 900},
                    {301, 23400, 95, 99900, 70300, 9560, kNormal, 675},  // 57 MiB/s before any level says so
                    {302, 18700, 120, 100900, 70900, 9740, kWarning, 675},
                    {306, 18690, 150, 104500, 73800, 10600, kCritical, 506},
                    {311, 15150, 150, 108000, 76100, 11700, kCritical, 379},
                    {316, 12480, 150, 109900, 77000, 12300, kCritical, 284},
                    {321, 10490, 150, 110100, 77400, 12320, kCritical, 213},
                    {322, 9000, 150, 110110, 77410, 12321, kNormal, 213}});
  MemorySample calm = sample_of({322, 9000, 150, 110110, 77410, 12321, kNormal, 0});
  std::int64_t before = governor.slots();
  for (int second = 1; second <= 200; ++second) {
    calm.seconds += 1;
    calm.footprint = (9000 - 213 * 21 + static_cast<std::uint64_t>(before) * 21) * kMegabyte;
    calm.compressed += 4 * kMegabyte;
    const std::int64_t now = governor.update(calm);
    EXPECT_GE(now, before);
    EXPECT_LE(now - before, 56);
    before = now;
    EXPECT_LE(now, 213 + 56 * ((second + 9) / 10)) << "slowly";
  }
  EXPECT_EQ(before, 900);
}

TEST(ArenaGovernor, WhatIsOverTheBudgetIsGivenUpExactly) {
  ArenaGovernor governor(kLimits);
  replay(governor, {{1, 25000, 0, 0, 0, 0, kNormal, 852},  // 1000 MB are 47.6 slots
                    {2, 23990, 0, 0, 0, 0, kNormal, 852},
                    {30, 23990, 0, 0, 0, 0, kNormal, 852},  // no room for another
                    {31, 23950, 0, 0, 0, 0, kNormal, 854},  // for two
                    {32, 99000, 0, 0, 0, 0, kNormal, 8}});  // whatever it is, it is not the arena
}

// A warning that lasts for hours costs half of the arena, not all of it.
TEST(ArenaGovernor, AWarningTakesHalfAtMost) {
  ArenaGovernor governor(kLimits);
  MemorySample sample = sample_of({0, 12000, 0, 0, 0, 0, kWarning, 0});
  for (; sample.seconds < 7200; sample.seconds += 1) EXPECT_GE(governor.update(sample), 450);
  EXPECT_EQ(governor.slots(), 450);
  sample.pressure = kCritical;
  for (int i = 0; i < 200; ++i, sample.seconds += 1) governor.update(sample);
  EXPECT_EQ(governor.slots(), 8);
}

// 300 MB of the process, too little to be answered, were compressed for good. That does not keep the slots away.
TEST(ArenaGovernor, WhatStaysCompressedIsNoUnrest) {
  ArenaGovernor governor(kLimits);
  replay(governor, {{1, 23000, 20, 0, 0, 0, kNormal, 900},
                    {2, 23000, 320, 0, 0, 0, kCritical, 675},
                    {3, 18300, 320, 0, 0, 0, kNormal, 675},
                    {12, 18300, 320, 0, 0, 0, kNormal, 731},
                    {22, 19500, 320, 0, 0, 0, kNormal, 787},
                    {23, 20600, 410, 0, 0, 0, kNormal, 768}});  // with 90 MB more it is enough
}

// A machine in small: the level follows from what this process and the others take together.
struct Machine {
  std::int64_t total, others;
  MemorySample sample(double now, std::int64_t slots) const {
    const std::int64_t ours = 4000 + slots * 21, all = ours + others;
    MemorySample s;
    s.seconds = now;
    s.footprint = static_cast<std::uint64_t>(ours) * kMegabyte;
    s.pressure = all > total * 98 / 100 ? kCritical : all > total * 92 / 100 ? kWarning : kNormal;
    return s;
  }
};

TEST(ArenaGovernor, FindsItsPlaceBesideOthersWithoutSwinging) {
  for (const std::int64_t others : {1000, 6000, 8000, 12000, 16000, 20000}) {
    const Machine machine{32000, others};
    ArenaGovernor governor(kLimits);
    std::int64_t before = kLimits.slots;
    int turns = 0, late_turns = 0;  // growing that had to be taken back
    bool grew = false;
    for (double now = 0; now < 7200; now += 1) {
      const std::int64_t slots = governor.update(machine.sample(now, before));
      if (slots < before && grew) {
        ++turns;
        late_turns += now >= 3600;
      }
      if (slots != before) grew = slots > before;
      before = slots;
    }
    EXPECT_LE(turns, 16) << others;
    EXPECT_LE(late_turns, 6) << others << ": in the second hour";
    // What is free is used, what is not is not.
    const std::int64_t fits = (machine.total * 92 / 100 - others - 4000) / 21;
    EXPECT_GE(before, std::min(kLimits.slots, fits) * 3 / 4) << others;
    EXPECT_LE(before, std::max<std::int64_t>(fits * 9 / 8, kLimits.slots / 2)) << others;
  }
}

MemorySample random_sample(std::mt19937& random, const MemorySample& before) {
  const auto up_to = [&](std::uint64_t megabytes) { return random() % (megabytes + 1) * kMegabyte; };
  MemorySample s = before;
  s.seconds += 1 + random() % 8;
  s.footprint = up_to(26000);
  s.displaced = random() % 4 == 0 ? up_to(3000) : before.displaced;
  if (random() % 3 == 0) s.compressed += up_to(2000);
  if (random() % 3 == 0) s.decompressed += up_to(2000);
  if (random() % 5 == 0) s.swapped_out += up_to(400);
  s.pressure = static_cast<MemoryPressure>(random() % 8 < 5 ? 0 : random() % 3);
  return s;
}

// Whatever happened before: one sign more never leaves more slots, and the bounds hold.
TEST(ArenaGovernor, MorePressureNeverLeavesMoreSlots) {
  std::mt19937 random(7);
  for (int run = 0; run < 300; ++run) {
    ArenaGovernor governor(kLimits);
    MemorySample sample;
    for (int step = 0; step < 60; ++step) {
      sample = random_sample(random, sample);
      MemorySample worse = sample;
      switch (random() % 5) {
        case 0: worse.footprint += random() % 3000 * kMegabyte; break;
        case 1: worse.displaced += random() % 3000 * kMegabyte; break;
        case 2: worse.swapped_out += random() % 900 * kMegabyte; break;
        case 3:
          worse.compressed += random() % 3000 * kMegabyte;
          worse.decompressed += random() % 3000 * kMegabyte;
          break;
        default: worse.pressure = MemoryPressure::kCritical;
      }
      ArenaGovernor other = governor;
      const std::int64_t slots = governor.update(sample);
      EXPECT_LE(other.update(worse), slots) << run << ", " << step;
      EXPECT_GE(slots, kLimits.least);
      EXPECT_LE(slots, kLimits.slots);
    }
  }
}

TEST(ArenaGovernor, ThisSystemGivesSamples) {
  const auto sample = sample_memory();
  ASSERT_TRUE(sample);
  EXPECT_GT(sample->footprint, 1u << 16);
  EXPECT_GE(sample->footprint, sample->displaced);
  std::vector<char> more(64 << 20, 1);
  const auto later = sample_memory();
  ASSERT_TRUE(later);
  EXPECT_GE(later->footprint + (1 << 20), sample->footprint + more.size());
  EXPECT_GE(later->seconds, sample->seconds);
  const MemorySamples rare = memory_samples(3600);
  EXPECT_TRUE(rare());
  EXPECT_FALSE(rare()) << "the interval has not passed";
}

}  // namespace
}  // namespace colibri

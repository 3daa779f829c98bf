// The thread team and aligned memory.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "base/aligned.h"
#include "base/fp_mode.h"
#include "base/thread_team.h"

namespace colibri {
namespace {

TEST(ThreadTeam, RunsEveryIndexOnce) {
  for (const int size : {1, 2, 3, 8}) {
    for (const WaitMode wait : {WaitMode::kAdaptive, WaitMode::kBlock}) {
      ThreadTeam team(size, wait);
      for (const std::int64_t count : {0, 1, 2, 7, 64, 1000}) {
        for (const std::int64_t grain : {1, 3, 64}) {
          std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
          std::atomic<bool> bad_worker{false};
          team.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, int worker) {
            if (worker < 0 || worker >= size) bad_worker = true;
            for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
          });
          EXPECT_FALSE(bad_worker);
          for (const auto& n : seen) ASSERT_EQ(n.load(), 1);
        }
      }
    }
  }
}

TEST(ThreadTeam, ManyShortLoops) {
  ThreadTeam team(3);
  std::atomic<std::int64_t> sum{0};
  for (int i = 0; i < 5000; ++i) team.parallel_for(3, 1, [&](std::int64_t begin, std::int64_t, int) { sum += begin; });
  EXPECT_EQ(sum.load(), 5000 * 3);
}

TEST(ThreadTeam, FlushesDenormalsInsideAndRestoresOutside) {
  ThreadTeam team(3);
  const volatile float tiny = 1e-38f;
  std::atomic<int> kept{0};
  team.parallel_for(64, 1, [&](std::int64_t, std::int64_t, int) {
    if (tiny * 0.1f != 0.0f) ++kept;
  });
  EXPECT_EQ(kept.load(), 0);
  EXPECT_NE(tiny * 0.1f, 0.0f);
}

TEST(AlignedBytes, AlignedZeroedAndMovable) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{5} << 20}) {
    AlignedBytes a(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % kWeightAlignment, 0u);
    for (std::size_t i = 0; i < bytes + kReadSlack; i += 61) ASSERT_EQ(a.data()[i], std::byte{0});
    std::byte* p = a.data();
    AlignedBytes b = std::move(a);
    EXPECT_EQ(b.data(), p);
    EXPECT_EQ(a.data(), nullptr);
  }
}

}  // namespace
}  // namespace colibri

#include <cstdint>
#include <vector>

#include "gpu/kernels/probe.h"
#include "gpu_test_support.h"

namespace colibri::gpu::test {
namespace {

class GpuDevice : public GpuTest {};

TEST_F(GpuDevice, RunsTheProbe) {
  DeviceArena arena(device(), 1 << 20);
  constexpr std::uint32_t kWords = 4096 * 4, kThreads = 1000;
  const auto data = arena.block<std::uint32_t>(kWords);
  const auto out = arena.block<std::uint32_t>(kThreads);
  for (std::uint32_t i = 0; i < kWords; ++i) data[i] = i * 2654435761u;
  run([&](Encoder& encoder) {
    ProbeArgs args{};
    args.data = arena.at(data);
    args.out = arena.at(out);
    args.words = kWords;
    args.threads = kThreads;
    encoder.dispatch({"probe", "probe_read"}, args, {(kThreads + 63) / 64, 1, 1}, 64);
  });
  EXPECT_TRUE(arena.guards_hold());
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    std::uint32_t sum = 0;
    for (std::uint32_t i = t; i < kWords / 4; i += kThreads)
      sum += data[4 * i] + data[4 * i + 1] + data[4 * i + 2] + data[4 * i + 3];
    ASSERT_EQ(out[t], sum) << t;
  }
}

}  // namespace
}  // namespace colibri::gpu::test

#include <cstdint>
#include <vector>

#include "gpu/encoder.h"
#include "gpu/gpu_test.h"
#include "gpu/kernels/probe.h"

namespace colibri::gpu {
namespace {

TEST(GpuDevice, RunsTheProbe) {
  const auto device = test_device();
  ASSERT_NE(device, nullptr);
  Slab slab(*device, 1 << 20);
  auto* data = slab.as<std::uint32_t>();
  constexpr std::uint32_t kWords = 4096 * 4, kThreads = 1000;
  for (std::uint32_t i = 0; i < kWords; ++i) data[i] = i * 2654435761u;
  std::uint32_t* out = data + kWords;
  KernelSet kernels(*device);
  EncoderCounts counts;
  Encoder encoder(kernels, counts);
  ProbeArgs args{};
  args.data = encoder.address(data);
  args.out = encoder.address(out);
  args.words = kWords;
  args.threads = kThreads;
  encoder.dispatch({"probe", "probe_read"}, args, {(kThreads + 63) / 64, 1, 1}, 64);
  auto commands = encoder.commit();
  ASSERT_TRUE(commands.has_value()) << commands.error().message;
  const Completion& done = (*commands)->wait();
  EXPECT_EQ(done.fault, Fault::kNone) << done.message;
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    std::uint32_t sum = 0;
    for (std::uint32_t i = t; i < kWords / 4; i += kThreads)
      sum += data[4 * i] + data[4 * i + 1] + data[4 * i + 2] + data[4 * i + 3];
    ASSERT_EQ(out[t], sum) << t;
  }
}

}  // namespace
}  // namespace colibri::gpu

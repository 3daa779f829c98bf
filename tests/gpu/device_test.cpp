// The device layer: regions and addresses, compiling, order between dispatches and between command buffers, arguments, times,
// and what a fault looks like from above.
#include "gpu/device.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/aligned.h"

#ifndef __APPLE__
#include <dlfcn.h>

#include "softmetal/soft_metal.h"
#endif

namespace colibri::gpu {
namespace {

struct StepArgs {
  Address out = 0, in = 0;
  std::uint32_t count = 0, first_group = 0;
};

constexpr std::size_t kAlignment = static_cast<std::size_t>(kRegionAlignment);

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef __APPLE__
    auto device = open_metal();
#else
    ::setenv("COLI_SOFT_METAL", COLIBRI_SOFT_METAL_TEST_LIBRARY, 1);
    auto device = open_software_metal();
#endif
    ASSERT_TRUE(device) << device.error().message;
    device_ = std::move(*device);
    std::ifstream file(COLIBRI_SOURCE_DIR "/tests/gpu/kernels/device_test.metal");
    text_.assign(std::istreambuf_iterator<char>(file), {});
    auto library = device_->compile("device_test", text_);
    ASSERT_TRUE(library) << library.error().message;
    library_ = std::move(*library);
    ASSERT_TRUE(device_->register_region(memory_.data(), memory_.size()));
  }

  std::uint32_t* words(std::size_t offset = 0) { return reinterpret_cast<std::uint32_t*>(memory_.data()) + offset; }

  std::unique_ptr<Kernel> kernel(const std::string& function, const std::vector<std::uint32_t>& constants = {}) {
    auto k = library_->kernel(function, constants);
    EXPECT_TRUE(k) << k.error().message;
    return k ? std::move(*k) : nullptr;
  }
  std::unique_ptr<Commands> begin() {
    auto c = device_->begin();
    EXPECT_TRUE(c) << c.error().message;
    return c ? std::move(*c) : nullptr;
  }
  // Enough threadgroups of `threads` for `count` words.
  void encode(Commands& commands, const Kernel& k, const std::uint32_t* in, std::uint32_t* out, std::uint32_t count,
              std::uint32_t threads = 64, std::uint32_t threadgroup_bytes = 0) {
    const StepArgs a{device_->address(out), device_->address(in), count, 0};
    Dispatch d;
    d.kernel = &k;
    d.args = std::as_bytes(std::span(&a, 1));
    d.groups = {(count + threads - 1) / threads, 1, 1};
    d.threads = threads;
    d.threadgroup_bytes = threadgroup_bytes;
    commands.dispatch(d);
  }
  Completion finish(Commands& commands) {
    commands.commit();
    return commands.wait();
  }

  AlignedBytes memory_{64 * kRegionAlignment, kAlignment};
  std::string text_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Library> library_;
};

TEST_F(DeviceTest, SaysWhatItIs) {
  const DeviceInfo& info = device_->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_EQ(info.api, "Metal");
  EXPECT_GE(info.longest_buffer, memory_.size());
  EXPECT_EQ(info.longest_buffer % kRegionAlignment, 0u);
  EXPECT_GT(info.working_set, 0u);
  EXPECT_GE(info.threadgroup_bytes, 32768u);
  EXPECT_EQ(device_->memory().total, info.working_set);
#ifndef __APPLE__
  EXPECT_TRUE(info.software);
#endif
}

TEST_F(DeviceTest, RegionsHaveAddresses) {
  AlignedBytes other(4 * kRegionAlignment, kAlignment);
  std::byte* base = other.data();
  EXPECT_EQ(device_->address(base), 0u);
  const std::uint64_t used = device_->memory().used;
  ASSERT_TRUE(device_->register_region(base, 2 * kRegionAlignment));
  EXPECT_GE(device_->memory().used, used + 2 * kRegionAlignment);
  const Address first = device_->address(base);
  EXPECT_NE(first, 0u);
  EXPECT_EQ(device_->address(base + 12345), first + 12345);
  EXPECT_EQ(device_->address(base + 2 * kRegionAlignment), 0u);
  EXPECT_EQ(device_->residency().allocations, 2u);
  EXPECT_EQ(device_->residency().bytes, memory_.size() + 2 * kRegionAlignment);

  EXPECT_FALSE(device_->register_region(base, 2 * kRegionAlignment)) << "registered twice";
  EXPECT_FALSE(device_->register_region(base + kRegionAlignment, kRegionAlignment)) << "overlaps";
  EXPECT_FALSE(device_->register_region(base + 2 * kRegionAlignment + 64, kRegionAlignment)) << "unaligned";
  EXPECT_FALSE(device_->register_region(base + 2 * kRegionAlignment, kRegionAlignment / 2)) << "half a page";
  EXPECT_FALSE(device_->unregister_region(base + kRegionAlignment)) << "not as it was registered";
  ASSERT_TRUE(device_->unregister_region(base));
  EXPECT_FALSE(device_->unregister_region(base)) << "unregistered twice";
  EXPECT_EQ(device_->address(base), 0u);
  EXPECT_EQ(device_->memory().used, used);
}

TEST_F(DeviceTest, CompileErrorsCarryTheCompilersText) {
  const auto library = device_->compile("wrong", text_ + "\nkernel void broken() { undeclared = 1; }\n");
  ASSERT_FALSE(library);
  EXPECT_NE(library.error().message.find("'wrong'"), std::string::npos) << library.error().message;
  EXPECT_NE(library.error().message.find("error"), std::string::npos) << library.error().message;
  EXPECT_FALSE(library_->kernel("no_such_kernel", {}));
  EXPECT_FALSE(library_->kernel("step_on", {})) << "its constants are missing";
}

TEST_F(DeviceTest, ConstantsSpecialise) {
  const auto a = kernel("step_on", {3, 10}), b = kernel("step_on", {5, 1});
  ASSERT_TRUE(a && b);
  for (std::uint32_t i = 0; i < 100; ++i) words()[i] = i;
  const auto commands = begin();
  encode(*commands, *a, words(), words(1000), 100);
  encode(*commands, *b, words(), words(2000), 100);
  EXPECT_EQ(finish(*commands).fault, Fault::kNone);
  for (std::uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(words(1000)[i], 3 * i + 10);
    EXPECT_EQ(words(2000)[i], 5 * i + 1);
  }
  EXPECT_EQ(words(1000)[100], 0u) << "past the count";
}

TEST_F(DeviceTest, DispatchesAfterABarrierSeeWhatCameBefore) {
  constexpr std::uint32_t kCount = 4096, kSteps = 40;
  const auto step = kernel("step_on", {3, 1});
  ASSERT_TRUE(step);
  for (std::uint32_t i = 0; i < kCount; ++i) words()[i] = i;
  const auto commands = begin();
  for (std::uint32_t s = 0; s < kSteps; ++s) {
    if (s != 0) commands->barrier();
    encode(*commands, *step, words((s % 2) * kCount), words((1 - s % 2) * kCount), kCount);
  }
  EXPECT_EQ(finish(*commands).fault, Fault::kNone);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    std::uint32_t expected = i;
    for (std::uint32_t s = 0; s < kSteps; ++s) expected = expected * 3 + 1;
    ASSERT_EQ(words()[i], expected) << i;
  }
}

TEST_F(DeviceTest, CommandBuffersRunInTheirOrder) {
  constexpr std::uint32_t kCount = 1000, kBuffers = 30;
  const auto step = kernel("step_on", {3, 1});
  ASSERT_TRUE(step);
  for (std::uint32_t i = 0; i < kCount; ++i) words()[i] = i;
  std::vector<std::unique_ptr<Commands>> all;
  for (std::uint32_t s = 0; s < kBuffers; ++s) {
    all.push_back(begin());
    encode(*all.back(), *step, words((s % 2) * kCount), words((1 - s % 2) * kCount), kCount);
    all.back()->commit();
  }
  EXPECT_EQ(all.back()->wait().fault, Fault::kNone);
  for (const auto& c : all) EXPECT_TRUE(c->done());
  for (std::uint32_t i = 0; i < kCount; ++i) {
    std::uint32_t expected = i;
    for (std::uint32_t s = 0; s < kBuffers; ++s) expected = expected * 3 + 1;
    ASSERT_EQ(words()[i], expected) << i;
  }
}

TEST_F(DeviceTest, ThreadgroupMemoryOfAnyLength) {
  const auto reverse = kernel("reverse");
  ASSERT_TRUE(reverse);
  constexpr std::uint32_t kCount = 4096;
  for (std::uint32_t i = 0; i < kCount; ++i) words()[i] = i;
  const auto commands = begin();
  std::uint32_t at = kCount;
  for (const std::uint32_t threads : {1024u, 32u, 256u}) {
    encode(*commands, *reverse, words(), words(at), kCount, threads, 4 * threads);
    at += kCount;
  }
  EXPECT_EQ(finish(*commands).fault, Fault::kNone);
  at = kCount;
  for (const std::uint32_t threads : {1024u, 32u, 256u}) {
    for (std::uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(words(at)[i], i / threads * threads + threads - 1 - i % threads);
    at += kCount;
  }
}

TEST_F(DeviceTest, GridsHaveThreeDirections) {
  const auto positions = kernel("positions");
  ASSERT_TRUE(positions);
  const StepArgs a{device_->address(words()), 0, 0, 0};
  const auto commands = begin();
  Dispatch d;
  d.kernel = positions.get();
  d.args = std::as_bytes(std::span(&a, 1));
  d.groups = {5, 3, 2};
  d.threads = 96;
  commands->dispatch(d);
  EXPECT_EQ(finish(*commands).fault, Fault::kNone);
  for (std::uint32_t i = 0; i < 5 * 3 * 2 * 96; ++i) ASSERT_EQ(words()[i], i + 1);
}

TEST_F(DeviceTest, LongestArguments) {
  const auto step = kernel("step_on", {1, 7});
  ASSERT_TRUE(step);
  std::array<std::byte, kMaxArgsBytes> bytes{};
  const StepArgs a{device_->address(words(64)), device_->address(words()), 64, 0};
  std::memcpy(bytes.data(), &a, sizeof a);
  const auto commands = begin();
  Dispatch d;
  d.kernel = step.get();
  d.args = bytes;
  d.threads = 64;
  commands->dispatch(d);
  bytes.fill(std::byte{0});  // they were copied
  EXPECT_EQ(finish(*commands).fault, Fault::kNone);
  for (std::uint32_t i = 0; i < 64; ++i) EXPECT_EQ(words(64)[i], 7u);
}

TEST_F(DeviceTest, SimdgroupsHave32Lanes) {
  const auto simd = kernel("simd_operations");
  ASSERT_TRUE(simd);
  const auto commands = begin();
  encode(*commands, *simd, words(), words(), 128, 128);
  EXPECT_EQ(finish(*commands).fault, Fault::kNone);
  for (std::uint32_t t = 0; t < 128; ++t) {
    const std::uint32_t s = t / 32, l = t % 32, *out = words(8 * t);
    EXPECT_EQ(out[0], 32 * 1000 * s + 31 * 16);
    EXPECT_EQ(out[1], 1000 * s + 31);
    EXPECT_EQ(out[2], 1000 * s + (l ^ 5));
    EXPECT_EQ(out[3], l < 28 ? 1000 * s + l + 4 : 0);
    EXPECT_EQ(out[4], l * 1000 * s + l * (l - 1) / 2);
    EXPECT_EQ(out[5], 1000 * s + 9);
    EXPECT_EQ(out[6], 1u);
    EXPECT_EQ(out[7], 0u);
  }
}

TEST_F(DeviceTest, ArithmeticIsTheContracts) {
  const auto arithmetic = kernel("arithmetic");
  ASSERT_TRUE(arithmetic);
  const auto compute = [&](float x, float y, float z) {
    words()[0] = std::bit_cast<std::uint32_t>(x);
    words()[1] = std::bit_cast<std::uint32_t>(y);
    words()[2] = std::bit_cast<std::uint32_t>(z);
    const auto commands = begin();
    encode(*commands, *arithmetic, words(), words(16), 32, 32);
    EXPECT_EQ(finish(*commands).fault, Fault::kNone);
    std::array<float, 5> r{};
    for (std::size_t i = 0; i < r.size(); ++i) r[i] = std::bit_cast<float>(words(16)[i]);
    return r;
  };
  const float x = 1.0000001f, y = 0.9999999f;
  auto r = compute(x, y, -1.0f);
  EXPECT_EQ(r[1], x * y + -1.0f);
  EXPECT_EQ(r[2], std::fma(x, y, -1.0f));
  EXPECT_NE(r[1], r[2]) << "the compiler contracts";
  EXPECT_EQ(r[3], x / y);
  EXPECT_EQ(r[4], std::sqrt(x));
  r = compute(1e-30f, 1e-12f, 1.0f);
  EXPECT_EQ(r[0], 0.0f) << "subnormals count as zero";
  r = compute(3.0f, 7.0f, 0.0f);
  EXPECT_EQ(r[3], 3.0f / 7.0f);
  EXPECT_EQ(r[4], std::sqrt(3.0f));
}

TEST_F(DeviceTest, TimesAreTheGpus) {
  const auto step = kernel("step_on", {3, 1});
  ASSERT_TRUE(step);
  const auto commands = begin();
  for (int i = 0; i < 8; ++i) {
    encode(*commands, *step, words(), words(4096), 4096);
    commands->barrier();
  }
  const Completion end = finish(*commands);
  EXPECT_GT(end.gpu_seconds, 0.0);
  EXPECT_EQ(&commands->wait(), &commands->wait()) << "a second wait only answers";
}

TEST_F(DeviceTest, CommandsMayBeDroppedOrLeftToRun) {
  const auto step = kernel("step_on", {1, 5});
  ASSERT_TRUE(step);
  {
    const auto dropped = begin();
    encode(*dropped, *step, words(), words(100), 100);
  }
  EXPECT_EQ(words(100)[0], 0u);
  {
    const auto left = begin();
    encode(*left, *step, words(), words(100), 100);
    left->commit();
  }
  EXPECT_EQ(words(100)[0], 5u);
}

TEST_F(DeviceTest, UnregisterWaitsForWorkInFlight) {
  const auto step = kernel("step_on", {3, 1});
  ASSERT_TRUE(step);
  auto other = std::make_unique<AlignedBytes>(16 * kRegionAlignment, kAlignment);
  auto* out = reinterpret_cast<std::uint32_t*>(other->data());
  ASSERT_TRUE(device_->register_region(other->data(), other->size()));
  const auto commands = begin();
  for (int i = 0; i < 20; ++i) {
    encode(*commands, *step, words(), out, 40000);
    commands->barrier();
  }
  commands->commit();
  ASSERT_TRUE(device_->unregister_region(other->data()));
  EXPECT_TRUE(commands->done());
  EXPECT_EQ(out[39999], 1u);
  other.reset();
  EXPECT_EQ(commands->wait().fault, Fault::kNone);
}

#ifndef __APPLE__

class FaultTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    void* library = ::dlopen(COLIBRI_SOFT_METAL_TEST_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << ::dlerror();
    arm = reinterpret_cast<decltype(arm)>(::dlsym(library, "soft_metal_arm"));
    disarm = reinterpret_cast<decltype(disarm)>(::dlsym(library, "soft_metal_disarm"));
    counters = reinterpret_cast<decltype(counters)>(::dlsym(library, "soft_metal_counters"));
    ASSERT_TRUE(arm != nullptr && disarm != nullptr && counters != nullptr);
  }
  void TearDown() override {
    if (disarm != nullptr) disarm();
  }

  decltype(&soft_metal_arm) arm = nullptr;
  decltype(&soft_metal_disarm) disarm = nullptr;
  decltype(&soft_metal_counters) counters = nullptr;
};

TEST_F(FaultTest, OfACommandBuffer) {
  const auto step = kernel("step_on", {1, 1});
  ASSERT_TRUE(step);
  constexpr std::pair<SoftMetalFault, Fault> kFaults[] = {{kSoftMetalError, Fault::kError},
                                                          {kSoftMetalTimeout, Fault::kTimeout},
                                                          {kSoftMetalMemory, Fault::kMemory},
                                                          {kSoftMetalResidency, Fault::kResidency}};
  for (const auto& [injected, seen] : kFaults) {
    arm(injected, 1, 2);
    std::vector<Fault> ends;
    for (int i = 0; i < 4; ++i) {
      const auto commands = begin();
      encode(*commands, *step, words(), words(100), 100);
      const Completion end = finish(*commands);
      ends.push_back(end.fault);
      EXPECT_EQ(end.message.empty(), end.fault == Fault::kNone) << end.message;
    }
    EXPECT_EQ(ends, (std::vector{Fault::kNone, seen, seen, Fault::kNone})) << fault_name(seen);
  }
}

TEST_F(FaultTest, WorkOfAFailedCommandBufferIsPartial) {
  const auto step = kernel("step_on", {1, 1});
  ASSERT_TRUE(step);
  arm(kSoftMetalError, 0, 1);
  const auto commands = begin();
  for (std::size_t i = 0; i < 4; ++i) {
    encode(*commands, *step, words(i * 100), words((i + 1) * 100), 100);
    commands->barrier();
  }
  EXPECT_EQ(finish(*commands).fault, Fault::kError);
  EXPECT_EQ(words(200)[0], 2u);
  EXPECT_EQ(words(300)[0], 0u);
}

TEST_F(FaultTest, OfCompiling) {
  arm(kSoftMetalCompile, 0, 1);
  const auto failed = device_->compile("device_test", text_);
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("'device_test' do not compile"), std::string::npos) << failed.error().message;
  EXPECT_TRUE(device_->compile("device_test", text_));
}

TEST_F(FaultTest, OfRegistering) {
  AlignedBytes other(kRegionAlignment, kAlignment);
  arm(kSoftMetalAllocation, 0, 1);
  const auto refused = device_->register_region(other.data(), other.size());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("refused 16384 bytes"), std::string::npos) << refused.error().message;
  EXPECT_EQ(device_->address(other.data()), 0u);
  EXPECT_TRUE(device_->register_region(other.data(), other.size()));
  EXPECT_TRUE(device_->unregister_region(other.data()));
}

// Without a residency set memory is declared encoder by encoder, as before macOS 15; the results are the same.
TEST_F(FaultTest, OfTheResidencySet) {
  EXPECT_TRUE(device_->info().residency_set);
  library_.reset();
  device_.reset();
  arm(kSoftMetalResidencySet, 0, 1);
  SetUp();
  EXPECT_FALSE(device_->info().residency_set);
  const auto step = kernel("step_on", {1, 1});
  ASSERT_TRUE(step);
  const auto commands = begin();
  encode(*commands, *step, words(), words(100), 100);
  EXPECT_EQ(finish(*commands).fault, Fault::kNone);
  EXPECT_EQ(words(100)[99], 1u);
  EXPECT_EQ(device_->residency().flushes, 0u);
}

TEST_F(FaultTest, ResidencyIsFlushedOnce) {
  const auto step = kernel("step_on", {1, 1});
  ASSERT_TRUE(step);
  for (int i = 0; i < 3; ++i) {
    const auto commands = begin();
    encode(*commands, *step, words(), words(100), 100);
    EXPECT_EQ(finish(*commands).fault, Fault::kNone);
  }
  EXPECT_EQ(device_->residency().flushes, 1u);
}

TEST_F(FaultTest, CountersCountWhatRan) {
  const auto reverse = kernel("reverse");
  ASSERT_TRUE(reverse);
  SoftMetalCounters before{}, after{};
  counters(&before);
  const auto commands = begin();
  encode(*commands, *reverse, words(), words(4096), 4096, 256, 1024);
  finish(*commands);
  counters(&after);
  EXPECT_EQ(after.command_buffers - before.command_buffers, 1u);
  EXPECT_EQ(after.dispatches - before.dispatches, 1u);
  EXPECT_EQ(after.threadgroups - before.threadgroups, 16u);
  EXPECT_EQ(after.threads - before.threads, 4096u);
  EXPECT_EQ(after.barriers - before.barriers, 4096u);
}

TEST(SoftwareMetal, SaysWhatIsMissing) {
  ::setenv("COLI_SOFT_METAL", "/nowhere/libcolibri_softmetal.so", 1);
  const auto device = open_software_metal();
  ASSERT_FALSE(device);
  EXPECT_NE(device.error().message.find("cannot be loaded"), std::string::npos) << device.error().message;
  const auto metal = open_metal();
  ASSERT_FALSE(metal);
  EXPECT_NE(metal.error().message.find("needs macOS"), std::string::npos);
}

#endif

}  // namespace
}  // namespace colibri::gpu

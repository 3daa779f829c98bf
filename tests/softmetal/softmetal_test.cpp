// That the software Metal device notices what it is there to notice: mistakes in kernels and wrong uses of Metal.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "gpu/device.h"
#include "softmetal/soft_metal.h"

namespace colibri::gpu {
namespace {

constexpr std::uint32_t kThreads = 64;

struct MistakeArgs {
  Address out = 0, in = 0;
  std::uint32_t count = 0, first_group = 0;
};

template <class F>
F* symbol(const char* name) {
  static void* const library = ::dlopen(COLIBRI_SOFT_METAL_TEST_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  auto* f = library != nullptr ? reinterpret_cast<F*>(::dlsym(library, name)) : nullptr;
  if (f == nullptr) {
    ADD_FAILURE() << ::dlerror();
    std::abort();
  }
  return f;
}

class SoftMetal : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // the device has threads of its own
    ::setenv("COLI_SOFT_METAL", COLIBRI_SOFT_METAL_TEST_LIBRARY, 1);
    open();
  }
  void open() {
    auto device = open_software_metal();
    ASSERT_TRUE(device) << device.error().message;
    device_ = std::move(*device);
    std::ifstream file(COLIBRI_SOURCE_DIR "/tests/softmetal/negative/mistakes.metal");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    auto library = device_->compile("mistakes", text);
    ASSERT_TRUE(library) << library.error().message;
    library_ = std::move(*library);
    ASSERT_TRUE(device_->register_region(memory_.data(), memory_.size()));
    for (std::uint32_t i = 0; i < kThreads; ++i) in()[i] = i + 1;
    args_.in = device_->address(in());
    args_.out = device_->address(out());
  }
  std::uint32_t* in() { return reinterpret_cast<std::uint32_t*>(memory_.data()); }
  std::uint32_t* out() { return in() + 1024; }

  // Runs one threadgroup of kThreads.
  void run(const char* function, std::uint32_t threadgroup_bytes = 0, Grid groups = {}) {
    auto kernel = library_->kernel(function, {});
    ASSERT_TRUE(kernel) << kernel.error().message;
    auto commands = device_->begin();
    ASSERT_TRUE(commands) << commands.error().message;
    Dispatch d;
    d.kernel = kernel->get();
    d.args = std::as_bytes(std::span(&args_, 1));
    d.threads = kThreads;
    d.threadgroup_bytes = threadgroup_bytes;
    d.groups = groups;
    (*commands)->dispatch(d);
    (*commands)->commit();
    const Completion& end = (*commands)->wait();
    ASSERT_EQ(end.fault, Fault::kNone) << end.message;
  }

  AlignedBytes memory_{2 * kRegionAlignment, static_cast<std::size_t>(kRegionAlignment)};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Library> library_;
  MistakeArgs args_;
};

using SoftMetalDeathTest = SoftMetal;

// How many of 16 schedules give what the kernel was meant to compute.
template <class Run>
int right_schedules(const std::uint32_t* out, Run run) {
  int right = 0;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    symbol<void(std::uint64_t)>("soft_metal_set_seed")(seed);
    run();
    bool all = true;
    for (std::uint32_t i = 0; i < kThreads; ++i) all = all && out[i] == kThreads - i;
    right += all;
  }
  symbol<void(std::uint64_t)>("soft_metal_set_seed")(1);
  return right;
}

TEST_F(SoftMetal, MissingBarrierShows) {
  EXPECT_EQ(right_schedules(out(), [&] { run("with_barrier"); }), 16);
  EXPECT_EQ(right_schedules(out(), [&] { run("missing_barrier"); }), 0);
}

TEST_F(SoftMetal, UnwrittenThreadgroupMemoryIsPoisoned) {
  run("unwritten_memory");
  EXPECT_EQ(out()[6], 7u);
  EXPECT_EQ(out()[7], 0xffffffffu);
}

TEST_F(SoftMetal, MissingBarrierBetweenDispatchesShows) {
  // Forwards in -> out, then out -> second, reversed twice: without a barrier some order reads what is not there yet.
  auto kernel = library_->kernel("with_barrier", {});
  ASSERT_TRUE(kernel);
  std::uint32_t* second = out() + 1024;
  for (const bool barrier : {true, false}) {
    int right = 0;
    for (std::uint64_t seed = 1; seed <= 16; ++seed) {
      symbol<void(std::uint64_t)>("soft_metal_set_seed")(seed);
      for (std::uint32_t i = 0; i < kThreads; ++i) out()[i] = second[i] = 0;
      auto commands = device_->begin();
      ASSERT_TRUE(commands);
      MistakeArgs a[2] = {args_, args_};
      a[1].in = args_.out;
      a[1].out = device_->address(second);
      for (int i = 0; i < 2; ++i) {
        Dispatch d;
        d.kernel = kernel->get();
        d.args = std::as_bytes(std::span(&a[i], 1));
        d.threads = kThreads;
        (*commands)->dispatch(d);
        if (barrier) (*commands)->barrier();
      }
      (*commands)->commit();
      (*commands)->wait();
      bool all = true;
      for (std::uint32_t i = 0; i < kThreads; ++i) all = all && second[i] == i + 1;
      right += all;
    }
    if (barrier) {
      EXPECT_EQ(right, 16);
    } else {
      EXPECT_LT(right, 14);
    }
  }
}

TEST_F(SoftMetal, CommandBuffersWithoutAFenceOvertake) {
  const auto overtakes = symbol<bool(bool)>("soft_metal_overtakes");
  EXPECT_FALSE(overtakes(true));
  EXPECT_TRUE(overtakes(false));
}

TEST_F(SoftMetal, KernelThatIgnoresFirstGroupShows) {
  run("ignores_first_group", 0, {4, 1, 1});
  args_.first_group = 4;
  run("ignores_first_group", 0, {4, 1, 1});
  EXPECT_EQ(out()[3], 4u);
  EXPECT_EQ(out()[7], 0u);  // and not 8
}

TEST_F(SoftMetal, MissingFunctionConstantIsAnError) {
  const auto without = library_->kernel("needs_a_constant", {});
  ASSERT_FALSE(without);
  EXPECT_NE(without.error().message.find("needs values for its constants 0"), std::string::npos) << without.error().message;
  EXPECT_TRUE(library_->kernel("needs_a_constant", std::array<std::uint32_t, 1>{7}));
}

TEST_F(SoftMetal, UnknownTextDoesNotCompile) {
  const auto library = device_->compile("new", "kernel void k() {}");
  ASSERT_FALSE(library);
  EXPECT_NE(library.error().message.find("program_source: error"), std::string::npos) << library.error().message;
}

TEST_F(SoftMetalDeathTest, KernelsThatDiverge) {
  EXPECT_DEATH(run("divergent_barrier"), "kernel divergent_barrier.*divergent threadgroup_barrier");
  EXPECT_DEATH(run("divergent_simd"), "kernel divergent_simd.*(deadlock|divergent)");
  args_.count = 40;
  EXPECT_DEATH(run("some_threads_leave"), "kernel some_threads_leave.*divergent threadgroup_barrier");
}

TEST_F(SoftMetalDeathTest, MemoryOutOfBounds) {
  args_.count = static_cast<std::uint32_t>(memory_.size() / 4) - 1024;
  EXPECT_DEATH(run("past_a_region"), "kernel past_a_region.*write of 4 bytes.*no resident region");
  args_.count = 1;
  EXPECT_DEATH(run("past_threadgroup_memory"), "kernel past_threadgroup_memory.*write of 4 bytes");
  EXPECT_DEATH(run("past_dynamic_memory", 4 * kThreads), "kernel past_dynamic_memory.*write of 4 bytes");
  EXPECT_DEATH(run("too_much_threadgroup_memory"), "more than 32 KiB of threadgroup memory");
  EXPECT_DEATH(run("writes_its_arguments"), "kernel writes_its_arguments.*only readable");
}

TEST_F(SoftMetalDeathTest, MemoryThatIsNotResident) {
  const std::vector<std::uint32_t> host(kThreads);
  args_.in = reinterpret_cast<Address>(host.data());
  EXPECT_DEATH(run("reads_a_host_pointer"), "kernel reads_a_host_pointer.*read of 4 bytes.*not registered");
}

TEST_F(SoftMetalDeathTest, UseAfterUnregister) {
  AlignedBytes other(kRegionAlignment, static_cast<std::size_t>(kRegionAlignment));
  ASSERT_TRUE(device_->register_region(other.data(), other.size()));
  args_.in = device_->address(other.data());
  run("reads_a_host_pointer");
  ASSERT_TRUE(device_->unregister_region(other.data()));
  EXPECT_DEATH(run("reads_a_host_pointer"), "kernel reads_a_host_pointer.*read of 4 bytes.*not registered");
}

// Both ways to declare memory: with residency sets and, as before macOS 15, encoder by encoder.
TEST_F(SoftMetalDeathTest, ResidencyWithoutSets) {
  ::setenv("COLI_METAL_RESSET", "0", 1);
  device_.reset();
  open();
  ::unsetenv("COLI_METAL_RESSET");
  EXPECT_FALSE(device_->info().residency_set);
  run("reads_a_host_pointer");
  EXPECT_EQ(out()[5], 6u);
  ASSERT_TRUE(device_->unregister_region(memory_.data()));
  EXPECT_DEATH(run("reads_a_host_pointer"), "not registered");
}

TEST_F(SoftMetalDeathTest, WrongUsesOfMetal) {
  struct Misuse {
    const char *name, *message;
  };
  static constexpr Misuse kAll[] = {
      {"commit-twice", "committed twice"},
      {"commit-while-encoding", "commit while an encoder is open"},
      {"two-encoders", "second encoder while one is open"},
      {"encoder-after-commit", "encoder for a command buffer that is committed"},
      {"wait-before-commit", "would wait for ever"},
      {"call-after-end", "memoryBarrierWithScope: after endEncoding"},
      {"end-twice", "endEncoding after endEncoding"},
      {"no-end", "released without endEncoding"},
      {"no-pipeline", "without a pipeline"},
      {"long-arguments", "setBytes: of 4097 bytes"},
      {"odd-threadgroup-memory", "not a multiple of 16"},
      {"much-threadgroup-memory", "at most 32768"},
      {"unaligned-buffer", "pointer is not at a page's start"},
      {"odd-buffer-length", "length is not a multiple"},
      {"fast-math", "without safe math"},
      {"wrong-selector", "unrecognized selector: -\\[SoftDevice addResidencySet:\\]"},
      {"remove-what-is-not-there", "not in the residency set"},
  };
  const auto misuse = symbol<bool(const char*)>("soft_metal_misuse");
  for (const Misuse& m : kAll) EXPECT_DEATH(misuse(m.name), m.message) << m.name;
  EXPECT_FALSE(misuse("no such misuse"));
}

// Two command buffers: the second one ends with the fault. In a process of its own, where the device reads its environment.
void fail_second_command_buffer() {
  ::setenv("COLI_SOFT_METAL", COLIBRI_SOFT_METAL_TEST_LIBRARY, 1);
  ::setenv("COLI_SOFT_METAL_FAULT", "timeout:1,compile:0:2", 1);
  const auto device = open_software_metal();
  if (!device) std::exit(1);
  for (const Fault expected : {Fault::kNone, Fault::kTimeout, Fault::kNone}) {
    const auto commands = (*device)->begin();
    if (!commands) std::exit(2);
    (*commands)->commit();
    if ((*commands)->wait().fault != expected) std::exit(3);
  }
  for (int i = 0; i < 2; ++i) {
    const auto library = (*device)->compile("any", "text");
    if (library || library.error().message.find("injected") == std::string::npos) std::exit(4);
  }
  const auto library = (*device)->compile("any", "text");
  if (library || library.error().message.find("injected") != std::string::npos) std::exit(5);
  std::exit(0);
}

TEST(FaultsDeathTest, FromTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fail_second_command_buffer(), ::testing::ExitedWithCode(0), "");
}

void name_an_unknown_fault() {
  ::setenv("COLI_SOFT_METAL", COLIBRI_SOFT_METAL_TEST_LIBRARY, 1);
  ::setenv("COLI_SOFT_METAL_FAULT", "flood", 1);
  const auto device = open_software_metal();
  const auto commands = (*device)->begin();
  (*commands)->commit();
  (*commands)->wait();
}

TEST(FaultsDeathTest, UnknownName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(name_an_unknown_fault(), "unknown fault: 'flood'");
}

}  // namespace
}  // namespace colibri::gpu

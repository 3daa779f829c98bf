// A device for the kernel tests, memory that it can see, and a runner: the Mac's GPU where there is one, else the software
// device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/fp_mode.h"
#include "gpu/device.h"
#include "gpu/encoder.h"
#include "gpu/kernel_set.h"

namespace colibri::gpu::test {

// Opened once for a test program; null when there is none, which error() explains.
class TestDevice {
 public:
  static TestDevice& get() {
    static TestDevice device;
    return device;
  }
  KernelSet* kernels() { return kernels_.get(); }
  const std::string& error() const { return error_; }

 private:
  TestDevice() {
    auto device = open_metal();
    if (!device) device = open_software_metal();
    if (!device) {
      error_ = device.error().message;
      return;
    }
    device_ = std::move(*device);
    kernels_ = std::make_unique<KernelSet>(*device_);
  }
  std::unique_ptr<Device> device_;
  std::unique_ptr<KernelSet> kernels_;
  std::string error_;
};

// Memory of one test, registered with the device. Between its blocks lie guards that no kernel may write; what a block holds
// before it is written shows when it is read: every float is a NaN.
class DeviceArena {
 public:
  DeviceArena(Device& device, std::uint64_t bytes)
      : device_(device), bytes_(round_up(bytes, kRegionAlignment), static_cast<std::size_t>(kRegionAlignment)) {
    std::memset(bytes_.data(), kGuard, bytes_.size());
    const auto registered = device_.register_region(bytes_.data(), bytes_.size());
    EXPECT_TRUE(registered) << registered.error().message;
    registered_ = registered.has_value();
  }
  ~DeviceArena() { EXPECT_TRUE(!registered_ || device_.unregister_region(bytes_.data())); }
  DeviceArena(const DeviceArena&) = delete;

  // count values at an address that is 256 * n + offset.
  template <class T>
  std::span<T> block(std::int64_t count, std::uint64_t offset = 0) {
    const std::uint64_t begin = round_up(used_ + kGuardBytes, 256) + offset,
                        bytes = static_cast<std::uint64_t>(count) * sizeof(T);
    if (begin + bytes + kGuardBytes > bytes_.size()) {
      ADD_FAILURE() << "the arena is too small: " << bytes_.size() << " bytes";
      std::abort();
    }
    blocks_.push_back({begin, bytes});
    used_ = begin + bytes;
    return {reinterpret_cast<T*>(bytes_.data() + begin), static_cast<std::size_t>(count)};
  }
  template <class T>
  std::span<T> block(const std::vector<T>& values, std::uint64_t offset = 0) {
    const auto to = block<T>(static_cast<std::int64_t>(values.size()), offset);
    std::copy(values.begin(), values.end(), to.begin());
    return to;
  }
  // The last block: it ends `gap` bytes before the region does, so that the device sees a read further on. Nothing may follow.
  template <class T>
  std::span<T> last_block(std::int64_t count, std::uint64_t gap = 0) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(count) * sizeof(T), begin = bytes_.size() - gap - bytes;
    if (bytes + gap + used_ + kGuardBytes > bytes_.size()) {
      ADD_FAILURE() << "the arena is too small: " << bytes_.size() << " bytes";
      std::abort();
    }
    blocks_.push_back({begin, bytes});
    used_ = bytes_.size();
    return {reinterpret_cast<T*>(bytes_.data() + begin), static_cast<std::size_t>(count)};
  }
  template <class T>
  Address at(std::span<T> block) const {
    return device_.address(block.data());
  }
  bool guards_hold() const {
    std::uint64_t at = 0;
    for (const Block& b : blocks_) {
      if (!untouched(at, b.begin)) return false;
      at = b.begin + b.bytes;
    }
    return untouched(at, bytes_.size());
  }

 private:
  static constexpr int kGuard = 0xff;
  static constexpr std::uint64_t kGuardBytes = 64;
  struct Block {
    std::uint64_t begin, bytes;
  };
  bool untouched(std::uint64_t begin, std::uint64_t end) const {
    for (std::uint64_t i = begin; i < end; ++i)
      if (bytes_.data()[i] != std::byte{kGuard}) return false;
    return true;
  }
  Device& device_;
  AlignedBytes bytes_;
  bool registered_ = false;
  std::uint64_t used_ = 0;
  std::vector<Block> blocks_;
};

// A fresh seed every run, printed with each failure; COLIBRI_TEST_SEED repeats one.
inline std::uint64_t run_seed() {
  static const std::uint64_t seed = [] {
    if (const char* text = std::getenv("COLIBRI_TEST_SEED")) return static_cast<std::uint64_t>(std::strtoull(text, nullptr, 10));
    std::random_device device;
    return (static_cast<std::uint64_t>(device()) << 32) | device();
  }();
  return seed;
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(TestDevice::get().kernels()) << TestDevice::get().error(); }
  KernelSet& kernels() { return *TestDevice::get().kernels(); }
  Device& device() { return kernels().device(); }

  // Encodes, runs, waits.
  void run(const std::function<void(Encoder&)>& encode) {
    EncoderCounts counts;
    Encoder encoder(kernels(), counts);
    encode(encoder);
    auto commands = encoder.commit();
    ASSERT_TRUE(commands) << commands.error().message;
    const Completion& end = commands->wait();
    ASSERT_EQ(end.fault, Fault::kNone) << end.message;
    counts_ = counts;
  }

  float random_float() { return static_cast<float>(static_cast<std::int64_t>(rng_() % 2000001) - 1000000) * 1e-6f; }
  std::vector<float> random_floats(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& v : values) v = random_float();
    return values;
  }

  FlushDenormals flush_;
  std::mt19937_64 rng_{run_seed()};
  EncoderCounts counts_;
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, "COLIBRI_TEST_SEED=" + std::to_string(run_seed())};
};

}  // namespace colibri::gpu::test

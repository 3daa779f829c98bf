// A device that computes nothing and remembers what it was told: for tests of launch plans at sizes no test could run.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "gpu/device.h"

namespace colibri::gpu::test {

class RecordingDevice : public Device {
 public:
  struct Launch {
    std::string function;
    std::vector<std::uint32_t> constants;
    std::vector<std::byte> args;
    Grid groups;
    std::uint32_t threads = 0, threadgroup_bytes = 0;
    std::size_t barriers_before = 0;  // the start of a command buffer after another one is one too

    template <class Args>
    Args as() const {
      Args a{};
      std::memcpy(&a, args.data(), sizeof(Args));
      return a;
    }
  };
  const std::vector<Launch>& launches() const { return launches_; }

  const DeviceInfo& info() const override { return info_; }
  Result<std::unique_ptr<Library>> compile(std::string_view, std::string_view) override { return std::make_unique<AnyLibrary>(); }
  Result<void> register_region(void* base, std::uint64_t bytes) override {
    COLIBRI_CHECK(regions_.check(base, bytes, info_.longest_buffer));
    regions_.add(base, bytes, reinterpret_cast<Address>(base));
    return {};
  }
  Result<void> unregister_region(void* base) override {
    if (!regions_.remove(base)) return fail("no region at {}", base);
    return {};
  }
  Result<std::unique_ptr<Commands>> begin() override {
    if (!launches_.empty()) ++barriers_;
    return std::make_unique<Recorder>(launches_, barriers_);
  }
  DeviceMemory memory() const override { return {}; }
  ResidencyStats residency() const override { return {}; }

 private:
  struct AnyKernel : Kernel {
    std::uint32_t max_threads() const override { return 1024; }
    std::string function;
    std::vector<std::uint32_t> constants;
  };
  struct AnyLibrary : Library {
    Result<std::unique_ptr<Kernel>> kernel(const std::string& function, std::span<const std::uint32_t> constants) override {
      auto k = std::make_unique<AnyKernel>();
      k->function = function;
      k->constants.assign(constants.begin(), constants.end());
      return k;
    }
  };
  class Recorder : public Commands {
   public:
    Recorder(std::vector<Launch>& launches, std::size_t& barriers) : launches_(launches), barriers_(barriers) {}
    void dispatch(const Dispatch& d) override {
      const auto& kernel = static_cast<const AnyKernel&>(*d.kernel);
      launches_.push_back({kernel.function,
                           kernel.constants,
                           {d.args.begin(), d.args.end()},
                           d.groups,
                           d.threads,
                           d.threadgroup_bytes,
                           barriers_});
    }
    void barrier() override { ++barriers_; }
    void commit() override {}
    const Completion& wait() override { return end_; }
    bool done() const override { return true; }

   private:
    std::vector<Launch>& launches_;
    std::size_t& barriers_;
    Completion end_;
  };
  DeviceInfo info_{.name = "recorder", .api = "none", .software = true, .longest_buffer = std::uint64_t{1} << 40};
  std::vector<Launch> launches_;
  std::size_t barriers_ = 0;
};

}  // namespace colibri::gpu::test

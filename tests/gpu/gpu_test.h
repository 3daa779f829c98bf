// The device that tests of src/gpu run on: the software one on Linux, the system's GPU on macOS.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <new>

#include "gpu/device.h"

namespace colibri::gpu {

// A test without a device is a failed test: nothing is skipped in silence.
inline std::unique_ptr<Device> test_device() {
#ifdef __APPLE__
  auto device = open_metal();
#else
  auto device = open_software_metal();
#endif
  if (!device) {
    ADD_FAILURE() << device.error().message;
    return nullptr;
  }
  return std::move(*device);
}

// Memory that a device can use, registered for as long as this lives. Zero at first.
class Slab {
 public:
  Slab(Device& device, std::uint64_t bytes)
      : device_(device), bytes_((bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment) {
    data_ = static_cast<std::byte*>(::operator new(bytes_, std::align_val_t{kRegionAlignment}));
    std::memset(data_, 0, bytes_);
    const auto registered = device_.register_region(data_, bytes_);
    EXPECT_TRUE(registered.has_value()) << registered.error().message;
  }
  ~Slab() {
    const auto gone = device_.unregister_region(data_);
    EXPECT_TRUE(gone.has_value()) << gone.error().message;
    ::operator delete(data_, std::align_val_t{kRegionAlignment});
  }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  template <class T>
  T* as(std::uint64_t offset = 0) {
    return reinterpret_cast<T*>(data_ + offset);
  }
  Address address(std::uint64_t offset = 0) const { return device_.address(data_ + offset); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  Device& device_;
  std::uint64_t bytes_;
  std::byte* data_;
};

}  // namespace colibri::gpu

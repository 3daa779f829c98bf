// Memory that a device can use, for as long as this lives.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "base/aligned.h"
#include "gpu/device.h"

namespace colibri::gpu {

// Keeps a region of somebody else's memory registered; destroyed before the memory is freed and before the device.
class Registration {
 public:
  Registration() = default;
  // A region longer than the device takes in one buffer is refused.
  static Result<Registration> add(Device& device, std::span<std::byte> region) {
    COLIBRI_CHECK(device.register_region(region.data(), region.size()));
    return Registration(device, region.data());
  }
  Registration(Registration&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), base_(std::exchange(other.base_, nullptr)) {}
  Registration& operator=(Registration&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(base_, other.base_);
    return *this;
  }
  ~Registration() {
    if (device_ != nullptr) (void)device_->unregister_region(base_);
  }

 private:
  Registration(Device& device, void* base) : device_(&device), base_(base) {}
  Device* device_ = nullptr;
  void* base_ = nullptr;
};

// Pages of our own, zero-filled, registered.
class DeviceBlock {
 public:
  static Result<DeviceBlock> allocate(Device& device, std::uint64_t bytes) {
    DeviceBlock block;
    block.memory_ = AlignedBytes::pages(bytes);
    COLIBRI_TRY(registration, Registration::add(device, block.memory_.whole_pages()));
    block.registration_ = std::move(registration);
    block.address_ = device.address(block.memory_.data());
    return block;
  }
  std::byte* data() { return memory_.data(); }
  Address address() const { return address_; }
  // Where the host finds what the device has at this address.
  template <class T>
  T* host(Address address) {
    return reinterpret_cast<T*>(memory_.data() + (address - address_));
  }

 private:
  AlignedBytes memory_;
  Address address_ = 0;
  Registration registration_;
};

}  // namespace colibri::gpu

// The kernels of src/gpu/kernels on one device: their text is in the program, each file is compiled when one of its kernels is
// first asked for, and each pipeline is made once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/device.h"

namespace colibri::gpu {

// One file of kernels with everything it includes before it: what a device compiles.
struct KernelFile {
  std::string_view name;  // "products"
  std::string_view text;
};
std::span<const KernelFile> kernel_files();

// A kernel and the values it is specialised with.
struct KernelId {
  std::string_view file;
  std::string_view function;
  std::vector<std::uint32_t> constants = {};
};

class KernelSet {
 public:
  explicit KernelSet(Device& device) : device_(device) {}
  Device& device() const { return device_; }
  // Compiled at the first call. The error is remembered: a kernel that does not compile is not tried again.
  Result<const Kernel*> get(const KernelId& id);
  double compile_seconds() const { return compile_seconds_; }

 private:
  Device& device_;
  std::map<std::string, Result<std::unique_ptr<Library>>, std::less<>> libraries_;
  std::map<std::string, Result<std::unique_ptr<Kernel>>, std::less<>> kernels_;
  double compile_seconds_ = 0;
};

}  // namespace colibri::gpu

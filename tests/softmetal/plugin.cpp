// The one way in: src/gpu/software_metal.cpp finds this function in the library.
#include <string>

#include "gpu/metal/metal_device.h"

// A new device, or null with the reason in *error.
extern "C" __attribute__((visibility("default"))) colibri::gpu::Device* colibri_open_software_metal(std::string* error) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    *error = "the software Metal device was built for processors with AVX2, FMA and F16C, and this one lacks some of them";
    return nullptr;
  }
#endif
  auto device = colibri::gpu::open_default_metal_device();
  if (!device) {
    *error = device.error().message;
    return nullptr;
  }
  return device->release();
}

// Which GPU a run uses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "gpu/device.h"

namespace colibri {

enum class GpuChoice : std::uint8_t {
  kOff,
  kAuto,   // a real GPU where there is one that works; never the software device
  kMetal,  // Metal: the Mac's GPU, elsewhere the software device, which is for tests; an error where there is neither
};

struct ChosenGpu {
  std::unique_ptr<gpu::Device> device;  // null: the CPU computes
  std::string notice;                   // what a user should know: empty, why there is none, or that it is no real one
};
Result<ChosenGpu> choose_gpu(GpuChoice choice);

}  // namespace colibri

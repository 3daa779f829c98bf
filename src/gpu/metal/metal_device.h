// The system's default Metal device. On Linux this exists only inside the software device (tests/softmetal).
#pragma once

#include <memory>

#include "gpu/device.h"

namespace colibri::gpu {

Result<std::unique_ptr<Device>> open_default_metal_device();

}  // namespace colibri::gpu

#include "engine/gpu_choice.h"

namespace colibri {

Result<ChosenGpu> choose_gpu(GpuChoice choice) {
  ChosenGpu chosen;
  if (choice == GpuChoice::kOff) return chosen;
  auto device = gpu::open_metal();
#if !defined(__APPLE__)
  if (choice == GpuChoice::kMetal) device = gpu::open_software_metal();
#endif
  if (device) {
    chosen.device = std::move(*device);
    if (chosen.device->info().software)
      chosen.notice = fmt::format("{}: it runs the GPU's kernels on the CPU, slowly; its times say nothing about any GPU",
                                  chosen.device->info().name);
    return chosen;
  }
  if (choice == GpuChoice::kMetal) return fail("--gpu metal: {}", device.error().message);
  chosen.notice = fmt::format("no GPU is used: {}", device.error().message);
  return chosen;
}

}  // namespace colibri

#include "gpu/device.h"

namespace colibri::gpu {

std::string_view fault_name(Fault fault) {
  switch (fault) {
    case Fault::kNone: return "none";
    case Fault::kError: return "command-buffer error";
    case Fault::kTimeout: return "timeout";
    case Fault::kMemory: return "out of memory";
    case Fault::kResidency: return "not resident";
    case Fault::kCompile: return "compile failure";
  }
  return "unknown";
}

}  // namespace colibri::gpu

// Devices that are not part of every program: the software one is a library loaded on demand, Metal is for macOS.
#include <dlfcn.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "gpu/device.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
// What GCC's Objective-C runtime, which the software device uses, allocates for classes it keeps for ever.
extern "C" const char* __lsan_default_suppressions() { return "leak:libobjc.so"; }  // NOLINT(bugprone-reserved-identifier)
// Used suppressions would be told on stderr, which belongs to the program.
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }  // NOLINT(bugprone-reserved-identifier)
#endif
#endif

namespace colibri::gpu {
namespace {

constexpr const char* kLibrary = "libcolibri_softmetal.so";

// Beside the program, in the build tree that the program lies in, and where this file was built.
std::vector<std::filesystem::path> places() {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  if (!ignored) {
    const auto folder = program.parent_path();
    found.push_back(folder / kLibrary);
    found.push_back(folder / "../softmetal" / kLibrary);
    found.push_back(folder / "../tests/softmetal" / kLibrary);
    found.push_back(folder / "../../tests/softmetal" / kLibrary);
  }
  found.emplace_back(std::filesystem::path(COLIBRI_SOFT_METAL_DIR) / kLibrary);
  return found;
}

}  // namespace

Result<std::unique_ptr<Device>> open_software_metal() {
  std::filesystem::path path;
  if (const char* named = std::getenv("COLI_SOFT_METAL"); named != nullptr && *named != '\0') {
    path = named;
  } else {
    std::error_code ignored;
    for (const auto& place : places()) {
      if (path.empty() && std::filesystem::exists(place, ignored)) path = place;
    }
    if (path.empty())
      return fail(
          "the software Metal device is not built: {} is not beside the program. On Linux 'make' builds it where clang 19, "
          "python3 and GCC's Objective-C runtime are installed (Debian: clang-19 python3 libobjc-12-dev); COLI_SOFT_METAL can "
          "name the file",
          kLibrary);
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never unloaded: devices live in it
  if (library == nullptr) return fail("the software Metal device cannot be loaded: {}", ::dlerror());
  using Open = Device* (*)(std::string*);
  const auto open = reinterpret_cast<Open>(::dlsym(library, "colibri_open_software_metal"));
  if (open == nullptr) return fail("{} is no software Metal device: it lacks colibri_open_software_metal", path.string());
  std::string error;
  std::unique_ptr<Device> device(open(&error));
  if (device == nullptr) return fail("the software Metal device does not start: {}", error);
  return device;
}

#ifndef __APPLE__
Result<std::unique_ptr<Device>> open_metal() {
  return fail("Metal needs macOS; on Linux only the software device for tests runs Metal code");
}
#endif

}  // namespace colibri::gpu

#include "locate.h"

#include <array>
#include <system_error>

#if defined(__APPLE__)
#include <mach-o/dyld.h>
#endif

namespace colibri {

namespace fs = std::filesystem;

fs::path executable_path() {
  std::error_code error;
#if defined(__APPLE__)
  std::array<char, 4096> name{};
  auto size = static_cast<std::uint32_t>(name.size());
  if (_NSGetExecutablePath(name.data(), &size) != 0) return {};
  return fs::canonical(name.data(), error);
#else
  return fs::read_symlink("/proc/self/exe", error);
#endif
}

Result<fs::path> find_model(const std::string& wanted) {
  std::error_code error;
  if (!wanted.empty()) {
    fs::path dir(wanted);
    if (fs::is_directory(dir, error)) return dir;
    if (fs::exists(dir, error)) return fail("{} is a file; a model is a directory with config.json and *.safetensors", wanted);
    return fail("no model directory {}; give one with --model or COLI_MODEL", wanted);
  }
  for (fs::path dir = executable_path().parent_path(); !dir.empty(); dir = dir.parent_path()) {
    for (const char* place : {"models/demo", "share/colibri/models/demo"})
      if (fs::is_regular_file(dir / place / "config.json", error)) return dir / place;
    if (dir == dir.parent_path()) break;
  }
  return fail("no demo model beside the program; name a model directory with --model or COLI_MODEL");
}

}  // namespace colibri

#include "base/process.h"

#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <string_view>

#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

namespace colibri {

#if defined(__linux__)
namespace {

// A value of /proc/self/status or /proc/meminfo ("VmHWM:  1234 kB") in bytes; 0 when it is not there.
std::uint64_t proc_value(const char* file, std::string_view wanted) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(wanted)) return std::strtoull(line.c_str() + wanted.size(), nullptr, 10) * 1024;
  return 0;
}

}  // namespace
#endif

std::uint64_t peak_resident_bytes() {
#if defined(__linux__)
  // Not getrusage: its figure starts with the size of the process that forked us.
  if (const std::uint64_t bytes = proc_value("/proc/self/status", "VmHWM:"); bytes > 0) return bytes;
#endif
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
  return static_cast<std::uint64_t>(usage.ru_maxrss);
#else
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
#endif
}

std::uint64_t available_memory_bytes() {
#if defined(__APPLE__)
  vm_statistics64_data_t stats{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&stats), &count) != KERN_SUCCESS)
    return 0;
  return (static_cast<std::uint64_t>(stats.free_count) + stats.inactive_count + stats.purgeable_count) * vm_kernel_page_size;
#else
  return proc_value("/proc/meminfo", "MemAvailable:");
#endif
}

std::string cpu_model_name() {
#if defined(__APPLE__)
  char name[256];
  size_t size = sizeof name;
  if (sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0) == 0) return name;
#else
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
#endif
#if defined(__aarch64__)
  return "AArch64";
#else
  return "x86-64";
#endif
}

}  // namespace colibri

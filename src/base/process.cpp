#include "base/process.h"

#include <sys/resource.h>

#include <fstream>

#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

namespace colibri {

std::uint64_t peak_resident_bytes() {
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
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  std::uint64_t value = 0;
  while (meminfo >> key >> value && std::getline(meminfo, unit))
    if (key == "MemAvailable:") return value * 1024;
  return 0;
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

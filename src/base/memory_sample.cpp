#include "base/memory_sample.h"

#include <chrono>

#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#else
#include <unistd.h>

#include <fstream>
#include <string>
#include <string_view>
#endif

namespace colibri {
namespace {

double clock_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

#if defined(__APPLE__)

namespace {

// The kernel's levels as dispatch sources name them: 1 normal, 2 warning, 4 critical.
MemoryPressure pressure_level() {
  int level = 0;
  std::size_t size = sizeof level;
  if (sysctlbyname("kern.memorystatus_vm_pressure_level", &level, &size, nullptr, 0) != 0) return MemoryPressure::kNormal;
  return level >= 4 ? MemoryPressure::kCritical : level >= 2 ? MemoryPressure::kWarning : MemoryPressure::kNormal;
}

}  // namespace

std::optional<MemorySample> sample_memory() {
  static const mach_port_t this_host = mach_host_self();  // every call of it would take another reference
  task_vm_info_data_t task{};
  mach_msg_type_number_t task_count = TASK_VM_INFO_COUNT;
  vm_statistics64_data_t host{};
  mach_msg_type_number_t host_count = HOST_VM_INFO64_COUNT;
  if (task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&task), &task_count) != KERN_SUCCESS ||
      host_statistics64(this_host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&host), &host_count) != KERN_SUCCESS)
    return std::nullopt;
  MemorySample sample;
  sample.seconds = clock_seconds();
  sample.footprint = task.phys_footprint;
  sample.displaced = task.compressed;
  sample.compressed = host.compressions * vm_kernel_page_size;
  sample.decompressed = host.decompressions * vm_kernel_page_size;
  sample.swapped_out = host.swapouts * vm_kernel_page_size;
  sample.pressure = pressure_level();
  return sample;
}

#else

namespace {

// The number behind a name in a file of lines "name number ..."; 0 when it is not there.
std::uint64_t number_of(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name)) return std::strtoull(line.c_str() + name.size(), nullptr, 10);
  return 0;
}

// The share of the last ten seconds, in percent, in which some or all tasks waited for memory.
double waiting(std::string_view who) {
  constexpr std::string_view kField = "avg10=";
  std::ifstream file("/proc/pressure/memory");
  for (std::string line; std::getline(file, line);)
    if (const auto at = line.find(kField); line.starts_with(who) && at != std::string::npos)
      return std::strtod(line.c_str() + at + kField.size(), nullptr);
  return 0;
}

// Waiting alone does not say that memory is short: reading more files than the page cache holds does it too. The share of
// memory that is available does not fall by that.
MemoryPressure pressure_level() {
  constexpr double kWaiting = 10;
  const std::uint64_t total = number_of("/proc/meminfo", "MemTotal:"), available = number_of("/proc/meminfo", "MemAvailable:");
  if (available < total / 32 && waiting("full") > kWaiting) return MemoryPressure::kCritical;
  if (available < total / 16 && waiting("some") > kWaiting) return MemoryPressure::kWarning;
  return MemoryPressure::kNormal;
}

}  // namespace

std::optional<MemorySample> sample_memory() {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  MemorySample sample;
  sample.seconds = clock_seconds();
  sample.displaced = number_of("/proc/self/status", "VmSwap:") * 1024;
  sample.footprint = number_of("/proc/self/status", "RssAnon:") * 1024 + sample.displaced;
  sample.compressed = sample.swapped_out = number_of("/proc/vmstat", "pswpout ") * page;
  sample.decompressed = number_of("/proc/vmstat", "pswpin ") * page;
  sample.pressure = pressure_level();
  if (sample.footprint == 0) return std::nullopt;
  return sample;
}

#endif

MemorySamples memory_samples(double interval) {
  return [interval, next = 0.0]() mutable -> std::optional<MemorySample> {
    const double now = clock_seconds();
    if (now < next) return std::nullopt;
    next = now + interval;
    return sample_memory();
  };
}

}  // namespace colibri

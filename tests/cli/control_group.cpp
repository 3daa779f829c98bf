#include "control_group.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

namespace colibri {
namespace {

constexpr const char* kRoot1 = "/sys/fs/cgroup/memory";
constexpr const char* kRoot2 = "/sys/fs/cgroup";

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

bool write_text(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  return written;
}

// The value behind a name in a file of lines "name value"; the file's only value when the name is empty.
std::optional<std::uint64_t> read_value(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (name.empty()) return file >> value ? std::optional(value) : std::nullopt;
  for (std::string word; file >> word >> value;)
    if (word == name) return value;
  return std::nullopt;
}

// This process's group as /proc/self/cgroup has it: "0::/a/b" or, in version 1, "4:memory:/a/b". Empty at the root.
std::string own_group(bool v2) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (v2 ? controllers != ",," : controllers.find(",memory,") == std::string::npos) continue;
    const std::string path = line.substr(second + 1);
    return path == "/" ? "" : path;
  }
  return {};
}

}  // namespace

std::unique_ptr<ControlGroup> ControlGroup::create(std::optional<std::uint64_t> limit, std::string& why_not) {
  static int made = 0;
  const bool v2 = exists(std::string(kRoot2) + "/cgroup.controllers");
  const std::string root = v2 ? kRoot2 : kRoot1;
  if (!exists(root + "/cgroup.procs")) {
    why_not = "this system has no memory control groups";
    return nullptr;
  }
  const std::string name = "/coli-test-" + std::to_string(getpid()) + "-" + std::to_string(++made);
  for (std::string parent = own_group(v2);; parent.resize(parent.rfind('/'))) {
    const std::string path = root + parent + name;
    if (mkdir(path.c_str(), 0755) == 0) {
      std::unique_ptr<ControlGroup> group(new ControlGroup(path, v2));
      if (group->accepts_processes() && (!limit || group->set_limit(*limit))) return group;
    }
    if (parent.empty()) break;
  }
  why_not = "no memory control group with a limit can be made below " + root + " (it takes root or a delegated group)";
  return nullptr;
}

ControlGroup::~ControlGroup() { rmdir(path_.c_str()); }

// Version 2 makes groups without the memory controller below those that do not pass it on, and a user may own a group that
// their processes cannot get into.
bool ControlGroup::accepts_processes() const {
  if (!exists(path_ + (v2_ ? "/memory.max" : "/memory.limit_in_bytes"))) return false;
  const pid_t child = fork();
  if (child == 0) _exit(write_text(members_file(), "0") ? 0 : 1);
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Swap must not make room. Where the kernel has none for groups there is no file for it.
bool ControlGroup::set_limit(std::uint64_t limit) const {
  const std::string bytes = std::to_string(limit);
  const auto optional = [](const std::string& path, const std::string& text) { return !exists(path) || write_text(path, text); };
  if (v2_) return write_text(path_ + "/memory.max", bytes) && optional(path_ + "/memory.swap.max", "0");
  return write_text(path_ + "/memory.limit_in_bytes", bytes) && optional(path_ + "/memory.swappiness", "0");
}

std::string ControlGroup::members_file() const { return path_ + "/cgroup.procs"; }

std::optional<std::uint64_t> ControlGroup::peak() const {
  return read_value(path_ + (v2_ ? "/memory.peak" : "/memory.max_usage_in_bytes"), "");
}

std::uint64_t ControlGroup::page_cache() const { return read_value(path_ + "/memory.stat", v2_ ? "file" : "cache").value_or(0); }

std::uint64_t ControlGroup::times_at_limit() const {
  return (v2_ ? read_value(path_ + "/memory.events", "max") : read_value(path_ + "/memory.failcnt", "")).value_or(0);
}

std::uint64_t ControlGroup::kills() const {
  return read_value(path_ + (v2_ ? "/memory.events" : "/memory.oom_control"), "oom_kill").value_or(0);
}

}  // namespace colibri

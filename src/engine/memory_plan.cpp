#include "engine/memory_plan.h"

#include <algorithm>
#include <fstream>

#include "base/process.h"

namespace colibri {
namespace {

constexpr double kGigabyte = 1e9;

// What is left to the rest of the system in an automatic budget: a tenth, at least one and at most eight gigabytes.
std::uint64_t reserve(std::uint64_t available) {
  return std::clamp<std::uint64_t>(available / 10, std::uint64_t{1} << 30, std::uint64_t{8} << 30);
}

#if !defined(__APPLE__)
bool read_number(const std::string& path, std::uint64_t& value) {
  std::ifstream file(path);
  return static_cast<bool>(file >> value);
}

// A cgroup's path from /proc/self/cgroup: the line "0::PATH" for v2, "N:...memory...:PATH" for v1.
std::string cgroup_path(bool v2) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? controllers.empty() : controllers.find("memory") != std::string::npos) return line.substr(second + 1);
  }
  return {};
}

// What the page cache holds for a group and those below it (memory.stat). It counts as use, but the system takes it back
// before it refuses memory to anybody: a group that has read large files is not a full one.
std::uint64_t page_cache(const std::string& stat_file, const std::string& prefix) {
  std::uint64_t sum = 0;
  std::ifstream file(stat_file);
  std::string name;
  for (std::uint64_t bytes = 0; file >> name >> bytes;)
    if (name == prefix + "active_file" || name == prefix + "inactive_file") sum += bytes;
  return sum;
}

// The tightest limit on the way up, less what the group uses.
std::uint64_t cgroup_left() {
  std::uint64_t left = 0;
  const auto walk = [&](const std::string& root, std::string path, const char* limit_file, const char* use_file,
                        const char* stat_prefix) {
    for (;;) {
      const std::string base = root + (path == "/" ? "" : path) + "/";
      std::uint64_t limit = 0, use = 0;
      if (read_number(base + limit_file, limit) && limit < (std::uint64_t{1} << 60) && read_number(base + use_file, use)) {
        use -= std::min(use, page_cache(base + "memory.stat", stat_prefix));
        const std::uint64_t here = limit > use ? limit - use : 1;
        left = left == 0 ? here : std::min(left, here);
      }
      if (path.size() <= 1) return;
      path.resize(path.rfind('/'));
    }
  };
  walk("/sys/fs/cgroup", cgroup_path(true), "memory.max", "memory.current", "");
  walk("/sys/fs/cgroup/memory", cgroup_path(false), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_");
  return left;
}
#endif

}  // namespace

MemoryFacts memory_facts() {
  MemoryFacts facts;
  facts.available = available_memory_bytes();
#if !defined(__APPLE__)
  facts.cgroup_left = cgroup_left();
#endif
  return facts;
}

std::uint64_t MemoryPlan::total() const {
  std::uint64_t sum = 0;
  for (const MemoryTerm& t : terms) sum += t.bytes;
  return sum;
}

Result<MemoryPlan> plan_memory(const MemoryFacts& facts, const MemoryNeeds& needs, std::uint64_t ram) {
  MemoryPlan plan;
  plan.terms = {{"program", kProcessBytes, "fixed"},
                {"dense weights", needs.dense, "tensor sizes"},
                {"KV cache", needs.kv_cache, "context x layers"},
                {"activations", needs.scratch, "prefill chunk and context"},
                {"read buffers", needs.read_buffers, "reader settings"},
                {"tables", needs.tables, "tensor and expert count"}};
  const std::uint64_t fixed = plan.total();
  const std::uint64_t least = fixed + needs.least_experts * needs.expert_slot;

  if (ram > 0) {
    plan.budget = ram;
    plan.budget_source = "--ram";
  } else if (facts.available > 0) {
    std::uint64_t usable = facts.available;
    plan.budget_source = "available memory less a reserve";
    if (facts.cgroup_left > 0 && facts.cgroup_left < usable) {
      usable = facts.cgroup_left;
      plan.budget_source = "control group limit less a reserve";
    }
    plan.budget = usable - std::min(usable, reserve(usable));
    if (facts.working_set > 0 && facts.working_set < plan.budget) {
      plan.budget = facts.working_set;
      plan.budget_source = "the device's recommended working set";
    }
  } else {
    return fail("the system does not tell how much memory is available; give a budget with --ram GB");
  }
  if (plan.budget < least)
    return fail(
        "a memory budget of {:.2f} GB ({}) is too small for this model: {:.2f} GB is the smallest that works "
        "({:.2f} GB for everything but the experts, {} experts of {:.1f} MB); use --ram {:.2f}, a smaller --ctx or a smaller "
        "--prefill-chunk",
        static_cast<double>(plan.budget) / kGigabyte, plan.budget_source, static_cast<double>(least) / kGigabyte,
        static_cast<double>(fixed) / kGigabyte, needs.least_experts, static_cast<double>(needs.expert_slot) / 1e6,
        static_cast<double>(least) / kGigabyte + 0.005);
  if (needs.experts > 0) {
    COLIBRI_TRY(slabs, plan_slabs(plan.budget - fixed, needs.expert_slot, needs.experts, facts.longest_slab));
    plan.slabs = std::move(slabs);
    plan.all_resident = plan.slabs.slots == needs.experts;
    plan.terms.push_back(
        {"expert arena", plan.slabs.total_bytes(), plan.all_resident ? "every expert" : "what is left of the budget"});
  }
  return plan;
}

}  // namespace colibri

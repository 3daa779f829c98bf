// How much memory a model will take and how many experts fit into what is left: a pure function of facts that were
// gathered before, so that `coli plan` shows exactly what a run does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "experts/slab_arena.h"

namespace colibri {

// What the system can give this process now. Zero means unknown or unlimited.
struct MemoryFacts {
  std::uint64_t available = 0;    // the system's own estimate (Linux MemAvailable; macOS free, inactive and purgeable pages)
  std::uint64_t cgroup_left = 0;  // limit less use of the tightest control group, v2 or v1; page cache is not use
  std::uint64_t longest_slab = ~std::uint64_t{0};  // a device's longest buffer
  std::uint64_t working_set = 0;                   // a device's recommended working set
};
MemoryFacts memory_facts();

// What a model needs, all in bytes unless named otherwise.
struct MemoryNeeds {
  std::uint64_t dense = 0;     // weights held in memory
  std::uint64_t kv_cache = 0;  // at the whole context
  std::uint64_t scratch = 0;   // activations
  std::uint64_t read_buffers = 0;
  std::uint64_t tables = 0;         // indices of tensors and experts
  std::uint64_t expert_slot = 0;    // one routed expert in the arena
  std::uint64_t experts = 0;        // number of routed experts
  std::uint64_t least_experts = 0;  // that must fit: those of one token in one layer
};

struct MemoryTerm {
  std::string name;
  std::uint64_t bytes = 0;
  std::string source;  // where the value comes from: "weights on disk", "probed", "--ram", ...
};

struct MemoryPlan {
  std::uint64_t budget = 0;
  std::string budget_source;
  std::vector<MemoryTerm> terms;  // in the order they are taken; the experts last
  SlabPlan slabs;                 // no slots when the model has no routed experts
  bool all_resident = false;      // every expert has its slot
  std::uint64_t total() const;
};

// ram: the budget in bytes that the user asked for, or 0 for automatic: what is available less a reserve for the rest of
// the system. Fails, before anything was read, when not even the least works; the message names the smallest budget.
Result<MemoryPlan> plan_memory(const MemoryFacts& facts, const MemoryNeeds& needs, std::uint64_t ram);

// What the process uses beside the planned terms: program, libraries, stacks, tokenizer. Measured, rounded up.
inline constexpr std::uint64_t kProcessBytes = std::uint64_t{96} << 20;

}  // namespace colibri

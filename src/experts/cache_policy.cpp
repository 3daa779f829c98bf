#include "experts/cache_policy.h"

#include "experts/policies.h"

namespace colibri {
namespace {

constexpr CachePolicyInfo kPolicies[] = {
    {"lru", "least recently used", make_lru},
    {"lfu", "frequency that halves every 14 tokens", make_lfu},
    {"default", "learns online how likely each expert's next use is", make_learned},
};

}  // namespace

std::span<const CachePolicyInfo> cache_policies() { return kPolicies; }

Result<std::unique_ptr<CachePolicy>> make_cache_policy(std::string_view name, const CacheShape& shape) {
  std::string names;
  for (const CachePolicyInfo& info : kPolicies) {
    if (info.name == name) return info.make(shape);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", info.name);
  }
  return fail("cache policy '{}' is unknown; the policies are {}", name, names);
}

}  // namespace colibri

// What a cache policy decides: how much it is worth to keep an expert in memory. Policies are pure: they see the
// requests of a run in order, never a clock or a file, so that a recorded trace replays exactly (`coli replay`).
// Which experts are where, and who is being used, is the directory's business (cache_directory.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "experts/trace.h"

namespace colibri {

// The experts a cache chooses among. Layers are numbered among all layers; those without routed experts never appear.
struct CacheShape {
  std::int64_t layers = 0;
  std::int64_t experts = 0;  // of one layer
  std::int64_t top_k = 1;    // experts one row chooses

  std::size_t count() const { return static_cast<std::size_t>(layers * experts); }
  std::size_t index(std::int64_t layer, std::int64_t expert) const { return static_cast<std::size_t>(layer * experts + expert); }
};

class CachePolicy {
 public:
  virtual ~CachePolicy() = default;

  // A forward pass begins.
  virtual void begin_step(StepPhase /*phase*/, std::int64_t /*rows*/) {}
  // A layer of the step needs these experts; rows[i] rows chose ids[i].
  virtual void access(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows) = 0;

  // The worth of keeping an expert: that of least worth is evicted. It changes only when its layer is accessed.
  virtual double value(std::int64_t layer, std::int64_t expert) const = 0;
  // The same, seen `turns` passes of a layer before the expert's layer has its next turn (above 0, at most 1). Increasing
  // in `value` for equal `turns`.
  virtual double value_ahead(double value, double /*turns*/) const { return value; }
  // Whether an expert that is predicted for the next layer may take the place of one worth `victim`.
  virtual bool admits_prefetch(double /*victim*/) const { return true; }
};

// By name: "lru", "lfu", "default" ... (see kCachePolicies).
struct CachePolicyInfo {
  std::string_view name;
  std::string_view summary;
  std::unique_ptr<CachePolicy> (*make)(const CacheShape& shape);
};
std::span<const CachePolicyInfo> cache_policies();
Result<std::unique_ptr<CachePolicy>> make_cache_policy(std::string_view name, const CacheShape& shape);

}  // namespace colibri

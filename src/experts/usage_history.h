// Which experts were used in earlier runs: the `.coli_usage` file beside a model. It only ever helps to start with
// the right experts in memory; it may be deleted, and a damaged one is ignored with a notice.
//
// Text: a line `-1 LAYERS EXPERTS`, a line `-2 1 HASH` (32-bit FNV-1a of the name of the engine that wrote it, as a decimal
// number), then `LAYER EXPERT COUNT` per line. Files without the first two lines are older and accepted. The hash is
// written for other readers and not checked: counts of a model of the same shape can mislead a cache, not break it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "experts/cache_policy.h"

namespace colibri {

struct ExpertKey {
  std::int64_t layer = 0;
  std::int32_t expert = 0;
  bool operator==(const ExpertKey&) const = default;
};

class UsageHistory {
 public:
  explicit UsageHistory(const CacheShape& shape) : shape_(shape), counts_(shape.count()) {}

  // What the file says, each count times `decay` (0 to 1). No file: an empty history. A file that is damaged or of
  // another shape: an empty history, and `notice` says why (one line that names the file).
  static UsageHistory load(const std::filesystem::path& path, const CacheShape& shape, double decay, std::string& notice);

  // A layer used these experts; rows[i] rows chose ids[i].
  void add(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows);
  std::uint64_t count(std::int64_t layer, std::int64_t expert) const { return counts_[shape_.index(layer, expert)]; }
  std::uint64_t total() const;

  // Replaces the file in one step: whoever reads it finds the old or the new.
  Result<void> save(const std::filesystem::path& path, std::string_view engine_name) const;

  // The most used experts, the hottest first, that a cache of so many slots should keep for good: none before there is a
  // history worth the name, then a growing number, at most half the slots. The rest of the slots follows the text at hand.
  std::vector<ExpertKey> pin_set(std::int64_t slots) const;
  // The share of all choices so far that fell on the `slots` most used experts; nullopt before there is a history worth
  // the name. What a cache that holds just those would have found in memory.
  std::optional<double> share_of_hottest(std::int64_t slots) const;
  // The `limit` most used experts, the hottest first, without those never used.
  std::vector<ExpertKey> hottest(std::int64_t limit) const;

 private:
  CacheShape shape_;
  std::vector<std::uint64_t> counts_;
};

}  // namespace colibri

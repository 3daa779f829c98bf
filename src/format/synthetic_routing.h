// What a synthetic model's config.json says about its routing, under `colibri_synthetic_routing`.
//
// Random router weights choose experts like dice, and caches have nothing to learn from dice. These are the numbers of
// a model of routing (experts/routing_model.h) that can stand in for such a router.
// Real models do not have the key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace colibri {

inline constexpr const char* kSyntheticRoutingKey = "colibri_synthetic_routing";

struct SyntheticRouting {
  std::uint64_t seed = 1;
  double skew = 0.45, topic = 0.6, phrase = 0.5, noise = 1.0;  // weights of the four parts of an expert's score
  std::int64_t topics = 12;
  double topic_tokens = 300, phrase_tokens = 12;  // mean lengths
  double sticky = 0.2;                            // probability that an expert's noise stays for another token
  double recall = 0.75;  // share of a layer's experts that can be predicted while the layer before is computed, on average

  bool operator==(const SyntheticRouting&) const = default;
};

// The object's text, {"seed": 1, ...}.
std::string synthetic_routing_json(const SyntheticRouting& routing);
// From the text of a config.json; nullopt when it has no such key. Absent numbers take their defaults; one out of range
// is an error that names it.
Result<std::optional<SyntheticRouting>> parse_synthetic_routing(std::string_view config);
Result<std::optional<SyntheticRouting>> load_synthetic_routing(const std::filesystem::path& model_dir);

}  // namespace colibri

// Which tensor is to blame when a step's numbers stop being finite. The step's numbers are looked at between any two
// things it does, which costs next to nothing; weights are looked through only when something was found.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/thread_team.h"
#include "model/weights.h"

namespace colibri {

// What was applied since the numbers were last known to be finite.
struct Suspects {
  std::string where;                      // "layer 3, attention"
  std::vector<const Matrix*> matrices;    // of the model's weights, in the order of their use; those without rows are skipped
  std::int64_t layer = 0;                 // of the experts
  std::span<const std::int32_t> experts;  // routed ones
};
Suspects attention_suspects(const LayerWeights& layer, std::int64_t index);
Suspects feed_forward_suspects(const LayerWeights& layer, std::int64_t index, std::span<const std::int32_t> experts);

// Names shard and tensor of the first weight that is infinite or NaN. Experts are read from disk for that.
Error find_damage(const ModelWeights& weights, const Suspects& suspects, ThreadTeam& team);

}  // namespace colibri

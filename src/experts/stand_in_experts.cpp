#include "experts/stand_in_experts.h"

#include <algorithm>

namespace colibri {

Result<std::unique_ptr<StandInExperts>> StandInExperts::load(const Checkpoint& checkpoint,
                                                             const std::vector<std::vector<ExpertRecord>>& records,
                                                             std::uint64_t slots, ThreadTeam& team) {
  std::uint64_t sparse = 0, fewest = ~std::uint64_t{0};
  for (const auto& layer : records)
    if (!layer.empty()) ++sparse, fewest = std::min<std::uint64_t>(fewest, layer.size());
  const std::uint64_t per_layer = sparse == 0 ? 1 : std::clamp<std::uint64_t>(slots / sparse, 1, fewest);
  auto first = records;
  for (auto& layer : first)
    if (!layer.empty()) layer.resize(per_layer);
  COLIBRI_TRY(resident, ResidentExperts::load(checkpoint, first, team));
  return std::unique_ptr<StandInExperts>(new StandInExperts(std::move(resident), static_cast<std::int32_t>(per_layer)));
}

Result<void> StandInExperts::request(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows) {
  mapped_.clear();
  for (const std::int32_t id : ids) mapped_.push_back(id % per_layer_);
  return resident_.request(layer, mapped_, rows);
}

}  // namespace colibri

#include "experts/resident_experts.h"

#include <cassert>

#include "format/matrix_block.h"

namespace colibri {

Result<ResidentExperts> ResidentExperts::load(const Checkpoint& checkpoint, const std::vector<std::vector<ExpertRecord>>& records,
                                              ThreadTeam& team) {
  ResidentExperts result;
  result.experts_.resize(records.size());
  std::vector<MatrixRead> reads;
  for (std::size_t layer = 0; layer < records.size(); ++layer) {
    result.experts_[layer].resize(records[layer].size());
    for (std::size_t e = 0; e < records[layer].size(); ++e) {
      const ExpertRecord& record = records[layer][e];
      ExpertWeights& weights = result.experts_[layer][e];
      reads.push_back({record.gate, &weights.gate});
      reads.push_back({record.up, &weights.up});
      reads.push_back({record.down, &weights.down});
    }
  }
  COLIBRI_TRY(block, read_matrix_block(checkpoint, reads, team));
  result.memory_ = std::move(block);
  return result;
}

Result<void> ResidentExperts::request(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t>) {
  assert(handed_out_ == ids_.size());
  layer_ = layer;
  ids_.assign(ids.begin(), ids.end());
  handed_out_ = 0;
  return {};
}

void ResidentExperts::abandon_step() {
  ids_.clear();
  handed_out_ = 0;
}

Result<std::optional<ExpertSource::Ready>> ResidentExperts::next(bool) {
  if (handed_out_ == ids_.size()) return std::nullopt;
  const std::size_t index = handed_out_++;
  return Ready{index, experts_[static_cast<std::size_t>(layer_)][static_cast<std::size_t>(ids_[index])]};
}

}  // namespace colibri

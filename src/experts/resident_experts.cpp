#include "experts/resident_experts.h"

#include <cassert>
#include <mutex>

namespace colibri {

Result<ResidentExperts> ResidentExperts::load(const Checkpoint& checkpoint, const std::vector<std::vector<ExpertRecord>>& records,
                                              ThreadTeam& team) {
  struct Read {
    const MatrixSource* source;
    Matrix* target;
    std::uint64_t offset;
  };
  ResidentExperts result;
  result.experts_.resize(records.size());
  std::vector<Read> reads;
  std::uint64_t total = 0;
  for (std::size_t layer = 0; layer < records.size(); ++layer) {
    result.experts_[layer].resize(records[layer].size());
    for (std::size_t e = 0; e < records[layer].size(); ++e) {
      const ExpertRecord& record = records[layer][e];
      ExpertWeights& weights = result.experts_[layer][e];
      for (const auto& [source, target] :
           {std::pair{&record.gate, &weights.gate}, {&record.up, &weights.up}, {&record.down, &weights.down}}) {
        reads.push_back({source, target, total});
        total += round_up(Checkpoint::matrix_bytes(*source), kWeightAlignment);
      }
    }
  }
  result.memory_ = AlignedBytes(total);
  std::mutex mutex;
  std::optional<Error> error;
  team.parallel_for(static_cast<std::int64_t>(reads.size()), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Read& read = reads[static_cast<std::size_t>(i)];
      auto matrix = checkpoint.read_matrix(*read.source, result.memory_.data() + read.offset);
      if (matrix) {
        *read.target = *matrix;
      } else {
        const std::lock_guard lock(mutex);
        if (!error) error = std::move(matrix).error();
      }
    }
  });
  if (error) return pass(std::move(*error));
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

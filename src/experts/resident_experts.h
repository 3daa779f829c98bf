// All routed experts in memory, read once at load: for models that fit.
#pragma once

#include <vector>

#include "base/aligned.h"
#include "base/thread_team.h"
#include "experts/expert_source.h"

namespace colibri {

class ResidentExperts final : public ExpertSource {
 public:
  // records[layer][expert]; layers without routed experts are empty. The team reads in parallel.
  static Result<ResidentExperts> load(const Checkpoint& checkpoint, const std::vector<std::vector<ExpertRecord>>& records,
                                      ThreadTeam& team);

  Result<void> request(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows) override;
  Result<std::optional<Ready>> next(bool wait) override;
  void release(std::size_t) override {}
  void abandon_step() override;
  const ExpertWeights* resident(std::int64_t layer, std::int32_t expert) const override {
    return &experts_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(expert)];
  }
  std::vector<std::span<std::byte>> memory() override { return {memory_.whole_pages()}; }

  std::uint64_t bytes() const { return memory_.size(); }

 private:
  ResidentExperts() = default;
  AlignedBytes memory_;
  std::vector<std::vector<ExpertWeights>> experts_;
  std::int64_t layer_ = 0;
  std::vector<std::int32_t> ids_;
  std::size_t handed_out_ = 0;
};

}  // namespace colibri

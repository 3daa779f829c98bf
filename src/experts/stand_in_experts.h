// A few resident experts that stand in for all: expert ids are mapped onto those in memory. Bytes and products are those of
// a real run, nothing is read, and the text is wrong. It measures what a run costs when the disk costs nothing.
#pragma once

#include "experts/resident_experts.h"

namespace colibri {

class StandInExperts final : public ExpertSource {
 public:
  // Loads the first experts of every layer, `slots` in all as far as that gives every layer the same number, at least one.
  // records[layer][expert]; layers without routed experts are empty.
  static Result<std::unique_ptr<StandInExperts>> load(const Checkpoint& checkpoint,
                                                      const std::vector<std::vector<ExpertRecord>>& records, std::uint64_t slots,
                                                      ThreadTeam& team);

  Result<void> request(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows) override;
  Result<std::optional<Ready>> next(bool wait) override { return resident_.next(wait); }
  void release(std::size_t index) override { resident_.release(index); }
  void abandon_step() override { resident_.abandon_step(); }
  std::vector<std::span<std::byte>> memory() override { return resident_.memory(); }
  // The work of predicting belongs to the run that is measured.
  bool wants_predictions() const override { return true; }

  std::uint64_t bytes() const { return resident_.bytes(); }

 private:
  StandInExperts(ResidentExperts resident, std::int32_t per_layer) : resident_(std::move(resident)), per_layer_(per_layer) {}

  ResidentExperts resident_;
  std::int32_t per_layer_;
  std::vector<std::int32_t> mapped_;
};

}  // namespace colibri

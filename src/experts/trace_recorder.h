// Stands between the graph and a source of experts and records what passes. It sees from outside what the trace asks
// for: which experts a layer wants, and how long the graph computes between its calls. Time spent inside the source is
// waiting and is not counted.
#pragma once

#include <chrono>
#include <functional>

#include "experts/expert_source.h"
#include "experts/trace_writer.h"

namespace colibri {

class TraceRecorder final : public ExpertSource {
 public:
  using Sink = std::function<void(const TraceStep&)>;

  // Every finished step goes to the sink when the next one begins, or with flush: its logits, which are computed after its
  // end, are a part of it. The source must outlive this.
  TraceRecorder(ExpertSource& source, Sink sink) : source_(source), sink_(std::move(sink)) {}

  // A step that is abandoned is not recorded.
  void begin_step(StepPhase phase, std::int64_t rows) override;
  void end_step() override;
  void logits_computed(std::chrono::nanoseconds taken) override;
  void abandon_step() override { source_.abandon_step(); }
  Result<void> request(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows) override;
  Result<std::optional<Ready>> next(bool wait) override;
  bool can_wait() const override { return source_.can_wait(); }
  void release(std::size_t index) override { source_.release(index); }
  std::vector<std::span<std::byte>> memory() override { return source_.memory(); }
  // Predictions are asked for even when the source does not want them: the trace does. Making them counts as computing.
  bool wants_predictions() const override { return true; }
  void predict(std::int64_t layer, std::span<const std::int32_t> ids) override;
  void flush();

 private:
  using Clock = std::chrono::steady_clock;
  // Nanoseconds since the graph last got control back.
  std::int64_t computed() const;
  void close_layer();

  ExpertSource& source_;
  Sink sink_;
  TraceStep step_;
  std::vector<std::int32_t> predicted_;
  std::int64_t predicted_layer_ = -1;
  Clock::time_point resumed_;
  std::int64_t expert_ns_ = 0;  // of the layer in progress, all experts
  bool in_layer_ = false, first_wait_ = false, finished_ = false;
};

}  // namespace colibri

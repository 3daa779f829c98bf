// Routed experts read from disk as they are needed, into an arena of fixed size with a cache in it: for models that do
// not fit into memory. Joins the arena, the reader and the directory; the policies are in the directory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/memory_sample.h"
#include "experts/arena_governor.h"
#include "experts/cache_directory.h"
#include "experts/expert_source.h"
#include "experts/record_reader.h"
#include "experts/slab_arena.h"
#include "experts/usage_history.h"

namespace colibri {

struct StreamingOptions {
  SlabPlan slabs;  // of plan_slabs; slots of record_slot_bytes()
  ReaderOptions reader;
  std::string policy = "default";  // by name, see cache_policy.h
  bool prefetch = true;            // read what the next layer will probably need
  UsageHistory* usage = nullptr;   // counts what is requested; must outlive the source
  FileOps* file_ops = nullptr;     // for tests
  // Asked before every step. Slots are given up and taken back as ArenaGovernor decides for this budget; empty: all are used.
  MemorySamples memory;
  std::uint64_t budget = 0;  // of the process, in bytes
};

struct StreamingStats {
  CacheCounts prefill, decode;
  ReaderStats reader;
  std::uint64_t steps_prefill = 0, steps_decode = 0;
  std::uint64_t expert_bytes = 0;  // one expert's, on disk
  // Of `slots`: not used because memory was short; now, and at most at one time since the source was opened.
  std::int64_t slots = 0, given_up = 0, most_given_up = 0;
  std::int64_t lost = 0;  // of those given up now: the system did not take them back, and they are not used again

  StreamingStats since(const StreamingStats& before) const;
};

// A slot must hold any of these records.
std::uint64_t record_slot_bytes(const std::vector<std::vector<ExpertRecord>>& records);

class StreamingExperts final : public ExpertSource {
 public:
  // records[layer][expert] as ModelWeights plans them; top_k: experts one row chooses. The slots must hold at least top_k
  // experts.
  static Result<std::unique_ptr<StreamingExperts>> open(const Checkpoint& checkpoint,
                                                        const std::vector<std::vector<ExpertRecord>>& records, std::int64_t top_k,
                                                        const StreamingOptions& options, ThreadTeam& team);

  // Keeps experts in memory for good, in this order, while there is room; read in the background. Layer and expert: inside
  // the model's shape; a layer without routed experts is passed over.
  void pin(std::span<const ExpertKey> pins);

  void begin_step(StepPhase phase, std::int64_t rows) override;
  void abandon_step() override;
  Result<void> request(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows) override;
  Result<std::optional<Ready>> next(bool wait) override;
  bool can_wait() const override;
  void release(std::size_t index) override;
  std::vector<std::span<std::byte>> memory() override { return arena_.slabs(); }
  bool wants_predictions() const override { return options_.prefetch; }
  void predict(std::int64_t layer, std::span<const std::int32_t> ids) override;

  StreamingStats stats() const;
  const SlabArena& arena() const { return arena_; }
  const RecordReader& reader() const { return *reader_; }
  std::uint64_t expert_bytes() const { return expert_bytes_; }  // of the largest record

 private:
  // Where an expert of the current request is on its way to the graph.
  enum class Stage : std::uint8_t { kNeedsSlot, kReading, kReady, kInUse, kDone };
  struct Read {
    ReadTicket ticket;
    std::int64_t layer = 0;
    std::int32_t expert = 0;
    bool predicted = false;  // started for a prediction, not wanted by a request so far
  };

  StreamingExperts(std::vector<std::vector<ReadPlan>> plans, CacheDirectory directory, SlabArena arena,
                   std::unique_ptr<RecordReader> reader, StreamingOptions options);
  void follow_memory();
  std::int64_t all_slots() const { return static_cast<std::int64_t>(arena_.slots()); }
  void start_read(std::int64_t layer, std::int32_t expert, std::int32_t slot, ReadPriority priority);
  Read* reading(std::int64_t layer, std::int32_t expert);
  void place_missing();
  void place_predictions();
  void cancel_reads(const std::function<bool(const Read&)>& unwanted);
  Result<void> collect(bool wait);
  Result<void> complete(const Read& read, const Result<void>& result);
  void abandon_request();
  const ReadPlan& plan(std::int64_t layer, std::int32_t expert) const {
    return plans_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(expert)];
  }

  std::vector<std::vector<ReadPlan>> plans_;
  CacheDirectory directory_;
  SlabArena arena_;
  std::unique_ptr<RecordReader> reader_;
  StreamingOptions options_;
  std::uint64_t expert_bytes_ = 0;

  std::int64_t layer_ = 0;  // of the current request
  std::vector<std::int32_t> ids_, slots_;
  std::vector<Stage> stages_;
  std::vector<std::size_t> ready_;  // indices of the request, the first to be handed out last
  std::size_t unfinished_ = 0;      // of the request: neither handed out nor abandoned
  std::vector<Read> reads_;         // submitted and not completed
  std::vector<ReadCompletion> completed_;
  std::int64_t predicted_layer_ = 0;
  std::vector<std::int32_t> predicted_;  // not placed so far, the most likely first
  std::uint64_t steps_[2] = {};
  std::optional<ArenaGovernor> governor_;  // while memory is watched
  std::int64_t most_given_up_ = 0;
};

}  // namespace colibri

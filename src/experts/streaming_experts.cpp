#include "experts/streaming_experts.h"

#include <algorithm>
#include <cassert>

namespace colibri {

std::uint64_t record_slot_bytes(const std::vector<std::vector<ExpertRecord>>& records) {
  std::uint64_t largest = 0;
  for (const auto& layer : records)
    for (const ExpertRecord& record : layer) largest = std::max(largest, plan_record(record, {}).slot_bytes);
  return largest;
}

StreamingExperts::StreamingExperts(std::vector<std::vector<ReadPlan>> plans, CacheDirectory directory, SlabArena arena,
                                   std::unique_ptr<RecordReader> reader, StreamingOptions options)
    : plans_(std::move(plans)),
      directory_(std::move(directory)),
      arena_(std::move(arena)),
      reader_(std::move(reader)),
      options_(std::move(options)) {
  for (const auto& layer : plans_)
    for (const ReadPlan& p : layer) expert_bytes_ = std::max(expert_bytes_, p.read_bytes());
  if (options_.memory)
    governor_.emplace(ArenaLimits{directory_.slots(), directory_.shape().top_k, arena_.slot_bytes(), options_.budget});
}

Result<std::unique_ptr<StreamingExperts>> StreamingExperts::open(const Checkpoint& checkpoint,
                                                                 const std::vector<std::vector<ExpertRecord>>& records,
                                                                 std::int64_t top_k, const StreamingOptions& options,
                                                                 ThreadTeam& team) {
  CacheShape shape;
  shape.layers = static_cast<std::int64_t>(records.size());
  shape.top_k = top_k;
  std::vector<std::vector<ReadPlan>> plans(records.size());
  for (std::size_t layer = 0; layer < records.size(); ++layer) {
    shape.experts = std::max(shape.experts, static_cast<std::int64_t>(records[layer].size()));
    for (std::size_t e = 0; e < records[layer].size(); ++e)
      plans[layer].push_back(plan_record(records[layer][e], {static_cast<std::int64_t>(layer), static_cast<std::int32_t>(e)}));
  }
  if (static_cast<std::int64_t>(options.slabs.slots) < top_k)
    return fail("memory for {} experts: at least {} are needed, those of one token in one layer", options.slabs.slots, top_k);
  COLIBRI_TRY(policy, make_cache_policy(options.policy, shape));
  std::vector<std::filesystem::path> files;
  for (const Checkpoint::Shard& shard : checkpoint.shards()) files.push_back(shard.path);
  COLIBRI_TRY(reader, RecordReader::open(files, options.reader, options.file_ops));
  COLIBRI_TRY(arena, SlabArena::allocate(options.slabs, &team));
  CacheDirectory directory(shape, static_cast<std::int64_t>(options.slabs.slots), std::move(policy));
  return std::unique_ptr<StreamingExperts>(
      new StreamingExperts(std::move(plans), std::move(directory), std::move(arena), std::move(reader), options));
}

void StreamingExperts::pin(std::span<const ExpertKey> pins) {
  for (const ExpertKey& p : pins) {
    if (static_cast<std::size_t>(p.expert) >= plans_[static_cast<std::size_t>(p.layer)].size()) continue;  // a dense layer's
    const auto place = directory_.pin(p.layer, p.expert);
    if (!place) return;
    if (place->slot != CacheDirectory::kNone) start_read(p.layer, p.expert, place->slot, ReadPriority::kPrefetch);
  }
}

void StreamingExperts::begin_step(StepPhase phase, std::int64_t rows) {
  abandon_request();
  predicted_.clear();
  ++steps_[static_cast<std::size_t>(phase)];
  directory_.begin_step(phase, rows);
  if (governor_) follow_memory();
}

void StreamingExperts::follow_memory() {
  if (const auto sample = options_.memory()) governor_->update(*sample);
  const std::int64_t slots = std::min(governor_->slots(), directory_.slots());
  if (directory_.usable() == slots) return;
  const auto unused = directory_.set_usable(slots);
  const std::vector<std::int32_t> gone(unused.begin(), unused.end());
  for (const std::int32_t slot : gone)
    if (!arena_.give_back(static_cast<std::uint64_t>(slot))) directory_.retire(slot);
  most_given_up_ = std::max(most_given_up_, all_slots() - directory_.usable());
}

void StreamingExperts::start_read(std::int64_t layer, std::int32_t expert, std::int32_t slot, ReadPriority priority) {
  directory_.hold(layer, expert);  // until it has arrived
  const ReadTicket ticket = reader_->submit(plan(layer, expert), arena_.slot(static_cast<std::uint64_t>(slot)), priority);
  reads_.push_back({ticket, layer, expert, priority == ReadPriority::kPrefetch});
}

StreamingExperts::Read* StreamingExperts::reading(std::int64_t layer, std::int32_t expert) {
  for (Read& read : reads_)
    if (read.layer == layer && read.expert == expert) return &read;
  return nullptr;
}

Result<void> StreamingExperts::request(std::int64_t layer, std::span<const std::int32_t> ids,
                                       std::span<const std::int32_t> rows) {
  abandon_request();
  layer_ = layer;
  ids_.assign(ids.begin(), ids.end());
  predicted_.clear();
  directory_.request(layer, ids, rows, slots_);
  if (options_.usage != nullptr) options_.usage->add(layer, ids, rows);
  stages_.assign(ids.size(), Stage::kNeedsSlot);
  ready_.clear();
  unfinished_ = ids.size();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (slots_[i] == CacheDirectory::kNone) continue;
    if (Read* read = reading(layer, ids[i])) {
      read->predicted = false;
      reader_->promote(read->ticket);
      stages_[i] = Stage::kReading;
    } else {
      stages_[i] = Stage::kReady;
      ready_.push_back(i);
    }
  }
  std::reverse(ready_.begin(), ready_.end());
  cancel_reads([layer](const Read& read) { return read.layer == layer && read.predicted; });  // guesses that were wrong
  place_missing();
  return {};
}

// Takes back what nobody waits for any more, so far as the disk has not begun with it.
void StreamingExperts::cancel_reads(const std::function<bool(const Read&)>& unwanted) {
  std::erase_if(reads_, [&](const Read& read) {
    if (!unwanted(read) || directory_.pinned(read.layer, read.expert) || !reader_->cancel(read.ticket)) return false;
    directory_.drop(read.layer, read.expert);
    return true;
  });
}

void StreamingExperts::place_missing() {
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    if (stages_[i] != Stage::kNeedsSlot) continue;
    const auto place = directory_.place(layer_, ids_[i]);
    if (!place) return;  // until something is released
    slots_[i] = place->slot;
    stages_[i] = Stage::kReading;
    start_read(layer_, ids_[i], place->slot, ReadPriority::kDemand);
  }
  place_predictions();
}

void StreamingExperts::predict(std::int64_t layer, std::span<const std::int32_t> ids) {
  predicted_layer_ = layer;
  predicted_.assign(ids.begin(), ids.end());
  place_missing();
}

// Only behind every demand of the current layer: a wrong guess must not delay what is needed now.
void StreamingExperts::place_predictions() {
  for (const std::int32_t expert : predicted_)
    if (const auto place = directory_.place_predicted(predicted_layer_, expert))
      start_read(predicted_layer_, expert, place->slot, ReadPriority::kPrefetch);
  predicted_.clear();
}

Result<std::optional<ExpertSource::Ready>> StreamingExperts::next(bool wait) {
  for (;;) {
    COLIBRI_CHECK(collect(false));
    if (!ready_.empty()) {
      const std::size_t index = ready_.back();
      ready_.pop_back();
      stages_[index] = Stage::kInUse;
      --unfinished_;
      return Ready{index, weights_in_slot(plan(layer_, ids_[index]), arena_.slot(static_cast<std::uint64_t>(slots_[index])))};
    }
    if (unfinished_ == 0 || !wait) return std::nullopt;
    place_missing();
    COLIBRI_CHECK(collect(true));
  }
}

bool StreamingExperts::can_wait() const {
  return std::any_of(stages_.begin(), stages_.end(), [](Stage s) { return s == Stage::kReading || s == Stage::kReady; });
}

void StreamingExperts::release(std::size_t index) {
  assert(stages_[index] == Stage::kInUse);
  stages_[index] = Stage::kDone;
  directory_.release(layer_, ids_[index]);
  if (unfinished_ > 0) place_missing();
}

Result<void> StreamingExperts::collect(bool wait) {
  completed_.clear();
  if (wait) {
    const std::size_t arrived = reader_->wait_any(completed_);
    assert(arrived > 0 && "an expert that is missing is being read or has its slot");
    (void)arrived;
  } else {
    reader_->poll(completed_);
  }
  Result<void> outcome;
  for (const ReadCompletion& done : completed_) {
    const auto it = std::find_if(reads_.begin(), reads_.end(), [&](const Read& r) { return r.ticket == done.ticket; });
    assert(it != reads_.end());
    const Read read = *it;
    reads_.erase(it);
    if (auto result = complete(read, done.result); !result && outcome) outcome = std::move(result);
  }
  return outcome;
}

// An error matters to the graph only when the current request wants the expert; a failed guess is simply forgotten.
Result<void> StreamingExperts::complete(const Read& read, const Result<void>& result) {
  std::size_t wanted = ids_.size();
  if (read.layer == layer_ && unfinished_ > 0)
    for (std::size_t i = 0; i < ids_.size(); ++i)
      if (ids_[i] == read.expert && stages_[i] == Stage::kReading) wanted = i;
  if (!result) {
    directory_.drop(read.layer, read.expert);
    if (wanted == ids_.size()) return {};
    stages_[wanted] = Stage::kDone;  // drop() ended its hold
    --unfinished_;
    return result;
  }
  directory_.release(read.layer, read.expert);
  if (wanted != ids_.size()) {
    stages_[wanted] = Stage::kReady;
    ready_.insert(ready_.begin(), wanted);
  }
  return {};
}

// What was queued for the step must not keep the disk from the next one. Reads in flight go on and keep their slots.
void StreamingExperts::abandon_step() {
  abandon_request();
  predicted_.clear();
  cancel_reads([](const Read&) { return true; });
}

// Ends a request that was not carried through.
void StreamingExperts::abandon_request() {
  for (std::size_t i = 0; i < ids_.size(); ++i)
    if (stages_[i] == Stage::kReading || stages_[i] == Stage::kReady) directory_.release(layer_, ids_[i]);
  ids_.clear();
  stages_.clear();
  ready_.clear();
  unfinished_ = 0;
}

StreamingStats StreamingStats::since(const StreamingStats& before) const {
  StreamingStats d = *this;
  for (const auto& [now, then] : {std::pair{&d.prefill, &before.prefill}, {&d.decode, &before.decode}}) {
    now->needed -= then->needed;
    now->hits -= then->hits;
    now->pinned -= then->pinned;
    now->prefetched -= then->prefetched;
    now->unused -= then->unused;
  }
  d.reader = reader.since(before.reader);
  d.steps_prefill -= before.steps_prefill;
  d.steps_decode -= before.steps_decode;
  return d;
}

StreamingStats StreamingExperts::stats() const {
  return {directory_.counts(StepPhase::kPrefill),
          directory_.counts(StepPhase::kDecode),
          reader_->stats(),
          steps_[static_cast<std::size_t>(StepPhase::kPrefill)],
          steps_[static_cast<std::size_t>(StepPhase::kDecode)],
          expert_bytes_,
          all_slots(),
          all_slots() - directory_.usable(),
          most_given_up_,
          all_slots() - directory_.slots()};
}

}  // namespace colibri

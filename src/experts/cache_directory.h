// Which expert is in which slot of the arena, which are in use, and which slot the next one gets. A state machine
// without memory or files of its own: the streaming source drives it while reads go on, `coli replay` drives it from a
// trace.
//
// Experts in use are held and never evicted: those of the current request until they are released, those predicted for a
// layer until that layer's request. Pinned experts stay, unless set_usable leaves too few slots
// for them. A request needs no more slots at once than there are:
// place() says "not now" until a release.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "experts/cache_policy.h"

namespace colibri {

struct CacheOptions {
  // Every layer keeps at least this many slots once it has filled them, while all slots are usable.
  std::int64_t layer_floor = 0;
  // No layer may have more than this many slots; 0: no limit.
  std::int64_t layer_limit = 0;
};

struct CacheCounts {
  std::uint64_t needed = 0;      // distinct experts per request, summed
  std::uint64_t hits = 0;        // of them resident when the request came, prefetched ones included
  std::uint64_t pinned = 0;      // of the hits: pinned
  std::uint64_t prefetched = 0;  // of the hits: there only because they were predicted
  std::uint64_t unused = 0;      // predicted experts placed and then not needed by their layer
};

class CacheDirectory {
 public:
  CacheDirectory(const CacheShape& shape, std::int64_t slots, std::unique_ptr<CachePolicy> policy,
                 const CacheOptions& options = {});

  static constexpr std::int32_t kNone = -1;

  struct Placement {
    std::int32_t slot = kNone;     // read it into this slot
    std::int32_t evicted = kNone;  // index (CacheShape) of the expert that was there
  };
  // Keeps an expert for good; the placement has no slot when it is there already. Nullopt when only the top_k slots that
  // a row needs are free.
  std::optional<Placement> pin(std::int64_t layer, std::int64_t expert);

  void begin_step(StepPhase phase, std::int64_t rows);
  // A layer's demand. slots[i]: where ids[i] is, now held; kNone when it must be placed and read.
  void request(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows,
               std::vector<std::int32_t>& slots);
  // A slot for a missing expert of the current request, held. Nullopt: wait until something is released. There is always
  // one when nothing of the request is held and no predicted expert or read in flight holds one.
  std::optional<Placement> place(std::int64_t layer, std::int64_t expert);
  // A slot for an expert predicted for a layer still to come in this step, held until that layer's request; nullopt when
  // it is resident already or the experts in memory are worth more. To be asked only when every missing expert of the
  // current request has its slot.
  std::optional<Placement> place_predicted(std::int64_t layer, std::int64_t expert);

  // Holds count: a request and a read in flight may both hold an expert.
  void hold(std::int64_t layer, std::int64_t expert);
  void release(std::int64_t layer, std::int64_t expert);
  // Between requests: how many slots may be used, from top_k to slots(). The experts of least worth leave the others; pins end
  // when too little is left beside them. What is held stays where it is, so more may be in use than asked for: ask again.
  // Returns the slots that are used no more since this call; valid until the next one.
  std::span<const std::int32_t> set_usable(std::int64_t slots);
  // A slot that set_usable took out of use is never used again: there is one less from now on.
  void retire(std::int32_t slot);
  // Forgets a resident expert whose read failed: all holds end, the slot is free.
  void drop(std::int64_t layer, std::int64_t expert);

  std::int32_t slot(std::int64_t layer, std::int64_t expert) const { return entry(layer, expert).slot; }
  bool held(std::int64_t layer, std::int64_t expert) const { return entry(layer, expert).holds > 0; }
  bool pinned(std::int64_t layer, std::int64_t expert) const { return entry(layer, expert).pinned; }
  std::int64_t slots() const { return slots_; }
  std::int64_t usable() const { return slots_ - static_cast<std::int64_t>(unused_.size()); }
  std::int64_t resident() const { return usable() - static_cast<std::int64_t>(free_.size()); }
  const CacheShape& shape() const { return shape_; }
  const CacheCounts& counts(StepPhase phase) const { return counts_[static_cast<std::size_t>(phase)]; }

 private:
  struct Entry {
    std::int32_t slot = kNone;
    std::int32_t holds = 0;
    bool pinned = false;
    bool predicted = false;  // placed for a prediction whose layer has not come yet; one of the holds
    bool placed = false;     // placed by the current request and not released yet
  };
  // The least valuable expert of a layer that may be evicted.
  struct Least {
    bool known = false;
    std::int64_t expert = kNone;
    double value = 0;
  };
  struct Victim {
    std::int64_t layer = kNone, expert = kNone;
    double value = 0;
  };

  Entry& entry(std::int64_t layer, std::int64_t expert) { return entries_[shape_.index(layer, expert)]; }
  const Entry& entry(std::int64_t layer, std::int64_t expert) const { return entries_[shape_.index(layer, expert)]; }
  // Slots that a prefill's misses, or predictions, may hold at once.
  std::int64_t window() const { return std::max(shape_.top_k, usable() / 8); }
  const Least& least_of(std::int64_t layer);
  Victim find_victim(std::int64_t for_layer);
  std::optional<Placement> take_slot(std::int64_t layer, std::int64_t expert, bool predicted);
  Placement evict(const Victim& victim);
  void unpin();
  void end_predictions(std::int64_t layer);

  CacheShape shape_;
  std::int64_t slots_;
  std::unique_ptr<CachePolicy> policy_;
  CacheOptions options_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> free_;    // slots, the next one last
  std::vector<std::int32_t> unused_;  // slots given up, the last one last
  std::vector<Least> least_;          // per layer
  std::vector<std::int64_t> used_;    // per layer: resident experts
  std::vector<std::size_t> predicted_;
  std::int64_t layer_ = 0;  // of the current request
  StepPhase phase_ = StepPhase::kDecode;
  std::int64_t pinned_ = 0;
  std::int64_t placed_ = 0;  // placed by requests of this step and still held
  CacheCounts counts_[2];
};

}  // namespace colibri

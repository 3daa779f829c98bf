#include "experts/cache_directory.h"

#include <algorithm>
#include <cassert>

namespace colibri {

CacheDirectory::CacheDirectory(const CacheShape& shape, std::int64_t slots, std::unique_ptr<CachePolicy> policy,
                               const CacheOptions& options)
    : shape_(shape),
      slots_(slots),
      policy_(std::move(policy)),
      options_(options),
      entries_(shape.count()),
      least_(static_cast<std::size_t>(shape.layers)),
      used_(static_cast<std::size_t>(shape.layers)) {
  assert(slots > 0);
  unused_.reserve(static_cast<std::size_t>(slots));
  for (std::int64_t slot = slots; slot > 0; --slot) free_.push_back(static_cast<std::int32_t>(slot - 1));
}

std::optional<CacheDirectory::Placement> CacheDirectory::pin(std::int64_t layer, std::int64_t expert) {
  Entry& e = entry(layer, expert);
  Placement placement;
  if (e.slot == kNone) {
    if (static_cast<std::int64_t>(free_.size()) <= shape_.top_k) return std::nullopt;
    placement.slot = e.slot = free_.back();
    free_.pop_back();
    ++used_[static_cast<std::size_t>(layer)];
  }
  if (!e.pinned) ++pinned_;
  e.pinned = true;
  least_[static_cast<std::size_t>(layer)].known = false;
  return placement;
}

void CacheDirectory::begin_step(StepPhase phase, std::int64_t rows) {
  // What an aborted step left behind: predictions for layers that never came.
  for (const std::size_t index : predicted_) {
    entries_[index].predicted = false;
    release(static_cast<std::int64_t>(index) / shape_.experts, static_cast<std::int64_t>(index) % shape_.experts);
  }
  predicted_.clear();
  phase_ = phase;
  policy_->begin_step(phase, rows);
}

void CacheDirectory::request(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows,
                             std::vector<std::int32_t>& slots) {
  layer_ = layer;
  policy_->access(layer, ids, rows);
  least_[static_cast<std::size_t>(layer)].known = false;
  CacheCounts& counts = counts_[static_cast<std::size_t>(phase_)];
  counts.needed += ids.size();
  slots.clear();
  for (const std::int32_t id : ids) {
    Entry& e = entry(layer, id);
    slots.push_back(e.slot);
    if (e.slot == kNone) continue;
    ++e.holds;
    ++counts.hits;
    counts.pinned += e.pinned;
    if (e.predicted) {
      ++counts.prefetched;
      e.predicted = false;
      --e.holds;
    }
  }
  end_predictions(layer);
}

// Predictions for this layer that it did not need may go.
void CacheDirectory::end_predictions(std::int64_t layer) {
  std::erase_if(predicted_, [&](std::size_t index) {
    if (static_cast<std::int64_t>(index) / shape_.experts != layer) return false;
    if (entries_[index].predicted) {
      entries_[index].predicted = false;
      ++counts_[static_cast<std::size_t>(phase_)].unused;
      release(layer, static_cast<std::int64_t>(index) % shape_.experts);
    }
    return true;
  });
}

const CacheDirectory::Least& CacheDirectory::least_of(std::int64_t layer) {
  Least& least = least_[static_cast<std::size_t>(layer)];
  if (least.known) return least;
  least = {true, kNone, 0};
  if (used_[static_cast<std::size_t>(layer)] == 0) return least;
  for (std::int64_t expert = 0; expert < shape_.experts; ++expert) {
    const Entry& e = entry(layer, expert);
    if (e.slot == kNone || e.holds > 0 || e.pinned) continue;
    const double value = policy_->value(layer, expert);
    if (least.expert == kNone || value < least.value) {
      least.expert = expert;
      least.value = value;
    }
  }
  return least;
}

CacheDirectory::Victim CacheDirectory::find_victim(std::int64_t for_layer) {
  const auto used = [&](std::int64_t layer) { return used_[static_cast<std::size_t>(layer)]; };
  const bool own_only = options_.layer_limit > 0 && used(for_layer) >= options_.layer_limit;
  const std::int64_t floor = unused_.empty() ? options_.layer_floor : 0;
  Victim victim;
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    if (own_only && layer != for_layer) continue;
    if (layer != for_layer && used(layer) <= floor) continue;
    const Least& least = least_of(layer);
    if (least.expert == kNone) continue;
    const std::int64_t ahead = layer > layer_ ? layer - layer_ : layer - layer_ + shape_.layers;
    const double value = policy_->value_ahead(least.value, static_cast<double>(ahead) / static_cast<double>(shape_.layers));
    if (victim.expert == kNone || value < victim.value) victim = {layer, least.expert, value};
  }
  return victim;
}

CacheDirectory::Placement CacheDirectory::evict(const Victim& victim) {
  Entry& old = entry(victim.layer, victim.expert);
  const Placement placement{old.slot, static_cast<std::int32_t>(shape_.index(victim.layer, victim.expert))};
  old.slot = kNone;
  --used_[static_cast<std::size_t>(victim.layer)];
  least_[static_cast<std::size_t>(victim.layer)].known = false;
  return placement;
}

std::optional<CacheDirectory::Placement> CacheDirectory::take_slot(std::int64_t layer, std::int64_t expert, bool predicted) {
  const bool full = options_.layer_limit > 0 && used_[static_cast<std::size_t>(layer)] >= options_.layer_limit;
  Placement placement;
  if (!free_.empty() && !full) {
    placement.slot = free_.back();
    free_.pop_back();
  } else {
    const Victim victim = find_victim(layer);
    if (victim.expert == kNone) return std::nullopt;
    if (predicted && !policy_->admits_prefetch(victim.value)) return std::nullopt;
    placement = evict(victim);
  }
  ++used_[static_cast<std::size_t>(layer)];
  Entry& e = entry(layer, expert);
  e.slot = placement.slot;
  e.holds = 1;
  e.predicted = predicted;
  e.placed = !predicted;
  return placement;
}

std::optional<CacheDirectory::Placement> CacheDirectory::place(std::int64_t layer, std::int64_t expert) {
  assert(slot(layer, expert) == kNone && layer == layer_);
  // A prefill asks for nearly every expert of a layer. It passes through a part of the memory: were all of them held
  // at once, a layer would push out what the others and the decode steps to come have use for.
  if (phase_ == StepPhase::kPrefill && free_.empty() && placed_ >= window()) return std::nullopt;
  auto placement = take_slot(layer, expert, false);
  if (placement) ++placed_;
  return placement;
}

std::optional<CacheDirectory::Placement> CacheDirectory::place_predicted(std::int64_t layer, std::int64_t expert) {
  if (slot(layer, expert) != kNone || static_cast<std::int64_t>(predicted_.size()) >= window()) return std::nullopt;
  auto placement = take_slot(layer, expert, true);
  if (placement) predicted_.push_back(shape_.index(layer, expert));
  return placement;
}

void CacheDirectory::hold(std::int64_t layer, std::int64_t expert) {
  Entry& e = entry(layer, expert);
  assert(e.slot != kNone);
  ++e.holds;
  Least& least = least_[static_cast<std::size_t>(layer)];
  if (least.expert == expert) least.known = false;
}

void CacheDirectory::release(std::int64_t layer, std::int64_t expert) {
  Entry& e = entry(layer, expert);
  assert(e.holds > 0);
  if (--e.holds > 0) return;
  if (e.placed) {
    e.placed = false;
    --placed_;
  }
  Least& least = least_[static_cast<std::size_t>(layer)];
  if (!least.known || e.pinned) return;
  const double value = policy_->value(layer, expert);
  if (least.expert == kNone || value < least.value || (value == least.value && expert < least.expert))
    least = {true, expert, value};
}

std::span<const std::int32_t> CacheDirectory::set_usable(std::int64_t slots) {
  assert(slots >= std::min(shape_.top_k, slots_) && slots <= slots_);
  for (; usable() < slots; unused_.pop_back()) free_.push_back(unused_.back());
  const std::size_t before = unused_.size();
  if (usable() > slots && pinned_ > slots - shape_.top_k) unpin();
  while (usable() > slots) {
    if (!free_.empty()) {
      unused_.push_back(free_.back());
      free_.pop_back();
      continue;
    }
    const Victim victim = find_victim(layer_);
    if (victim.expert == kNone) break;
    unused_.push_back(evict(victim).slot);
  }
  return std::span(unused_).subspan(before);
}

void CacheDirectory::retire(std::int32_t slot) {
  const auto erased = std::erase(unused_, slot);
  assert(erased == 1);
  slots_ -= static_cast<std::int64_t>(erased);
}

void CacheDirectory::unpin() {
  for (Entry& e : entries_) e.pinned = false;
  for (Least& least : least_) least.known = false;
  pinned_ = 0;
}

void CacheDirectory::drop(std::int64_t layer, std::int64_t expert) {
  Entry& e = entry(layer, expert);
  assert(e.slot != kNone);
  if (e.placed) --placed_;
  if (e.pinned) --pinned_;
  std::erase(predicted_, shape_.index(layer, expert));
  free_.push_back(e.slot);
  e = {};
  --used_[static_cast<std::size_t>(layer)];
  least_[static_cast<std::size_t>(layer)].known = false;
}

}  // namespace colibri

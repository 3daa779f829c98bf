#include "experts/replay.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <deque>

namespace colibri {

ReplayHits replay(const Trace& trace, CacheDirectory& directory) {
  ReplayHits result;
  std::vector<std::int32_t> slots;
  for (const TraceStep& step : trace.steps) {
    directory.begin_step(step.phase, step.rows);
    for (const LayerAccess& access : step.accesses) {
      PhaseHits& hits = result.of(step.phase);
      hits.needed += access.needed.size();
      directory.request(access.layer, access.needed, access.rows, slots);
      std::deque<std::int32_t> held;  // in the order of computing
      for (std::size_t i = 0; i < slots.size(); ++i)
        if (slots[i] != CacheDirectory::kNone) {
          ++hits.hits;
          held.push_back(access.needed[i]);
        }
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] != CacheDirectory::kNone) continue;
        while (!directory.place(access.layer, access.needed[i])) {
          assert(!held.empty());
          directory.release(access.layer, held.front());
          held.pop_front();
        }
        held.push_back(access.needed[i]);
      }
      for (const std::int32_t id : held) directory.release(access.layer, id);
    }
  }
  return result;
}

std::int64_t count_experts(const Trace& trace) {
  std::vector<bool> sparse(static_cast<std::size_t>(trace.model.layers));
  for (const TraceStep& step : trace.steps)
    for (const LayerAccess& access : step.accesses) sparse[static_cast<std::size_t>(access.layer)] = true;
  return std::count(sparse.begin(), sparse.end(), true) * trace.model.experts;
}

std::int64_t experts_of_one_step(const Trace& trace) {
  std::size_t decode = 0, any = 0;
  for (const TraceStep& step : trace.steps) {
    std::size_t needed = 0;
    for (const LayerAccess& access : step.accesses) needed += access.needed.size();
    any = std::max(any, needed);
    if (step.phase == StepPhase::kDecode) decode = std::max(decode, needed);
  }
  return static_cast<std::int64_t>(decode > 0 ? decode : any);
}

std::vector<ReplaySize> compare_caches(const Trace& trace, const std::vector<std::int64_t>& slots, const UsageHistory* history) {
  const CacheShape shape = cache_shape(trace.model);
  const std::int64_t all = std::max<std::int64_t>(count_experts(trace), 1);
  const std::int64_t layers = std::max<std::int64_t>(all / trace.model.experts, 1);
  std::vector<ReplaySize> sizes;
  for (const std::int64_t count : slots) {
    ReplaySize size{count, static_cast<double>(count) / static_cast<double>(all), belady_hits(trace, count), {}};
    const auto add = [&](std::string_view policy, std::string_view suffix, const CacheOptions& options,
                         const std::vector<ExpertKey>& pins) {
      auto made = make_cache_policy(policy, shape);
      assert(made);
      CacheDirectory directory(shape, count, std::move(*made), options);
      for (const ExpertKey& pin : pins) directory.pin(pin.layer, pin.expert);
      size.rows.push_back({fmt::format("{}{}", policy, suffix), replay(trace, directory), 0});
    };
    const std::int64_t share = count / layers;
    for (const CachePolicyInfo& info : cache_policies()) add(info.name, "", {}, {});
    for (const std::string_view policy : {"lru", "default"})
      if (share >= trace.model.top_k) add(policy, ", equal layers", {0, share}, {});
    add("default", ", layer floors", {share / 2, 0}, {});
    if (history != nullptr)
      for (const std::string_view policy : {"lru", "default"}) add(policy, ", pinned", {}, history->pin_set(count));
    const double low = size.rows.front().hits.decode.rate(), high = size.optimum.decode.rate();
    for (ReplayRow& row : size.rows) row.gap_closed = high > low ? (row.hits.decode.rate() - low) / (high - low) : std::nan("");
    sizes.push_back(std::move(size));
  }
  return sizes;
}

}  // namespace colibri

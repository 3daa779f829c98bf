#include "experts/belady.h"

#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "experts/cache_policy.h"

namespace colibri {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

}  // namespace

ReplayHits belady_hits(const Trace& trace, std::int64_t slots) {
  const CacheShape shape{trace.model.layers, trace.model.experts, trace.model.top_k};
  // next[i]: the number of the request that needs the expert of the i-th access again.
  std::vector<std::uint64_t> next;
  {
    std::vector<std::pair<std::size_t, std::uint64_t>> accesses;  // expert, request
    std::uint64_t request = 0;
    for (const TraceStep& step : trace.steps)
      for (const LayerAccess& access : step.accesses) {
        for (const std::int32_t id : access.needed) accesses.emplace_back(shape.index(access.layer, id), request);
        ++request;
      }
    next.resize(accesses.size());
    std::vector<std::uint64_t> upcoming(shape.count(), kNever);
    for (std::size_t i = accesses.size(); i-- > 0;) {
      next[i] = upcoming[accesses[i].first];
      upcoming[accesses[i].first] = accesses[i].second;
    }
  }
  // Of everything that was in memory or just used, what is needed soonest stays. A request takes its hits before
  // anything makes room, so this holds for requests of any size.
  ReplayHits result;
  std::set<std::pair<std::uint64_t, std::size_t>> kept;  // next use, expert
  std::vector<std::uint64_t> use(shape.count(), 0);      // next use of what is kept, 0: not kept
  std::size_t i = 0;
  for (const TraceStep& step : trace.steps)
    for (const LayerAccess& access : step.accesses) {
      PhaseHits& hits = result.of(step.phase);
      hits.needed += access.needed.size();
      for (const std::int32_t id : access.needed) {
        const std::size_t key = shape.index(access.layer, id);
        if (use[key] != 0) {
          ++hits.hits;
          kept.erase({use[key], key});
        }
        use[key] = next[i++];
        kept.emplace(use[key], key);
      }
      while (static_cast<std::int64_t>(kept.size()) > slots) {
        const auto last = std::prev(kept.end());
        use[last->second] = 0;
        kept.erase(last);
      }
    }
  return result;
}

}  // namespace colibri

#include "model/step.h"

#include <algorithm>
#include <numeric>

namespace colibri {

Result<ContiguousRows> ContiguousRows::make(KvCache& cache, std::int64_t first, std::int64_t count) {
  if (count < 1) return fail("rows of a sequence: expected at least one, found {}", count);
  if (first < 0 || first > cache.capacity() - count)
    return fail("{} rows from position {} do not fit a sequence: its context has positions 0 to {}", count, first,
                cache.capacity() - 1);
  return ContiguousRows(cache, first, count);
}

Result<RaggedRows> RaggedRows::make(std::vector<ContiguousRows> sequences) {
  if (sequences.empty()) return fail("rows of several sequences: expected at least one sequence, found none");
  for (auto at = sequences.begin(); at != sequences.end(); ++at) {
    const auto same =
        std::find_if(sequences.begin(), at, [&](const ContiguousRows& rows) { return &rows.cache() == &at->cache(); });
    if (same != at)
      return fail("rows of several sequences: expected each sequence once, with all its rows; {} and {} are the same one",
                  same - sequences.begin(), at - sequences.begin());
  }
  return RaggedRows(std::move(sequences));
}

std::int64_t AnyRows::count() const {
  return std::accumulate(sequences_.begin(), sequences_.end(), std::int64_t{0},
                         [](std::int64_t sum, const ContiguousRows& rows) { return sum + rows.count(); });
}

}  // namespace colibri

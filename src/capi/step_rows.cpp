#include "capi/step_rows.h"

#include <algorithm>

#include "numerics/rotary.h"

namespace colibri::capi {
namespace {

constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;

std::int64_t end_of(const coli_metal_sequence& s) { return s.first + s.rows; }

// What a step writes and reads of one sequence.
struct CacheRange {
  std::uintptr_t begin;
  std::uint64_t bytes;
  std::size_t sequence;
  std::string_view name;
};

// Two caches in one memory: what one sequence writes the other would read, or not, as it happens.
Outcome<> check_apart(std::span<const coli_metal_sequence> sequences, const StepRows::Widths& widths) {
  std::vector<CacheRange> ranges;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const coli_metal_sequence& s = sequences[i];
    const auto bytes = [&](std::int64_t width) { return static_cast<std::uint64_t>(end_of(s) * width) * sizeof(float); };
    ranges.push_back({reinterpret_cast<std::uintptr_t>(s.entries), bytes(widths.entry), i, "entries"});
    if (widths.key > 0) ranges.push_back({reinterpret_cast<std::uintptr_t>(s.keys), bytes(widths.key), i, "keys"});
  }
  std::sort(ranges.begin(), ranges.end(), [](const CacheRange& a, const CacheRange& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    const CacheRange *found = &ranges[i - 1], *named = &ranges[i];
    if (named->begin - found->begin >= found->bytes) continue;
    if (named->sequence < found->sequence) std::swap(found, named);
    return bad("sequences[{}].{}: expected memory of its own, found that of sequences[{}].{}; all rows of a sequence go into one",
               named->sequence, named->name, found->sequence, found->name);
  }
  return {};
}

}  // namespace

Outcome<StepRows> StepRows::read(const Memory& memory, const coli_metal_sequence* sequences, std::int64_t count,
                                 std::int64_t most_rows, const Widths& widths) {
  COLIBRI_CHECK(check_pointer(sequences, "sequences"));
  COLIBRI_CHECK(check_range(count, 1, most_rows, "sequence_count"));
  StepRows out;
  out.sequences_ = {sequences, static_cast<std::size_t>(count)};
  for (std::size_t i = 0; i < out.sequences_.size(); ++i) {
    const coli_metal_sequence& s = sequences[i];
    const auto name = [&](std::string_view member) { return fmt::format("sequences[{}].{}", i, member); };
    COLIBRI_CHECK(check_range(s.rows, 1, most_rows, name("rows")));
    if (s.rows > most_rows - out.count())
      return bad("sequences: expected at most {} rows together, found {} and {} more in sequences[{}]", most_rows, out.count(),
                 s.rows, i);
    COLIBRI_CHECK(check_range(s.first, 0, kMostPositions - s.rows, name("first")));
    COLIBRI_CHECK(memory.cache(s.entries, end_of(s), widths.entry, name("entries")));
    if (widths.key > 0) COLIBRI_CHECK(memory.cache(s.keys, end_of(s), widths.key, name("keys")));
    for (std::int64_t position = s.first; position < end_of(s); ++position) out.rows_.push_back({&s, position});
    out.longest_ = std::max(out.longest_, end_of(s));
  }
  COLIBRI_CHECK(check_apart(out.sequences_, widths));
  return out;
}

Outcome<> StepRows::check_selection(const coli_metal_selection& s) const {
  COLIBRI_CHECK(check_range(s.top_k, 1, std::int64_t{1} << 24, "selection.top_k"));
  COLIBRI_CHECK(check_pointer(s.chosen, "selection.chosen"));
  COLIBRI_CHECK(check_pointer(s.counts, "selection.counts"));
  for (std::int64_t r = 0; r < count(); ++r) {
    const std::int64_t position = this->position(r), listed = s.counts[r];
    if (listed > s.top_k) return bad("selection.counts[{}]: expected at most top_k = {}, found {}", r, s.top_k, listed);
    if (listed == 0 && position + 1 > s.top_k)
      return bad("selection.counts[{}]: expected a list for a row at position {} with top_k = {}, found 0", r, position, s.top_k);
    for (std::int64_t i = 0; i < listed; ++i) {
      const std::int32_t p = s.chosen[r * s.top_k + i];
      if (p > position || p < 0 || (i > 0 && p <= s.chosen[r * s.top_k + i - 1]))
        return bad("selection.chosen[{}][{}]: expected rising positions 0 .. {}, found {}", r, i, position, p);
    }
  }
  return {};
}

std::vector<gpu::RowArgs> StepRows::args(const gpu::Device& device) const {
  std::vector<gpu::RowArgs> out(rows_.size());
  gpu::RowArgs* next = out.data();
  for (const coli_metal_sequence& s : sequences_)
    next = gpu::write_rows({device.address(s.entries), device.address(s.keys), s.first, s.rows}, next);
  return out;
}

void StepRows::rotary_tables(const coli_metal_attention& shape, std::vector<float>& cosine, std::vector<float>& sine) const {
  const numerics::RotaryTable table(shape.rope_theta, shape.rope);
  const auto half = static_cast<std::size_t>(shape.rope / 2);
  cosine.resize(rows_.size() * half);
  sine.resize(rows_.size() * half);
  for (std::size_t r = 0; r < rows_.size(); ++r)
    table.angles(rows_[r].position, cosine.data() + r * half, sine.data() + r * half);
}

}  // namespace colibri::capi

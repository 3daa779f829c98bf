#include "experts/read_plan.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <tuple>

namespace colibri {
namespace {

std::uint64_t end_of(const FileRange& range) { return range.offset + range.bytes; }

void append_run(ReadPlan& plan, std::uint8_t first, std::uint8_t end) {
  ReadRun run;
  run.shard = plan.part_list[first].source.shard;
  run.offset = plan.part_list[first].source.offset;
  run.first_part = first;
  run.part_count = static_cast<std::uint8_t>(end - first);
  run.in_place = true;
  std::uint64_t last = run.offset;
  for (const ReadPart& part : plan.parts().subspan(first, run.part_count)) {
    last = std::max(last, end_of(part.source));
    if (part.widen || (part.source.offset - run.offset) % kWeightAlignment != 0) run.in_place = false;
  }
  run.bytes = last - run.offset;
  plan.run_list[plan.run_count++] = run;
}

// Gives the parts of a run their places from `at` on; returns the end.
std::uint64_t place_run(ReadPlan& plan, ReadRun& run, std::uint64_t at) {
  const std::span<ReadPart> parts(plan.part_list.data() + run.first_part, run.part_count);
  if (!run.in_place) {
    for (ReadPart& part : parts) {
      part.slot_offset = round_up(at, kWeightAlignment);
      at = part.slot_offset + part.source.bytes * (part.widen ? 2 : 1);
    }
    return at;
  }
  const bool aligned = run.offset % kWeightAlignment == 0;
  if (aligned) {
    // At the same distance from a boundary as in the file: an uncached read needs no copy.
    run.slot_offset = round_up(at, kDirectAlignment) + run.offset % kDirectAlignment;
    at = round_up(run.slot_offset + run.bytes, kDirectAlignment);
  } else {
    run.slot_offset = round_up(at, kWeightAlignment);
    at = run.slot_offset + run.bytes;
  }
  for (ReadPart& part : parts) part.slot_offset = run.slot_offset + (part.source.offset - run.offset);
  return at;
}

// The whole record, trailer included, at the start of the slot: both are aligned for any kind of read.
void append_packed_run(ReadPlan& plan) {
  append_run(plan, 0, plan.part_count);
  ReadRun& run = plan.run_list[0];
  run.offset = plan.record.offset;
  run.bytes = plan.record.bytes;
}

// Neighbours at most merge_gap apart share a run.
void append_merged_runs(ReadPlan& plan, std::uint64_t merge_gap) {
  std::uint8_t first = 0;
  std::uint64_t end = 0;
  for (std::uint8_t i = 0; i < plan.part_count; ++i) {
    const FileRange& source = plan.part_list[i].source;
    const bool joins = i > first && source.shard == plan.part_list[first].source.shard &&
                       (source.offset <= end || source.offset - end <= merge_gap);
    if (i > first && !joins) {
      append_run(plan, first, i);
      first = i;
    }
    end = joins ? std::max(end, end_of(source)) : end_of(source);
  }
  append_run(plan, first, plan.part_count);
}

void finish_plan(ReadPlan& plan, std::uint64_t merge_gap) {
  std::sort(plan.part_list.begin(), plan.part_list.begin() + plan.part_count, [](const ReadPart& a, const ReadPart& b) {
    return std::tie(a.source.shard, a.source.offset, a.source.bytes) < std::tie(b.source.shard, b.source.offset, b.source.bytes);
  });
  if (plan.record.bytes > 0)
    append_packed_run(plan);
  else
    append_merged_runs(plan, merge_gap);

  std::uint64_t at = 0, last_byte = 0;
  for (ReadRun& run : std::span(plan.run_list.data(), plan.run_count)) {
    at = place_run(plan, run, at);
    for (const ReadPart& part : plan.parts().subspan(run.first_part, run.part_count))
      last_byte = std::max(last_byte, part.slot_offset + part.source.bytes * (part.widen ? 2 : 1));
  }
  plan.slot_bytes = round_up(std::max(at, last_byte + kReadSlack), kDirectAlignment);
}

}  // namespace

std::uint64_t ReadPlan::read_bytes() const {
  std::uint64_t bytes = 0;
  for (const ReadRun& run : runs()) bytes += run.bytes;
  return bytes;
}

ReadPlan plan_record(const ExpertRecord& record, const RecordName& name, std::uint64_t merge_gap) {
  ReadPlan plan;
  plan.name = name;
  plan.record = record.packed;
  const MatrixSource* const sources[] = {&record.gate, &record.up, &record.down};
  for (std::uint8_t m = 0; m < 3; ++m) {
    const MatrixSource& source = *sources[m];
    assert(source.data.bytes > 0);
    plan.matrices[m] = source.matrix;
    plan.part_list[plan.part_count++] = {source.data, 0, m, false, false};
    if (source.scales.bytes > 0) plan.part_list[plan.part_count++] = {source.scales, 0, m, true, source.scales_are_bf16};
  }
  finish_plan(plan, merge_gap);
  return plan;
}

ReadPlan plan_bytes(const FileRange& range) {
  assert(range.bytes > 0);
  ReadPlan plan;
  plan.part_list[plan.part_count++] = {range, 0, 0, false, false};
  finish_plan(plan, 0);
  return plan;
}

ExpertWeights weights_in_slot(const ReadPlan& plan, std::byte* slot) {
  assert(reinterpret_cast<std::uintptr_t>(slot) % kWeightAlignment == 0);
  std::array<Matrix, 3> views = plan.matrices;
  for (const ReadPart& part : plan.parts()) {
    std::byte* const at = slot + part.slot_offset;
    if (part.scales)
      views[part.matrix].scales = reinterpret_cast<const float*>(at);
    else
      views[part.matrix].data = at;
  }
  return {views[0], views[1], views[2]};
}

std::optional<BadScale> finish_record(const ReadPlan& plan, std::byte* slot) {
  constexpr std::uint32_t kExponent = 0x7f800000;  // all ones: infinite or not a number
  for (const ReadPart& part : plan.parts()) {
    if (!part.scales) continue;
    std::byte* const final = slot + part.slot_offset;
    const std::uint64_t count = part.source.bytes / (part.widen ? 2 : 4);
    if (part.widen) {
      const std::byte* const narrow = slot + part.raw_offset();
      for (std::uint64_t i = 0; i < count; ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, narrow + 2 * i, 2);
        const float wide = f32_from_bf16(bits);
        std::memcpy(final + 4 * i, &wide, 4);
      }
    }
    // Without a way out of the loop it is vectorised; where a bad value is, nobody needs to know fast.
    bool bad = false;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, final + 4 * i, 4);
      bad |= (bits & kExponent) == kExponent;
    }
    for (std::uint64_t i = 0; bad && i < count; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, final + 4 * i, 4);
      if ((bits & kExponent) == kExponent) return BadScale{&part, i, std::bit_cast<float>(bits)};
    }
  }
  return std::nullopt;
}

}  // namespace colibri

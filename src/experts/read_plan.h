// How one expert comes from its files into a slot: which runs of bytes are read, where each array lies in the slot,
// and the views that the kernels get. Pure functions; the reader (record_reader.h) carries them out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "experts/expert_source.h"

namespace colibri {

// What uncached reads need of file offset, length and address (the block of any disk; the page on Apple silicon). A
// slot must start at a multiple of it for a record to be read straight into its place.
#ifdef __APPLE__
inline constexpr std::uint64_t kDirectAlignment = 16384;
#else
inline constexpr std::uint64_t kDirectAlignment = 4096;
#endif
// Unwanted bytes between two arrays that are read along: some microseconds of transfer, less than another request.
inline constexpr std::uint64_t kMergeGap = 16384;

// Names an expert in messages.
struct RecordName {
  std::int64_t layer = 0;
  std::int32_t expert = 0;
};

// One array of a record.
struct ReadPart {
  FileRange source;
  std::uint64_t slot_offset = 0;  // where its final bytes start, a multiple of 64
  std::uint8_t matrix = 0;        // 0 gate, 1 up, 2 down
  bool scales = false;
  bool widen = false;  // bf16 in the file, f32 in the slot

  // Where the file's bytes go. Narrow scales are put into the second half of their place and widened from the front.
  std::uint64_t raw_offset() const { return slot_offset + (widen ? source.bytes : 0); }
};

// One run of bytes of one file, covering neighbouring parts.
struct ReadRun {
  std::int32_t shard = -1;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  // The run lies in the slot as it lies in the file, from slot_offset on. Where offset and slot_offset agree modulo
  // kDirectAlignment, the bytes around it up to the next such boundary are free to be overwritten.
  bool in_place = false;
  std::uint64_t slot_offset = 0;
  std::uint8_t first_part = 0;  // its parts: [first_part, first_part + part_count)
  std::uint8_t part_count = 0;
};

struct ReadPlan {
  RecordName name;
  std::array<Matrix, 3> matrices;  // gate, up, down, without addresses
  std::array<ReadPart, 6> part_list;
  std::array<ReadRun, 6> run_list;
  std::uint8_t part_count = 0;
  std::uint8_t run_count = 0;
  std::uint64_t slot_bytes = 0;  // a multiple of kDirectAlignment, the slack that Matrix asks for included
  FileRange record;              // of a packed expert: read whole, as its checksum needs it; else empty

  std::span<const ReadPart> parts() const { return {part_list.data(), part_count}; }
  std::span<const ReadRun> runs() const { return {run_list.data(), run_count}; }
  std::uint64_t read_bytes() const;  // what all runs read
};

// A packed record is one run. Else arrays may lie in any order, in different shards, and overlap. Neighbours at most merge_gap
// bytes apart share a run.
ReadPlan plan_record(const ExpertRecord& record, const RecordName& name, std::uint64_t merge_gap = kMergeGap);
// Plain bytes of one file, without views: for measuring a disk.
ReadPlan plan_bytes(const FileRange& range);

// The expert's views in a slot (64-byte aligned) that was read and finished.
ExpertWeights weights_in_slot(const ReadPlan& plan, std::byte* slot);

// Done once after the last byte has arrived: widens narrow scales and checks that every scale is finite.
struct BadScale {
  const ReadPart* part = nullptr;
  std::uint64_t index = 0;
  float value = 0;
};
std::optional<BadScale> finish_record(const ReadPlan& plan, std::byte* slot);

}  // namespace colibri

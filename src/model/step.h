// The rows of one step through the layers: tokens on their way, each at its place in its sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "experts/expert_source.h"
#include "model/kv_cache.h"

namespace colibri {

// Rows of one sequence at neighbouring positions first, first + 1, ...: a chunk of a prompt, a decode step, a draft to be
// verified. Holds a reference to the cache.
class ContiguousRows {
 public:
  // Fails when there is no row, or one stands outside the cache.
  static Result<ContiguousRows> make(KvCache& cache, std::int64_t first, std::int64_t count);

  KvCache& cache() const { return *cache_; }
  std::int64_t first() const { return first_; }
  std::int64_t count() const { return count_; }
  std::int64_t end() const { return first_ + count_; }  // the position after the last row's

 private:
  ContiguousRows(KvCache& cache, std::int64_t first, std::int64_t count) : cache_(&cache), first_(first), count_(count) {}
  KvCache* cache_;
  std::int64_t first_, count_;
};

// Rows of several sequences, whose positions have nothing to do with each other; those of one sequence are contiguous.
class RaggedRows {
 public:
  // Fails when there is no sequence, or one comes twice.
  static Result<RaggedRows> make(std::vector<ContiguousRows> sequences);

  std::span<const ContiguousRows> sequences() const { return sequences_; }

 private:
  explicit RaggedRows(std::vector<ContiguousRows> sequences) : sequences_(std::move(sequences)) {}
  std::vector<ContiguousRows> sequences_;
};

// Either of them, as whoever does not need neighbours takes them: the rows of one sequence after those of another. A view.
class AnyRows {
 public:
  AnyRows(const ContiguousRows& rows) : sequences_(&rows, 1) {}
  AnyRows(const RaggedRows& rows) : sequences_(rows.sequences()) {}

  std::span<const ContiguousRows> sequences() const { return sequences_; }
  std::int64_t count() const;

 private:
  std::span<const ContiguousRows> sequences_;
};

struct Row {
  KvCache* cache = nullptr;
  std::int64_t position = 0;
};

// What layers are given. Rows are numbered through all sequences, in their order.
struct StepRows {
  std::span<const ContiguousRows> sequences;  // for what uses that rows are neighbours
  std::span<const Row> rows;                  // for what treats every row by itself
  // Rotary cosines and sines of each row's position: rope dimensions / 2 floats a row.
  const float* cosine = nullptr;
  const float* sine = nullptr;

  std::int64_t count() const { return static_cast<std::int64_t>(rows.size()); }
};

// Asked again and again while a step is computed, by the thread that computes it: false gives the step up.
using KeepGoing = std::function<bool()>;
enum class StepEnd : std::uint8_t { kDone, kStopped };

// What the last full indexer layer chose, per row: positions in increasing order; empty means every visible position.
struct Selection {
  std::vector<std::vector<std::int32_t>> positions;
  void clear(std::size_t rows) {
    positions.resize(rows);
    for (auto& p : positions) p.clear();
  }
};

}  // namespace colibri

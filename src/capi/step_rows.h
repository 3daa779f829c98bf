// The rows of a call: neighbours in each sequence, sequence after sequence (coli_metal_sequence).
#pragma once

#include <span>
#include <vector>

#include "capi/checks.h"
#include "gpu/step_rows.h"

namespace colibri::capi {

class StepRows {
 public:
  // What a sequence's cache holds at a position, in floats; key 0: keys are not used.
  struct Widths {
    std::int64_t entry = 0, key = 0;
  };
  // At most most_rows rows whose caches lie in the caller's regions, no two of them in the same memory. The caller's array
  // must outlive this.
  static Outcome<StepRows> read(const Memory& memory, const coli_metal_sequence* sequences, std::int64_t count,
                                std::int64_t most_rows, const Widths& widths);

  std::span<const coli_metal_sequence> sequences() const { return sequences_; }
  std::int64_t count() const { return static_cast<std::int64_t>(rows_.size()); }
  std::int64_t longest() const { return longest_; }  // entries that the furthest row sees
  std::int64_t position(std::int64_t r) const { return rows_[static_cast<std::size_t>(r)].position; }
  const float* entries(std::int64_t r) const { return rows_[static_cast<std::size_t>(r)].sequence->entries; }

  // A list of rising positions for every row, up to its own, where it needs one.
  Outcome<> check_selection(const coli_metal_selection& s) const;
  // The rows as kernels see them, and the rotary tables of their positions.
  std::vector<gpu::RowArgs> args(const gpu::Device& device) const;
  void rotary_tables(const coli_metal_attention& shape, std::vector<float>& cosine, std::vector<float>& sine) const;

 private:
  struct Row {
    const coli_metal_sequence* sequence = nullptr;
    std::int64_t position = 0;
  };
  std::span<const coli_metal_sequence> sequences_;
  std::vector<Row> rows_;
  std::int64_t longest_ = 0;
};

}  // namespace colibri::capi

// Kernels applied by the thread team: the vocabulary in which the layers are written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/thread_team.h"
#include "cpu/kernels.h"

namespace colibri {

// y[r * y_stride + o] = dot(row o of w, row r of x).
struct Product {
  Matrix w;
  PackedRows x;
  float* y = nullptr;
  std::int64_t y_stride = 0;
};

class Ops {
 public:
  // max_cols: the widest input any product will see. Both references must outlive this.
  Ops(const Kernels& kernels, ThreadTeam& team, std::int64_t max_cols);

  const Kernels& kernels() const { return kernels_; }
  ThreadTeam& team() const { return team_; }
  int threads() const { return team_.size(); }

  // Runs all products as one parallel loop over their output rows.
  void multiply(std::span<const Product> products);
  void multiply(std::initializer_list<Product> products) { multiply(std::span(products.begin(), products.size())); }

  // Packs x (rows of cols floats, stride apart) into out, which has PackedRows::floats(rows, cols) floats.
  PackedRows pack(const float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols, float* out) const {
    kernels_.pack_rows(x, stride, rows, cols, out);
    return {out, rows, cols};
  }

  // out row = RMSNorm of x row, in parallel. Rows are `stride` apart in both.
  void rms_norm(const float* x, const float* weight, float eps, float* out, std::int64_t rows, std::int64_t cols);

  std::uint64_t scratch_bytes() const { return scratch_.size(); }
  KernelScratch scratch(int worker) { return {scratch_.data() + worker * scratch_bytes_, scratch_bytes_}; }

 private:
  const Kernels& kernels_;
  ThreadTeam& team_;
  std::int64_t scratch_bytes_;
  AlignedBytes scratch_;
  std::vector<std::int64_t> first_block_;
};

}  // namespace colibri

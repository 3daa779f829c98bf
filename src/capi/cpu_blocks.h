// What the GPU failed to compute, computed by the CPU kernels: the same bits (docs/numerics.md).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/thread_team.h"
#include "capi/step_rows.h"
#include "cpu/kernels.h"
#include "gpu/attention.h"

namespace colibri::capi {

// Attention of rows over their caches, as both sides compute it.
struct AttentionJob {
  gpu::AttentionShape shape;
  std::int64_t value_dim = 0;
  Matrix kv_b;
  StepRows rows;
  const coli_metal_selection* selection = nullptr;  // checked; null: none
  const float* queries = nullptr;                   // [rows][heads][nope + rope]
  std::vector<float> cosine, sine;                  // [rows][rope / 2]
};

// Threads are started at the first use.
class CpuBlocks {
 public:
  // y rows may overlap x.
  void product(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t rows, float* y, std::int64_t y_stride);
  // out: hidden floats.
  void expert(const Expert& expert, const float* x, float* out);
  // C8 for one row: y = residual + (sum of weights[rank] * outputs[rank] + shared); residual and shared may be null.
  static void combine(std::span<const float* const> outputs, const float* weights, const float* shared, const float* residual,
                      std::int64_t hidden, float* y);
  void attention(const AttentionJob& job, float* context);

 private:
  ThreadTeam& team();
  std::optional<ThreadTeam> team_;
};

}  // namespace colibri::capi

// One sparse block between its begin and its end.
#pragma once

#include "capi/backend.h"

namespace colibri::capi {

struct MoeWork {
  gpu::ExpertShape shape;
  std::int64_t rows = 0;
  std::vector<Expert> table;           // [experts]; only those that rows chose are filled in
  std::vector<std::int32_t> distinct;  // the experts that rows chose
  std::vector<std::int32_t> chosen;
  std::vector<float> x, weights, residual, shared;  // the caller's, copied; the last two may be empty

  // Where the GPU finds its parts.
  std::optional<WorkLease> memory;
  gpu::Address tables = 0, late_table = 0, chosen_at = 0, x_at = 0, weights_at = 0, residual_at = 0, shared_at = 0;
  gpu::Address groups_at = 0, act = 0, out = 0, y = 0, damage = 0;
  std::optional<gpu::Submission> pending;
  bool complete = false;  // begin had every expert, so what it submitted ends with y
  bool on_gpu = false;    // what was submitted has succeeded, or may still
  // [slot of (row, rank)][hidden], when the CPU goes on: outputs of the experts of `table`.
  std::vector<float> outputs;

  std::int64_t slots() const { return rows * shape.per_token; }
  gpu::ExpertGroups groups() const { return gpu::place_expert_groups(shape, rows, groups_at); }
};

}  // namespace colibri::capi

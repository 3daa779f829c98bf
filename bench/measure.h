// Weights, threads and medians for the kernel benchmark.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/aligned.h"
#include "base/thread_team.h"
#include "cpu/kernels.h"

namespace colibri::bench {

double seconds_of(const std::function<void()>& run);
double median(std::vector<double> values);

// `copies` random matrices of one format, one behind the other.
class Weights {
 public:
  Weights(WeightFormat format, std::int32_t group, std::int64_t rows, std::int64_t cols, std::int64_t copies);
  const Matrix& operator[](std::int64_t i) const { return matrices_[static_cast<std::size_t>(i)]; }
  std::int64_t copies() const { return static_cast<std::int64_t>(matrices_.size()); }
  double bytes() const { return bytes_; }  // of all copies, scales included

 private:
  AlignedBytes data_;
  AlignedArray<float> scales_;
  std::vector<Matrix> matrices_;
  double bytes_ = 0;
};

// Random activations, plain and packed, and room for results and scratch of every thread.
class Work {
 public:
  Work(ThreadTeam& team, const Kernels& kernels, std::int64_t rows, std::int64_t cols, std::int64_t outputs);
  // y = w x, outputs shared out among the threads.
  void matmul(const Matrix& w);
  // All copies; every thread of the team takes part in each.
  void matmul_all(const Weights& w);
  // Thread t multiplies copy t `repeats` times: rates out of its own cache.
  void matmul_own(const Weights& w, int repeats);

  const float* plain() const { return x_.data(); }
  float* results() { return y_.data(); }
  const KernelScratch scratch(int worker) { return {scratch_.data() + worker * scratch_bytes_, scratch_bytes_}; }

 private:
  ThreadTeam& team_;
  const Kernels& kernels_;
  std::int64_t outputs_;
  AlignedArray<float> x_, packed_, y_;
  std::int64_t scratch_bytes_;
  AlignedBytes scratch_;
  PackedRows view_;
};

}  // namespace colibri::bench

#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/fp_mode.h"

namespace colibri::bench {
namespace {

std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

float random_unit(std::uint64_t& state) {
  return static_cast<float>(static_cast<std::int64_t>(next_random(state) % 20001) - 10000) * 1e-4f;
}

// Codes may be any bits; floats must be ordinary ones.
void fill(WeightFormat format, std::byte* data, std::int64_t bytes) {
  std::uint64_t state = 88172645463325252u;
  for (std::int64_t i = 0; i + 8 <= bytes; i += 8) {
    std::uint64_t word = next_random(state);
    if (format == WeightFormat::kF32) word = (word & 0x807fffff807fffffu) | 0x3c0000003c000000u;
    if (format == WeightFormat::kBF16) word = (word & 0x807f807f807f807fu) | 0x3c003c003c003c00u;
    if (format == WeightFormat::kF16) word = (word & 0x83ff83ff83ff83ffu) | 0x2c002c002c002c00u;
    if (format == WeightFormat::kF8Block128) word &= 0xf7f7f7f7f7f7f7f7u;
    std::memcpy(data + i, &word, 8);
  }
}

}  // namespace

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Weights::Weights(WeightFormat format, std::int32_t group, std::int64_t rows, std::int64_t cols, std::int64_t copies) {
  const auto one = static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(format_bytes(format, rows, cols)), 64));
  const std::int64_t scales = format_scales(format, rows, cols, group);
  data_ = AlignedBytes(static_cast<std::size_t>(one * copies));
  scales_ = AlignedArray<float>(static_cast<std::size_t>(scales * copies));
  fill(format, data_.data(), one * copies);
  std::uint64_t state = 1234567;
  for (float& s : scales_.span()) s = random_unit(state) * 0.01f;
  bytes_ = static_cast<double>(format_bytes(format, rows, cols) + 4 * scales) * static_cast<double>(copies);
  for (std::int64_t i = 0; i < copies; ++i) {
    Matrix m;
    m.format = format;
    m.group = group;
    m.rows = rows;
    m.cols = cols;
    m.row_bytes = format_row_bytes(format, cols);
    m.scale_stride = format_row_scales(format, cols, group);
    m.data = data_.data() + i * one;
    m.scales = scales ? scales_.data() + i * scales : nullptr;
    matrices_.push_back(m);
  }
}

Work::Work(ThreadTeam& team, const Kernels& kernels, std::int64_t rows, std::int64_t cols, std::int64_t outputs)
    : team_(team),
      kernels_(kernels),
      outputs_(outputs),
      x_(static_cast<std::size_t>(rows * cols)),
      packed_(static_cast<std::size_t>(PackedRows::floats(rows, cols))),
      y_(static_cast<std::size_t>(rows * outputs)),
      scratch_bytes_(kernel_scratch_bytes(cols)),
      scratch_(static_cast<std::size_t>(scratch_bytes_ * team.size())),
      view_{packed_.data(), rows, cols} {
  std::uint64_t state = 99;
  for (float& v : x_.span()) v = random_unit(state);
  kernels.pack_rows(x_.data(), cols, rows, cols, packed_.data());
}

void Work::matmul(const Matrix& w) {
  team_.parallel_for(w.rows, 128, [&](std::int64_t begin, std::int64_t end, int worker) {
    const FlushDenormals flush;
    kernels_.matmul(w, begin, end, view_, y_.data(), outputs_, scratch(worker));
  });
}

void Work::matmul_all(const Weights& w) {
  for (std::int64_t i = 0; i < w.copies(); ++i) matmul(w[i]);
}

void Work::matmul_own(const Weights& w, int repeats) {
  team_.parallel_for(team_.size(), 1, [&](std::int64_t begin, std::int64_t end, int worker) {
    const FlushDenormals flush;
    AlignedArray<float> y(static_cast<std::size_t>(view_.rows * outputs_));
    for (std::int64_t t = begin; t < end; ++t)
      for (int i = 0; i < repeats; ++i) kernels_.matmul(w[t], 0, w[t].rows, view_, y.data(), outputs_, scratch(worker));
  });
}

}  // namespace colibri::bench

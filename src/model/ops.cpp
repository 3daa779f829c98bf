#include "model/ops.h"

#include <algorithm>

namespace colibri {
namespace {

// Output rows of one piece of work: a multiple of every register tile, small enough to balance two threads on
// small matrices, large enough that the loop's cost does not show.
constexpr std::int64_t kRowBlock = 48;

}  // namespace

Ops::Ops(const Kernels& kernels, ThreadTeam& team, std::int64_t max_cols)
    : kernels_(kernels),
      team_(team),
      scratch_bytes_(static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(kernel_scratch_bytes(max_cols)), 4096))),
      scratch_(static_cast<std::size_t>(scratch_bytes_ * team.size())) {}

void Ops::multiply(std::span<const Product> products) {
  first_block_.clear();
  std::int64_t blocks = 0;
  for (const Product& p : products) {
    first_block_.push_back(blocks);
    blocks += ceil_div(p.w.rows, kRowBlock);
  }
  const std::int64_t grain = std::clamp<std::int64_t>(blocks / (std::int64_t{8} * threads()), 1, 16);
  team_.parallel_for(blocks, grain, [&](std::int64_t begin, std::int64_t end, int worker) {
    auto index =
        static_cast<std::size_t>(std::upper_bound(first_block_.begin(), first_block_.end(), begin) - first_block_.begin() - 1);
    while (begin < end) {
      const Product& p = products[index];
      const std::int64_t own = std::min(end, first_block_[index] + ceil_div(p.w.rows, kRowBlock));
      const std::int64_t first = (begin - first_block_[index]) * kRowBlock;
      const std::int64_t last = std::min((own - first_block_[index]) * kRowBlock, p.w.rows);
      if (first < last) kernels_.matmul(p.w, first, last, p.x, p.y, p.y_stride, scratch(worker));
      begin = own;
      ++index;
    }
  });
}

void Ops::rms_norm(const float* x, const float* weight, float eps, float* out, std::int64_t rows, std::int64_t cols) {
  team_.parallel_for(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) kernels_.rms_norm(x + r * cols, weight, eps, out + r * cols, cols);
  });
}

}  // namespace colibri

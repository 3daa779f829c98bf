#include "format/matrix_block.h"

#include <mutex>
#include <optional>
#include <vector>

namespace colibri {

std::uint64_t matrix_block_bytes(std::span<const MatrixRead> reads) {
  std::uint64_t bytes = 0;
  for (const MatrixRead& read : reads) bytes += Checkpoint::matrix_bytes(read.source);
  return bytes;
}

Result<AlignedBytes> read_matrix_block(const Checkpoint& checkpoint, std::span<const MatrixRead> reads, ThreadTeam& team) {
  std::vector<std::uint64_t> offsets;
  std::uint64_t total = 0;
  for (const MatrixRead& read : reads) {
    offsets.push_back(total);
    total += Checkpoint::matrix_bytes(read.source);
  }
  AlignedBytes block = AlignedBytes::pages(total);
  std::mutex mutex;
  std::optional<Error> error;
  team.parallel_for(static_cast<std::int64_t>(reads.size()), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      auto matrix = checkpoint.read_matrix(reads[i].source, block.data() + offsets[i]);
      if (matrix) {
        *reads[i].target = *matrix;
      } else {
        const std::lock_guard lock(mutex);
        if (!error) error = std::move(matrix).error();
      }
    }
  });
  if (error) return pass(std::move(*error));
  return block;
}

}  // namespace colibri

// Many matrices in one block of memory, in whole pages so that a GPU can use them where they lie.
#pragma once

#include <span>

#include "base/aligned.h"
#include "base/thread_team.h"
#include "format/checkpoint.h"

namespace colibri {

struct MatrixRead {
  MatrixSource source;
  Matrix* target = nullptr;  // becomes the view of what was read
};

// What the block takes of memory, without the slack past its end.
std::uint64_t matrix_block_bytes(std::span<const MatrixRead> reads);

// Reads all of them, each thread of the team one at a time. The targets are valid as long as the block that is returned;
// after an error (the first that happened) some of them are not.
Result<AlignedBytes> read_matrix_block(const Checkpoint& checkpoint, std::span<const MatrixRead> reads, ThreadTeam& team);

}  // namespace colibri

// How one weight matrix is laid down in a written model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "convert/quantize.h"
#include "convert/shard_plan.h"

namespace colibri {

// A matrix of this format and shape without data: strides filled in.
Matrix describe_matrix(const TargetFormat& target, std::int64_t rows, std::int64_t cols);

// A group as wide as the row is the row-wise format.
TargetFormat simplified(const TargetFormat& target, std::int64_t cols);

// The tensors of a matrix in the plain layout: a U8 blob and its F32 scales under `<name>.qs`, or one float tensor. A format
// that readers would not guess from the sizes gets a stamp; an error when even that would not tell it.
Result<std::vector<PlannedTensor>> matrix_tensors(const std::string& name, const TargetFormat& target, std::int64_t rows,
                                                  std::int64_t cols);

// Pieces of a large matrix: rows first .. first + count.
struct RowPiece {
  std::int64_t first = 0, count = 0;
};
std::int64_t row_pieces(std::int64_t rows, std::int64_t cols);
RowPiece row_piece(std::int64_t rows, std::int64_t cols, std::int64_t piece);

}  // namespace colibri

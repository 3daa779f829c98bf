#include "convert/matrix_units.h"

#include <algorithm>

#include "base/aligned.h"
#include "format/blob_format.h"
#include "format/file.h"

namespace colibri {
namespace {

constexpr std::int64_t kPieceElements = 4 << 20;  // 16 MiB of f32: enough work to share, little memory
constexpr std::int64_t kPieceRows = 128;          // pieces start at multiples of this, so that fp8 blocks stay whole

std::int64_t rows_per_piece(std::int64_t cols) {
  return std::max(kPieceElements / cols / kPieceRows, std::int64_t{1}) * kPieceRows;
}

}  // namespace

Matrix describe_matrix(const TargetFormat& target, std::int64_t rows, std::int64_t cols) {
  Matrix m;
  m.format = target.format;
  m.group = target.group;
  m.rows = rows;
  m.cols = cols;
  m.row_bytes = format_row_bytes(target.format, cols);
  m.scale_stride = format_row_scales(target.format, cols, target.group);
  return m;
}

TargetFormat simplified(const TargetFormat& target, std::int64_t cols) {
  if (target.format == WeightFormat::kInt4Grouped && target.group >= cols) return {WeightFormat::kInt4Row, 0};
  return target;
}

Result<std::vector<PlannedTensor>> matrix_tensors(const std::string& name, const TargetFormat& target, std::int64_t rows,
                                                  std::int64_t cols) {
  std::vector<PlannedTensor> tensors;
  if (target.format == WeightFormat::kF32 || target.format == WeightFormat::kBF16 || target.format == WeightFormat::kF16) {
    const DType dtype = target.format == WeightFormat::kF32   ? DType::kF32
                        : target.format == WeightFormat::kF16 ? DType::kF16
                                                              : DType::kBF16;
    tensors.push_back(planned_tensor(name, dtype, {rows, cols}));
    return tensors;
  }
  tensors.push_back(planned_tensor(name, DType::kU8, {format_bytes(target.format, rows, cols)}));
  tensors.push_back(planned_tensor(name + ".qs", DType::kF32, {format_scales(target.format, rows, cols, target.group)}));
  const auto is_read_as_meant = [&](std::string_view stamp) {
    const auto found = infer_blob_format(rows, cols, tensors[0].bytes, tensors[1].bytes, stamp);
    const bool same_group = target.format != WeightFormat::kInt4Grouped || (found && found->group == target.group);
    return found && found->format == target.format && same_group;
  };
  if (is_read_as_meant({})) return tensors;
  tensors[0].stamp = format_name(target.format);
  if (is_read_as_meant(tensors[0].stamp)) return tensors;
  return fail("tensor {} [{}, {}]: as {} its size would be taken for another format; choose another format or group size",
              in_quotes(name), rows, cols, target_format_text(target));
}

std::int64_t row_pieces(std::int64_t rows, std::int64_t cols) { return ceil_div(rows, rows_per_piece(cols)); }

RowPiece row_piece(std::int64_t rows, std::int64_t cols, std::int64_t piece) {
  const std::int64_t first = piece * rows_per_piece(cols);
  return {first, std::min(rows_per_piece(cols), rows - first)};
}

}  // namespace colibri

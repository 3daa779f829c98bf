#include "gpu/products.h"

#include <cassert>
#include <limits>

#include "base/aligned.h"
#include "gpu/kernels/dot_shape.h"
#include "gpu/kernels/products.h"

namespace colibri::gpu {
namespace {

static_assert(static_cast<int>(WeightFormat::kF32) == kStoredF32 && static_cast<int>(WeightFormat::kBF16) == kStoredBF16 &&
              static_cast<int>(WeightFormat::kF16) == kStoredF16 && static_cast<int>(WeightFormat::kInt8Row) == kStoredInt8 &&
              static_cast<int>(WeightFormat::kInt4Row) == kStoredInt4Row &&
              static_cast<int>(WeightFormat::kInt4Grouped) == kStoredInt4 &&
              static_cast<int>(WeightFormat::kInt2Row) == kStoredInt2 &&
              static_cast<int>(WeightFormat::kInt3G64) == kStoredInt3 &&
              static_cast<int>(WeightFormat::kF8Block128) == kStoredF8 && kWeightFormatCount == 9);

ProductLaunch launch(std::int64_t at_once, std::int64_t output_blocks, std::int64_t rows, std::int64_t heads) {
  ProductLaunch l;
  l.at_once = at_once;
  l.row_blocks = ceil_div(rows, at_once);
  l.groups = {output_blocks * l.row_blocks, 1, heads};
  // Kernels count threadgroups in 32 bits.
  assert(l.groups.x <= std::numeric_limits<u32>::max() && heads <= kMaxGroupsYZ);
  return l;
}

ProductArgs product_args(Encoder& encoder, const ProductLaunch& l, const Matrix& w, const HeadSlices& slices, const Rows& x,
                         std::int64_t x_head, Address y, std::int64_t y_stride, std::int64_t y_head) {
  ProductArgs a{};
  a.w = matrix_args(encoder, w);
  a.x = x.data;
  a.y = y;
  a.x_stride = static_cast<u64>(x.stride);
  a.x_head = static_cast<u64>(x_head);
  a.y_stride = static_cast<u64>(y_stride);
  a.y_head = static_cast<u64>(y_head);
  a.head_rows = static_cast<u32>(slices.head_rows);
  a.first_row = static_cast<u32>(slices.first);
  a.count = static_cast<u32>(slices.count);
  a.rows = static_cast<u32>(x.count);
  a.x_aligned = x.data % 16 == 0 && x.stride % 4 == 0 && x_head % 4 == 0;
  a.row_blocks = static_cast<u32>(l.row_blocks);
  return a;
}

double multiply_adds(const HeadSlices& slices, const Rows& x, const Matrix& w) {
  return static_cast<double>(slices.heads * slices.count) * static_cast<double>(x.count * w.cols);
}

// Kernels count the bytes of a row in 32 bits.
[[maybe_unused]] constexpr std::int64_t kMostColumns = std::int64_t{1} << 28;

[[maybe_unused]] bool inside(const HeadSlices& slices, const Matrix& w) {
  return slices.first + slices.count <= slices.head_rows && slices.heads * slices.head_rows <= w.rows;
}

}  // namespace

ProductLaunch plan_product(const ProductPlan& plan, std::int64_t outputs, std::int64_t rows, std::int64_t heads) {
  const bool tiled = rows >= plan.tile_from;
  constexpr std::int64_t kTile = kStagedRows;
  const std::int64_t at_once = tiled ? kTile : rows <= 1 ? 1 : rows == 2 ? 2 : 4;
  ProductLaunch l = launch(at_once, ceil_div(outputs, kGroupOutputs), rows, heads);
  l.tiled = tiled;
  return l;
}

ProductLaunch plan_transposed(std::int64_t columns, std::int64_t rows, std::int64_t heads) {
  return launch(rows <= 1 ? 1 : rows <= 4 ? 4 : 8, ceil_div(columns, kGroupThreads), rows, heads);
}

void product(Encoder& encoder, const ProductPlan& plan, const Matrix& w, const Rows& x, Address y, std::int64_t y_stride) {
  head_products(encoder, plan, w, {1, w.rows, 0, w.rows}, x, 0, y, y_stride, 0);
}

void head_products(Encoder& encoder, const ProductPlan& plan, const Matrix& w, const HeadSlices& slices, const Rows& x,
                   std::int64_t x_head, Address y, std::int64_t y_stride, std::int64_t y_head) {
  assert(x.cols == w.cols && w.cols < kMostColumns && inside(slices, w));
  encoder.add_work(multiply_adds(slices, x, w));
  const ProductLaunch l = plan_product(plan, slices.count, x.count, slices.heads);
  encoder.dispatch({"products", l.tiled ? "product_tile" : "product", {static_cast<u32>(w.format), static_cast<u32>(l.at_once)}},
                   product_args(encoder, l, w, slices, x, x_head, y, y_stride, y_head), l.groups, kGroupThreads);
}

void transposed_head_products(Encoder& encoder, const Matrix& w, const HeadSlices& slices, const Rows& x, std::int64_t x_head,
                              Address y, std::int64_t y_stride, std::int64_t y_head) {
  assert(x.cols == slices.count && w.cols < kMostColumns && inside(slices, w));
  encoder.add_work(multiply_adds(slices, x, w));
  const ProductLaunch l = plan_transposed(w.cols, x.count, slices.heads);
  encoder.dispatch({"products", "transposed_product", {static_cast<u32>(w.format), static_cast<u32>(l.at_once)}},
                   product_args(encoder, l, w, slices, x, x_head, y, y_stride, y_head), l.groups, kGroupThreads);
}

}  // namespace colibri::gpu

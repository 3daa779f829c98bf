// Products of quantised matrices with rows of activations, as rule C2 of docs/numerics.md fixes them. The first rows, a few
// rows and many rows take different kernels and give the same bits (C3).
#pragma once

#include "gpu/matrix_args.h"

namespace colibri::gpu {

// From how many rows on the tiled kernel is used (COLI_METAL_GEMM_MIN).
struct ProductPlan {
  std::int64_t tile_from = 16;
};

// How a product is launched: each threadgroup takes at_once rows of activations, block x % row_blocks of them, and block
// x / row_blocks of the outputs (columns, transposed) of head z.
struct ProductLaunch {
  bool tiled = false;
  std::int64_t at_once = 1, row_blocks = 0;
  Groups groups;
};
ProductLaunch plan_product(const ProductPlan& plan, std::int64_t outputs, std::int64_t rows, std::int64_t heads);
ProductLaunch plan_transposed(std::int64_t columns, std::int64_t rows, std::int64_t heads);

// y[r * y_stride + o] = dot(row o of w, row r of x). w.cols == x.cols.
void product(Encoder& encoder, const ProductPlan& plan, const Matrix& w, const Rows& x, Address y, std::int64_t y_stride);

// One matrix whose rows belong to heads: head h has rows [h * head_rows + first, + count).
struct HeadSlices {
  std::int64_t heads = 0, head_rows = 0, first = 0, count = 0;
};

// y[r * y_stride + h * y_head + o] = dot(row o of head h's slice, x.data + r * x.stride + h * x_head). x.cols == w.cols.
void head_products(Encoder& encoder, const ProductPlan& plan, const Matrix& w, const HeadSlices& slices, const Rows& x,
                   std::int64_t x_head, Address y, std::int64_t y_stride, std::int64_t y_head);

// Rule C2t: y[r * y_stride + h * y_head + j] = sum over rows d of head h's slice of x[r * x.stride + h * x_head + d] * w[d][j],
// for all columns j. x.cols == slices.count.
void transposed_head_products(Encoder& encoder, const Matrix& w, const HeadSlices& slices, const Rows& x, std::int64_t x_head,
                              Address y, std::int64_t y_stride, std::int64_t y_head);

}  // namespace colibri::gpu

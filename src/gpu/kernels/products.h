// Products of stored matrices with rows of activations (src/gpu/products.h).
#pragma once

#include "gpu/kernels/weight_formats.h"

#ifndef __METAL_VERSION__
namespace colibri::gpu {
#endif

// Threadgroup (x, 0, h): head h, block x / row_blocks of its outputs (columns, transposed), block x % row_blocks of the rows, so
// that neighbours share weights. Strides are in floats.
struct ProductArgs {
  MatrixArgs w;
  COLI_IN(float) x;
  COLI_OUT(float) y;
  u64 x_stride, x_head, y_stride, y_head;
  u32 head_rows, first_row;  // head h has the rows from h * head_rows + first_row on
  u32 count;                 // how many
  u32 rows;                  // of activations
  u32 x_aligned;             // every row of x at a multiple of 16 bytes
  u32 row_blocks;
  u32 first_group;
  u32 pad;
};
COLI_SHARED_STRUCT(ProductArgs, 136);

#ifndef __METAL_VERSION__
}  // namespace colibri::gpu
#endif

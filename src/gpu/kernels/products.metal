#include "gpu/kernels/dot.h"
#include "gpu/kernels/products.h"
#pragma METAL fp contract(off)
using namespace metal;

constant uint kFormat [[function_constant(0)]];
constant uint kRows [[function_constant(1)]];  // of activations that a threadgroup takes

// Row r of activations as head `head` sees it; the last one stands in for those that are not there.
inline device const float* activation(constant ProductArgs& a, ulong head, uint r) {
  return a.x + min(r, a.rows - 1) * a.x_stride + head * a.x_head;
}
template <u32 R>
inline DeviceRows<R> activations(constant ProductArgs& a, ulong head, uint first) {
  DeviceRows<R> x;
  x.aligned = a.x_aligned != 0;
#pragma unroll
  for (uint r = 0; r < R; ++r) x.row[r] = activation(a, head, first + r);
  return x;
}

template <u32 R>
inline void store(constant ProductArgs& a, thread const float* v, ulong head, uint first_row, uint first_output, uint lane) {
  constexpr u32 sums = R * kOutputs;
  if (!has_sum<sums>(lane)) return;
#pragma unroll
  for (uint j = 0; j < sums_of_lane<sums>(); ++j) {
    const uint n = first_sum<sums>(lane) + j, row = first_row + n / kOutputs, output = first_output + n % kOutputs;
    if (row < a.rows && output < a.count) a.y[row * a.y_stride + head * a.y_head + output] = v[j];
  }
}

template <u32 R>
inline void few_rows(constant ProductArgs& a, ulong head, uint block, uint index) {
  const uint first_row = block % a.row_blocks * R, lane = index % 16;
  const uint first_output = block / a.row_blocks * kGroupOutputs + index / 16 * kOutputs;
  const ulong first = head * a.head_rows + a.first_row;
  float v[R * kOutputs];
  dot_rows<R>(v, kFormat, weights_of(&a.w), first + first_output, first + a.count, activations<R>(a, head, first_row), lane);
  store<R>(a, v, head, first_row, first_output, lane);
}

// One to a few rows: activations come straight from device memory.
kernel void product(constant ProductArgs& a [[buffer(0)]],
                    uint3 group [[threadgroup_position_in_grid]],
                    uint index [[thread_index_in_threadgroup]]) {
  const uint block = group.x + a.first_group;
  if (kRows == 1)
    few_rows<1>(a, group.z, block, index);
  else if (kRows == 2)
    few_rows<2>(a, group.z, block, index);
  else
    few_rows<4>(a, group.z, block, index);
}

// Many rows: a threadgroup shares them through threadgroup memory.
kernel void product_tile(constant ProductArgs& a [[buffer(0)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint index [[thread_index_in_threadgroup]]) {
  threadgroup float4 quads[kStagedQuads];
  const uint block = group.x + a.first_group;
  const ulong head = group.z, first = head * a.head_rows + a.first_row;
  const uint first_row = block % a.row_blocks * kStagedRows;
  const uint first_output = block / a.row_blocks * kGroupOutputs + index / 16 * kOutputs;
  float v[kStagedRows * kOutputs];
  dot_staged_rows(v, kFormat, weights_of(&a.w), first + first_output, first + a.count,
                  activation(a, head, first_row + index / 16), a.x_aligned != 0, index, quads);
  store<kStagedRows>(a, v, head, first_row, first_output, index % 16);
}

// Rule C2t: a thread owns a column and walks down the rows in chunks of 32.
template <u32 F, u32 R>
inline void walk_down(constant ProductArgs& a, ulong head, uint first_row, uint column) {
  const Weights w = weights_of(&a.w);
  const DeviceRows<R> x = activations<R>(a, head, first_row);
  const ulong first = head * a.head_rows + a.first_row;
  const uint span = columns_per_scale<F>(w), scale = span == 0 ? 0 : column / span;
  float total[R];
#pragma unroll
  for (uint r = 0; r < R; ++r) total[r] = 0.0f;
  for (uint chunk = 0; chunk < a.count; chunk += 32) {
    const uint end = min(chunk + 32, a.count);
    float p[R];
#pragma unroll
    for (uint r = 0; r < R; ++r) p[r] = 0.0f;
    for (uint d = chunk; d < end; ++d) {
      const float q = stored_value<F>(w.data + (first + d) * w.row_bytes, column);
      const float s = has_scales(F) ? scales_of_row<F>(w, first + d)[scale] : 1.0f;
#pragma unroll
      for (uint r = 0; r < R; ++r) {
        const float v = x.row[r][d];
        p[r] = fma(q, has_scales(F) ? v * s : v, p[r]);
      }
    }
#pragma unroll
    for (uint r = 0; r < R; ++r) total[r] = total[r] + p[r];
  }
#pragma unroll
  for (uint r = 0; r < R; ++r)
    if (first_row + r < a.rows) a.y[(first_row + r) * a.y_stride + head * a.y_head + column] = total[r];
}

template <u32 R>
inline void transposed(constant ProductArgs& a, ulong head, uint block, uint index) {
  const uint column = block / a.row_blocks * kGroupThreads + index;
  if (column >= a.w.cols) return;
#define COLI_WALK(F) walk_down<F, R>(a, head, block % a.row_blocks * R, column)
  COLI_FOR_FORMAT(kFormat, COLI_WALK)
#undef COLI_WALK
}

kernel void transposed_product(constant ProductArgs& a [[buffer(0)]],
                               uint3 group [[threadgroup_position_in_grid]],
                               uint index [[thread_index_in_threadgroup]]) {
  const uint block = group.x + a.first_group;
  if (kRows == 1)
    transposed<1>(a, group.z, block, index);
  else if (kRows == 4)
    transposed<4>(a, group.z, block, index);
  else
    transposed<8>(a, group.z, block, index);
}

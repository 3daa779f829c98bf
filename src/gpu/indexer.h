// DSA's lightning indexer: keys, scores and the choice of positions, on the device (rules C5, C7, C9 and C11 of
// docs/numerics.md).
#pragma once

#include "gpu/step_rows.h"

namespace colibri::gpu {

struct IndexerShape {
  std::int64_t heads = 0, head_dim = 0, rope = 0, top_k = 0;  // rope: even, at most head_dim
  float dot_scale = 0, head_scale = 0;                        // rule C11's constants
};

// keys: f32[rows][head_dim], the wk products. LayerNorm (eps 1e-6), the first rope dimensions rotated, into each row's cache.
// Values of keys that are not finite set kDamageIndexer.
void write_index_keys(Encoder& encoder, const IndexerShape& shape, const StepTable& step, Address keys, Address norm_weight,
                      Address norm_bias, Address damage);

// queries: f32[rows][heads][head_dim], head_weights: f32[rows][heads]; not finite: kDamageIndexer. Fills selection for every
// row: count 0 for rows that see at most top_k positions. The rows' own keys must have been written, with a barrier between.
// Scores of as many rows as fit into scratch are formed at a time; it lies at a multiple of 16 and holds at least
// indexer_scratch_bytes(shape, 1, longest). A NaN score sets kDamageIndexer; the row's choice then means nothing, but it is
// still of top_k different positions that the row sees. Only rows that see more than top_k cost anything beyond a check: when
// step.longest <= top_k no scores are formed.
void select_positions(Encoder& encoder, const IndexerShape& shape, const StepTable& step, Address queries, Address head_weights,
                      const SelectionTable& selection, Address scratch, std::uint64_t scratch_bytes, Address damage);
std::uint64_t indexer_scratch_bytes(const IndexerShape& shape, std::int64_t rows, std::int64_t longest);

// The two halves of select_positions, for the rows [first, first + count) of the step. rotated: scratch of
// f32[count][heads][head_dim rounded up to a multiple of 32 * the next power of two of its blocks of 32, at most 8];
// scores: f32[count][score_stride], of which the first position + 1 are set where that is more than top_k; score_stride is a
// multiple of 4. All at multiples of 16.
struct RowRange {
  std::int64_t first = 0, count = 0;
};
std::int64_t rotated_query_floats(const IndexerShape& shape);  // of one row
void score_positions(Encoder& encoder, const IndexerShape& shape, const StepTable& step, RowRange range, Address queries,
                     Address head_weights, Address rotated, Address scores, std::int64_t score_stride, Address damage);

// scratch: select_scratch_bytes(count, top_k, longest), 0 for rows that are not long.
void select_best(Encoder& encoder, const StepTable& step, RowRange range, std::int64_t top_k, Address scores,
                 std::int64_t score_stride, const SelectionTable& selection, Address scratch);
std::uint64_t select_scratch_bytes(std::int64_t rows, std::int64_t top_k, std::int64_t longest);

}  // namespace colibri::gpu

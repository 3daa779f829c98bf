#include "gpu/indexer.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "gpu/kernels/indexer.h"

namespace colibri::gpu {
namespace {

constexpr float kKeyNormEps = 1e-6f;  // rule C5

constexpr std::int64_t round_up_to(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// Blocks of 32 dimensions side by side in rule C2's lanes, as a power of two: simdgroups of index_scores.
std::int64_t lane_blocks(const IndexerShape& shape) {
  const auto blocks = static_cast<std::uint64_t>((shape.head_dim + 31) / 32);
  return static_cast<std::int64_t>(std::min<std::uint64_t>(std::bit_ceil(blocks), 8));
}

std::int64_t padded_dim(const IndexerShape& shape) { return round_up_to(shape.head_dim, 32 * lane_blocks(shape)); }

// Scratch of one row, in floats: its rotated queries, then its scores.
std::int64_t query_floats(const IndexerShape& shape) { return shape.heads * padded_dim(shape); }
std::int64_t score_floats(std::int64_t longest) { return round_up_to(longest, 4); }

}  // namespace

std::uint64_t indexer_scratch_bytes(const IndexerShape& shape, std::int64_t rows, std::int64_t longest) {
  return static_cast<std::uint64_t>(rows * (query_floats(shape) + score_floats(longest))) * sizeof(float);
}

void write_index_keys(Encoder& encoder, const IndexerShape& shape, const StepTable& step, Address keys, Address norm_weight,
                      Address norm_bias, Address damage) {
  assert(shape.rope % 2 == 0 && shape.rope <= shape.head_dim);
  IndexKeyArgs a{};
  a.rows = step.rows;
  a.keys = keys;
  a.weight = norm_weight;
  a.bias = norm_bias;
  a.cosine = step.cosine;
  a.sine = step.sine;
  a.damage = damage;
  a.dims = static_cast<u32>(shape.head_dim);
  a.rope = static_cast<u32>(shape.rope);
  a.eps = kKeyNormEps;
  encoder.dispatch({"indexer", "index_keys"}, a, {step.count}, 32);
}

void select_best(Encoder& encoder, const StepTable& step, std::int64_t first_row, std::int64_t count, std::int64_t top_k,
                 Address scores, std::int64_t score_stride, const SelectionTable& selection) {
  assert(scores % 16 == 0 && score_stride % 4 == 0 && top_k <= selection.top_k);
  IndexSelectArgs a{};
  a.rows = step.rows;
  a.scores = scores;
  a.chosen = selection.chosen;
  a.counts = selection.counts;
  a.top_k = static_cast<u32>(top_k);
  a.chosen_stride = static_cast<u32>(selection.top_k);
  a.first_row = static_cast<u32>(first_row);
  a.score_stride = static_cast<u32>(score_stride);
  encoder.dispatch({"indexer", "index_select"}, a, {count}, kSelectThreads);
}

void select_positions(Encoder& encoder, const IndexerShape& shape, const StepTable& step, Address queries, Address head_weights,
                      const SelectionTable& selection, Address scratch, std::uint64_t scratch_bytes, Address damage) {
  const std::int64_t score_stride = score_floats(step.longest), blocks = lane_blocks(shape);
  const bool selects = step.longest > shape.top_k;
  std::int64_t wave = step.count;
  if (selects) {
    assert(scratch % 16 == 0 && scratch_bytes >= indexer_scratch_bytes(shape, 1, step.longest));
    wave = std::min(static_cast<std::int64_t>(scratch_bytes / indexer_scratch_bytes(shape, 1, step.longest)), kMaxGroupsYZ);
  }
  for (std::int64_t first = 0; first < step.count; first += wave) {
    const std::int64_t count = std::min(wave, step.count - first);
    const Address scores = scratch + static_cast<Address>(count * query_floats(shape)) * sizeof(float);
    if (first > 0) encoder.barrier();  // the scratch is used again

    IndexQueryArgs q{};
    q.rows = step.rows;
    q.queries = queries;
    q.head_weights = head_weights;
    q.cosine = step.cosine;
    q.sine = step.sine;
    q.rotated = scratch;
    q.damage = damage;
    q.heads = static_cast<u32>(shape.heads);
    q.dims = static_cast<u32>(shape.head_dim);
    q.padded = static_cast<u32>(padded_dim(shape));
    q.rope = static_cast<u32>(shape.rope);
    q.top_k = static_cast<u32>(shape.top_k);
    q.first_row = static_cast<u32>(first);
    encoder.dispatch({"indexer", "index_queries"}, q, {count * shape.heads}, 32);

    if (selects) {
      encoder.barrier();
      IndexScoreArgs s{};
      s.rows = step.rows;
      s.rotated = scratch;
      s.head_weights = head_weights;
      s.scores = scores;
      s.damage = damage;
      s.heads = q.heads;
      s.dims = q.dims;
      s.padded = q.padded;
      s.top_k = q.top_k;
      s.first_row = q.first_row;
      s.score_stride = static_cast<u32>(score_stride);
      s.dot_scale = shape.dot_scale;
      s.head_scale = shape.head_scale;
      encoder.dispatch({"indexer", "index_scores", {static_cast<std::uint32_t>(blocks)}}, s,
                       {(step.longest + kIndexTile - 1) / kIndexTile, count}, static_cast<std::uint32_t>(32 * blocks));
      encoder.barrier();
    }
    select_best(encoder, step, first, count, shape.top_k, scores, score_stride, selection);
  }
}

}  // namespace colibri::gpu

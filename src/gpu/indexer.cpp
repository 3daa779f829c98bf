#include "gpu/indexer.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "gpu/kernels/indexer.h"
#include "gpu/kernels/selection.h"
#include "numerics/norm.h"

namespace colibri::gpu {
namespace {

constexpr std::int64_t round_up_to(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// Blocks of 32 dimensions side by side in rule C2's lanes, as a power of two: simdgroups of index_scores.
std::int64_t lane_blocks(const IndexerShape& shape) {
  const auto blocks = static_cast<std::uint64_t>((shape.head_dim + 31) / 32);
  return static_cast<std::int64_t>(std::min<std::uint64_t>(std::bit_ceil(blocks), 8));
}

std::int64_t padded_dim(const IndexerShape& shape) { return round_up_to(shape.head_dim, 32 * lane_blocks(shape)); }

std::int64_t score_floats(std::int64_t longest) { return round_up_to(longest, 4); }

// A row is cut into segments that have eight times as many positions as are chosen, so that few of them stay candidates; rows
// of one or two segments are not worth it.
std::int64_t segment_length(std::int64_t top_k) { return std::max<std::int64_t>(round_up_to(8 * top_k, 4), 4096); }
std::int64_t segment_count(std::int64_t top_k, std::int64_t longest) {
  const std::int64_t segment = segment_length(top_k);
  return longest > 2 * segment ? (longest + segment - 1) / segment : 1;
}
std::int64_t candidate_floats(std::int64_t top_k, std::int64_t longest) {
  const std::int64_t segments = segment_count(top_k, longest);
  return segments > 1 ? round_up_to(segments * top_k, 4) : 0;
}

}  // namespace

std::uint64_t select_scratch_bytes(std::int64_t rows, std::int64_t top_k, std::int64_t longest) {
  return static_cast<std::uint64_t>(rows * candidate_floats(top_k, longest)) * (sizeof(float) + sizeof(i32));
}

std::int64_t rotated_query_floats(const IndexerShape& shape) { return shape.heads * padded_dim(shape); }

std::uint64_t indexer_scratch_bytes(const IndexerShape& shape, std::int64_t rows, std::int64_t longest) {
  return static_cast<std::uint64_t>(rows * (rotated_query_floats(shape) + score_floats(longest))) * sizeof(float) +
         select_scratch_bytes(rows, shape.top_k, longest);
}

void write_index_keys(Encoder& encoder, const IndexerShape& shape, const StepTable& step, Address keys, Address norm_weight,
                      Address norm_bias, Address damage) {
  assert(shape.rope % 2 == 0 && shape.rope <= shape.head_dim);
  IndexKeyArgs a{};
  a.step = step_args(step, damage);
  a.keys = keys;
  a.weight = norm_weight;
  a.bias = norm_bias;
  a.dims = static_cast<u32>(shape.head_dim);
  a.rope = static_cast<u32>(shape.rope);
  a.eps = numerics::kLatentNormEps;
  encoder.dispatch({"indexer", "index_keys"}, a, {step.count}, 32);
}

void score_positions(Encoder& encoder, const IndexerShape& shape, const StepTable& step, RowRange range, Address queries,
                     Address head_weights, Address rotated, Address scores, std::int64_t score_stride, Address damage) {
  assert(shape.rope % 2 == 0 && shape.rope <= shape.head_dim);
  IndexArgs a{};
  a.step = step_args(step, damage);
  a.queries = queries;
  a.head_weights = head_weights;
  a.rotated = rotated;
  a.scores = scores;
  a.heads = static_cast<u32>(shape.heads);
  a.dims = static_cast<u32>(shape.head_dim);
  a.padded = static_cast<u32>(padded_dim(shape));
  a.rope = static_cast<u32>(shape.rope);
  a.top_k = static_cast<u32>(shape.top_k);
  a.first_row = static_cast<u32>(range.first);
  a.score_stride = static_cast<u32>(score_stride);
  a.dot_scale = shape.dot_scale;
  a.head_scale = shape.head_scale;
  encoder.dispatch({"indexer", "index_queries"}, a, {range.count * shape.heads}, 32);
  if (step.longest <= shape.top_k) return;

  assert(rotated % 16 == 0 && scores % 16 == 0 && score_stride % 4 == 0 && score_stride >= step.longest);
  encoder.add_work(static_cast<double>(range.count * shape.heads) * static_cast<double>(shape.head_dim * step.longest));
  encoder.barrier();
  const auto blocks = static_cast<std::uint32_t>(lane_blocks(shape));
  encoder.dispatch({"indexer", "index_scores", {blocks}}, a, {(step.longest + kIndexTile - 1) / kIndexTile, range.count},
                   32 * blocks);
  encoder.barrier();
}

void select_best(Encoder& encoder, const StepTable& step, RowRange range, std::int64_t top_k, Address scores,
                 std::int64_t score_stride, const SelectionTable& selection, Address scratch) {
  assert(scores % 16 == 0 && score_stride % 4 == 0 && scratch % 16 == 0 && top_k <= selection.top_k);
  const std::int64_t candidates = candidate_floats(top_k, step.longest);
  SelectArgs a{};
  a.rows = step.rows;
  a.scores = scores;
  a.candidate_scores = scratch;
  a.candidates = scratch + static_cast<Address>(range.count * candidates) * sizeof(float);
  a.chosen = selection.chosen;
  a.counts = selection.counts;
  a.top_k = static_cast<u32>(top_k);
  a.chosen_stride = static_cast<u32>(selection.top_k);
  a.first_row = static_cast<u32>(range.first);
  a.score_stride = static_cast<u32>(score_stride);
  a.candidate_stride = static_cast<u32>(candidates);
  a.segment = static_cast<u32>(segment_length(top_k));
  const std::int64_t segments = segment_count(top_k, step.longest);
  if (segments > 1) {
    encoder.dispatch({"selection", "select_best", {kSelectSegments}}, a, {segments, range.count}, kSelectThreads);
    encoder.barrier();
  }
  encoder.dispatch({"selection", "select_best", {segments > 1 ? kSelectCandidates : kSelectWhole}}, a, {1, range.count},
                   kSelectThreads);
}

void select_positions(Encoder& encoder, const IndexerShape& shape, const StepTable& step, Address queries, Address head_weights,
                      const SelectionTable& selection, Address scratch, std::uint64_t scratch_bytes, Address damage) {
  std::int64_t wave = kMaxGroupsYZ;  // rows whose scores are formed together
  if (step.longest > shape.top_k) {
    const std::uint64_t one = indexer_scratch_bytes(shape, 1, step.longest);
    assert(scratch % 16 == 0 && scratch_bytes >= one);
    wave = std::min(static_cast<std::int64_t>(scratch_bytes / one), wave);
  }
  for (std::int64_t first = 0; first < step.count; first += wave) {
    const RowRange range{first, std::min(wave, step.count - first)};
    const Address scores = scratch + static_cast<Address>(range.count * rotated_query_floats(shape)) * sizeof(float);
    const Address candidates = scores + static_cast<Address>(range.count * score_floats(step.longest)) * sizeof(float);
    if (first > 0) encoder.barrier();  // the scratch is used again
    score_positions(encoder, shape, step, range, queries, head_weights, scratch, scores, score_floats(step.longest), damage);
    select_best(encoder, step, range, shape.top_k, scores, score_floats(step.longest), selection, candidates);
  }
}

}  // namespace colibri::gpu

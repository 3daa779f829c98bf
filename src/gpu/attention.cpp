#include "gpu/attention.h"

#include <algorithm>
#include <cassert>

#include "base/aligned.h"
#include "gpu/kernels/attention.h"
#include "numerics/attention.h"

namespace colibri::gpu {
namespace {

constexpr std::uint32_t kEntryThreads = 256, kRotateThreads = 128, kScoreThreads = 128, kGroupThreads = 128,
                        kContextThreads = 128;
constexpr std::int64_t kTileEntries = 32;
constexpr std::int64_t kChunksPerGroup = numerics::kSumGroup / numerics::kSumChunk;
// Threads of the weighted sums below which a large GPU stands half idle: then every chunk of 64 entries gets its own.
constexpr std::int64_t kFewThreads = 32768;
// Multiplications of one dispatch at most, where one row does not need more: tens of milliseconds on a small GPU.
constexpr std::int64_t kMostProducts = std::int64_t{1} << 35;

std::uint64_t bytes_of(std::int64_t floats) { return round_up(4 * static_cast<std::uint64_t>(floats), 16); }

}  // namespace

void write_cache_entries(Encoder& encoder, const AttentionShape& shape, const StepTable& step, Address kv, Address norm_weight,
                         float eps, Address damage) {
  CacheEntryArgs args{};
  args.step = step_args(step, damage);
  args.kv = kv;
  args.weight = norm_weight;
  args.latent = static_cast<u32>(shape.latent);
  args.rope = static_cast<u32>(shape.rope);
  args.eps = eps;
  args.aligned = kv % 16 == 0 && shape.cache_dim() % 4 == 0;
  encoder.dispatch({"attention", "write_cache_entries"}, args, {step.count}, kEntryThreads);
}

void rotate_queries(Encoder& encoder, const AttentionShape& shape, const StepTable& step, Address queries, Address absorbed,
                    Address damage) {
  RotateArgs args{};
  args.step = step_args(step, damage);
  args.queries = queries;
  args.absorbed = absorbed;
  args.heads = static_cast<u32>(shape.heads);
  args.nope = static_cast<u32>(shape.nope);
  args.latent = static_cast<u32>(shape.latent);
  args.rope = static_cast<u32>(shape.rope);
  encoder.dispatch({"attention", "rotate_queries"}, args, {step.count * shape.heads}, kRotateThreads);
}

std::uint64_t AttentionPlan::score_bytes(const AttentionShape& shape, std::int64_t rows) const {
  return bytes_of(rows * shape.heads * stride);
}
std::uint64_t AttentionPlan::group_bytes(const AttentionShape& shape, std::int64_t rows) const {
  return bytes_of(rows * shape.heads * groups);
}
std::uint64_t AttentionPlan::part_bytes(const AttentionShape& shape, std::int64_t rows) const {
  return bytes_of(rows * groups * parts_per_group * shape.heads * shape.latent);
}
std::uint64_t AttentionPlan::bytes(const AttentionShape& shape, std::int64_t rows) const {
  return score_bytes(shape, rows) + 2 * group_bytes(shape, rows) + part_bytes(shape, rows);
}

AttentionPlan plan_attention(const AttentionShape& shape, std::int64_t rows, std::int64_t longest, std::uint64_t scratch_bytes) {
  AttentionPlan plan;
  while (plan.tile_heads < std::min<std::int64_t>(shape.heads, 8)) plan.tile_heads *= 2;
  plan.stride = ceil_div(longest, numerics::kSumChunk) * numerics::kSumChunk;
  plan.groups = ceil_div(longest, numerics::kSumGroup);
  const std::int64_t most =
      std::clamp(kMostProducts / (shape.heads * shape.cache_dim() * longest), std::int64_t{1}, std::min(rows, kMaxGroupsYZ));
  const auto rows_that_fit = [&] {
    std::int64_t fit = std::min(most, static_cast<std::int64_t>(scratch_bytes / plan.bytes(shape, 1)));
    while (fit < most && plan.bytes(shape, fit + 1) <= scratch_bytes) ++fit;  // several rows share what is rounded up
    return fit;
  };
  plan.rows_at_once = rows_that_fit();
  const std::int64_t threads = ceil_div(shape.heads, plan.tile_heads) * ceil_div(shape.latent, 2) * plan.groups;
  if (plan.rows_at_once * threads < kFewThreads) {
    const std::int64_t rows_by_group = plan.rows_at_once;
    plan.parts_per_group = kChunksPerGroup;
    if (rows_that_fit() < rows_by_group) plan.parts_per_group = 1;  // more rows at once are worth more
  }
  return plan;
}

std::uint64_t attention_scratch_bytes(const AttentionShape& shape, std::int64_t rows, std::int64_t longest) {
  const std::uint64_t plenty = ~std::uint64_t{0};
  const AttentionPlan plan = plan_attention(shape, rows, longest, plenty);
  return plan.bytes(shape, plan.rows_at_once);
}

void attend(Encoder& encoder, const AttentionShape& shape, const StepTable& step, const SelectionTable& selection,
            Address absorbed, Address context, Address scratch, std::uint64_t scratch_bytes) {
  if (step.count == 0) return;
  const std::int64_t longest = selection.chosen ? std::min(step.longest, selection.top_k) : step.longest;
  const AttentionPlan plan = plan_attention(shape, step.count, longest, scratch_bytes);
  assert(plan.rows_at_once > 0 && scratch % 16 == 0);
  const bool vectors = shape.latent % 4 == 0 && shape.rope % 4 == 0 && absorbed % 16 == 0;
  const std::vector<std::uint32_t> constants = {static_cast<std::uint32_t>(plan.tile_heads), vectors ? 1u : 0u};
  const std::int64_t tiles = ceil_div(shape.heads, plan.tile_heads), column_threads = ceil_div(shape.latent, 2);
  const auto sum_threads = static_cast<std::uint32_t>(std::min<std::int64_t>(32 * ceil_div(column_threads, 32), 256));

  AttendArgs args{};
  args.scores = scratch;
  args.maxima = args.scores + plan.score_bytes(shape, plan.rows_at_once);
  args.denominators = args.maxima + plan.group_bytes(shape, plan.rows_at_once);
  args.parts = args.denominators + plan.group_bytes(shape, plan.rows_at_once);
  args.heads = static_cast<u32>(shape.heads);
  args.latent = static_cast<u32>(shape.latent);
  args.cache = static_cast<u32>(shape.cache_dim());
  args.top_k = static_cast<u32>(selection.top_k);
  args.stride = static_cast<u32>(plan.stride);
  args.groups = static_cast<u32>(plan.groups);
  args.parts_per_group = static_cast<u32>(plan.parts_per_group);
  args.scale = shape.score_scale;

  for (std::int64_t first = 0; first < step.count; first += plan.rows_at_once) {
    const std::int64_t rows = std::min(plan.rows_at_once, step.count - first);
    const auto at = [first](Address base, std::int64_t bytes_per_row) {
      return base ? base + static_cast<Address>(first * bytes_per_row) : 0;
    };
    args.rows = at(step.rows, sizeof(RowArgs));
    args.chosen = at(selection.chosen, 4 * selection.top_k);
    args.counts = selection.chosen ? at(selection.counts, 4) : 0;
    args.absorbed = at(absorbed, 4 * shape.heads * shape.cache_dim());
    args.context = at(context, 4 * shape.heads * shape.latent);
    encoder.add_work(static_cast<double>(rows * shape.heads) * static_cast<double>((shape.cache_dim() + shape.latent) * longest));
    if (first > 0) encoder.barrier();  // the scratch is read before it is filled again
    encoder.dispatch({"attention", "attention_scores", constants}, args, {ceil_div(longest, kTileEntries) * tiles, rows},
                     kScoreThreads);
    encoder.barrier();
    if (plan.groups > 1) {
      encoder.dispatch({"attention", "attention_maxima", constants}, args, {shape.heads * plan.groups, rows}, kGroupThreads);
      encoder.barrier();
    }
    encoder.dispatch({"attention", "attention_exponentials", constants}, args, {shape.heads * plan.groups, rows}, kGroupThreads);
    encoder.barrier();
    encoder.dispatch({"attention", "attention_sums", constants}, args,
                     {plan.groups * plan.parts_per_group * tiles, rows, ceil_div(column_threads, std::int64_t{sum_threads})},
                     sum_threads);
    encoder.barrier();
    encoder.dispatch({"attention", "attention_context", constants}, args,
                     {shape.heads, rows, ceil_div(shape.latent, std::int64_t{kContextThreads})}, kContextThreads);
  }
}

}  // namespace colibri::gpu

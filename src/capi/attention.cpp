// attn_decode: queries absorbed, scores and sums over the latent cache, values of the heads.
#include <algorithm>

#include "capi/backend.h"
#include "numerics/attention.h"

namespace colibri::capi {
namespace {

constexpr std::int64_t kMostRows = 4096;
constexpr std::uint64_t kAmpleScratch = std::uint64_t{64} << 20;

struct Parts {
  gpu::Address rows, cosine, sine, queries, absorbed, latent, context, chosen, counts, damage, scratch;
  std::uint64_t scratch_bytes;
};

Parts lay_out(const AttentionJob& job, gpu::Placer& p) {
  const gpu::AttentionShape& s = job.shape;
  const std::int64_t n = job.rows.count(), longest = job.rows.longest();
  Parts parts{};
  parts.rows = p.take(static_cast<std::uint64_t>(n) * sizeof(gpu::RowArgs));
  parts.cosine = p.floats(n * s.rope / 2);
  parts.sine = p.floats(n * s.rope / 2);
  parts.queries = p.floats(n * s.heads * s.query_dim());
  parts.absorbed = p.floats(n * s.heads * s.cache_dim());
  parts.latent = p.floats(n * s.heads * s.latent);
  parts.context = p.floats(n * s.heads * job.value_dim);
  if (job.selection != nullptr) {
    parts.chosen = p.floats(n * job.selection->top_k);
    parts.counts = p.floats(n);
  }
  parts.damage = p.floats(1);
  parts.scratch_bytes =
      std::max(gpu::attention_scratch_bytes(s, 1, longest), std::min(gpu::attention_scratch_bytes(s, n, longest), kAmpleScratch));
  parts.scratch = p.take(parts.scratch_bytes);
  return parts;
}

}  // namespace

gpu::AttentionShape attention_shape(const coli_metal_attention& shape) {
  return {shape.heads, shape.latent, shape.rope, shape.nope, numerics::inverse_sqrt(shape.nope + shape.rope)};
}

Outcome<> check_scores(const coli_metal_attention& shape, const StepRows& rows) {
  constexpr std::int64_t kMostScores = std::int64_t{1} << 34;
  if (shape.heads * rows.longest() > kMostScores)
    return bad("sequences: expected at most {} scores a row, found {} heads and {} entries", kMostScores, shape.heads,
               rows.longest());
  return {};
}

Outcome<> Backend::attention(const coli_metal_attention* shape, const coli_metal_matrix* kv_b,
                             const coli_metal_sequence* sequences, std::int64_t sequence_count,
                             const coli_metal_selection* selection, const float* queries, float* context) {
  COLIBRI_CHECK(check_pointer(shape, "shape"));
  COLIBRI_CHECK(check_attention(*shape));
  COLIBRI_CHECK(check_pointer(kv_b, "kv_b"));
  COLIBRI_CHECK(check_floats(queries, "queries"));
  COLIBRI_CHECK(check_floats(context, "context"));
  AttentionJob job;
  COLIBRI_TRY(matrix, memory_.matrix(*kv_b, "kv_b", shape->heads * (shape->nope + shape->value_dim), shape->latent));
  job.kv_b = matrix;
  COLIBRI_TRY(rows, StepRows::read(memory_, sequences, sequence_count, kMostRows, {shape->latent + shape->rope, 0}));
  if (selection != nullptr) COLIBRI_CHECK(rows.check_selection(*selection));
  COLIBRI_CHECK(check_scores(*shape, rows));
  job.shape = attention_shape(*shape);
  job.value_dim = shape->value_dim;
  job.rows = std::move(rows);
  job.selection = selection;
  job.queries = queries;
  job.rows.rotary_tables(*shape, job.cosine, job.sine);
  if (!gpu_attention(job, context)) cpu_.attention(job, context);
  return {};
}

bool Backend::gpu_attention(const AttentionJob& job, float* context) {
  gpu::Placer count(0);
  lay_out(job, count);
  auto work = lease(count.used());
  if (!work) return false;
  gpu::Placer placer(work->address());
  const Parts p = lay_out(job, placer);
  const gpu::AttentionShape& s = job.shape;
  const std::int64_t n = job.rows.count(), query_floats = s.heads * s.query_dim(), absorbed_floats = s.heads * s.cache_dim();
  const std::uint64_t context_bytes = float_bytes(n * s.heads * job.value_dim);
  WorkLease& m = *work;
  {
    const Stopwatch watch(counters_.scatter_seconds);
    const std::vector<gpu::RowArgs> args = job.rows.args(*device_);
    m->put(p.rows, args.data(), args.size() * sizeof(gpu::RowArgs));
    m->put(p.cosine, job.cosine.data(), float_bytes(n * s.rope / 2));
    m->put(p.sine, job.sine.data(), float_bytes(n * s.rope / 2));
    m->put(p.queries, job.queries, float_bytes(n * query_floats));
    m->put(p.damage, nullptr, sizeof(std::uint32_t));
    if (job.selection != nullptr) {
      m->put(p.chosen, job.selection->chosen, static_cast<std::uint64_t>(n * job.selection->top_k) * sizeof(std::int32_t));
      m->put(p.counts, job.selection->counts, static_cast<std::uint64_t>(n) * sizeof(std::uint32_t));
    }
  }
  const std::int64_t head_rows = s.nope + job.value_dim;
  const gpu::StepTable step{p.rows, n, job.rows.longest(), p.cosine, p.sine};
  gpu::SelectionTable selection;
  if (job.selection != nullptr) selection = {p.chosen, p.counts, job.selection->top_k};
  auto commands = submit([&](gpu::Encoder& e) {
    gpu::transposed_head_products(e, job.kv_b, {s.heads, head_rows, 0, s.nope}, {p.queries, n, s.nope, query_floats},
                                  s.query_dim(), p.absorbed, absorbed_floats, s.cache_dim());
    e.barrier();
    gpu::rotate_queries(e, s, step, p.queries, p.absorbed, p.damage);
    e.barrier();
    gpu::attend(e, s, step, selection, p.absorbed, p.latent, p.scratch, p.scratch_bytes);
    e.barrier();
    gpu::head_products(e, plan_, job.kv_b, {s.heads, head_rows, s.nope, job.value_dim},
                       {p.latent, n, s.latent, s.heads * s.latent}, s.latent, p.context, s.heads * job.value_dim, job.value_dim);
  });
  if (!commands || !finish(*commands)) return false;
  const Stopwatch watch(counters_.scatter_seconds);
  m->get(context, p.context, context_bytes);
  succeeded(0);
  return true;
}

}  // namespace colibri::capi

// attn_decode: queries absorbed, scores and sums over the latent cache, values of the heads.
#include <algorithm>

#include "capi/backend.h"
#include "numerics/attention.h"
#include "numerics/rotary.h"

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
  const std::int64_t n = job.count(), longest = longest_of(job.rows);
  Parts parts{};
  parts.rows = p.take(job.rows.size() * sizeof(gpu::RowArgs));
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

std::int64_t longest_of(std::span<const coli_metal_row> rows) {
  std::int64_t longest = 0;
  for (const coli_metal_row& row : rows) longest = std::max(longest, row.position + 1);
  return longest;
}

void rotary_tables(const coli_metal_attention& shape, std::span<const coli_metal_row> rows, std::vector<float>& cosine,
                   std::vector<float>& sine) {
  const numerics::RotaryTable table(shape.rope_theta, shape.rope);
  const auto half = static_cast<std::size_t>(shape.rope / 2);
  cosine.resize(rows.size() * half);
  sine.resize(rows.size() * half);
  for (std::size_t r = 0; r < rows.size(); ++r) table.angles(rows[r].position, cosine.data() + r * half, sine.data() + r * half);
}

std::vector<gpu::RowArgs> row_args(const gpu::Device& device, std::span<const coli_metal_row> rows) {
  std::vector<gpu::RowArgs> out(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    out[r].entries = device.address(rows[r].entries);
    if (rows[r].keys != nullptr) out[r].keys = device.address(rows[r].keys);
    out[r].position = static_cast<gpu::u32>(rows[r].position);
  }
  return out;
}

gpu::AttentionShape attention_shape(const coli_metal_attention& shape) {
  return {shape.heads, shape.latent, shape.rope, shape.nope, numerics::inverse_sqrt(shape.nope + shape.rope)};
}

Outcome<> Backend::attention(const coli_metal_attention* shape, const coli_metal_matrix* kv_b, const coli_metal_row* row_table,
                             std::int64_t rows, const coli_metal_selection* selection, const float* queries, float* context) {
  COLIBRI_CHECK(check_pointer(shape, "shape"));
  COLIBRI_CHECK(check_attention(*shape));
  COLIBRI_CHECK(check_pointer(kv_b, "kv_b"));
  COLIBRI_CHECK(check_pointer(row_table, "row_table"));
  COLIBRI_CHECK(check_range(rows, 1, kMostRows, "rows"));
  COLIBRI_CHECK(check_floats(queries, "queries"));
  COLIBRI_CHECK(check_floats(context, "context"));
  AttentionJob job;
  COLIBRI_TRY(matrix, memory_.matrix(*kv_b, "kv_b", shape->heads * (shape->nope + shape->value_dim), shape->latent));
  job.kv_b = matrix;
  for (std::int64_t r = 0; r < rows; ++r)
    COLIBRI_CHECK(memory_.cache(row_table[r].entries, row_table[r].position, shape->latent + shape->rope, "entries", r));
  if (selection != nullptr) COLIBRI_CHECK(check_selection(*selection, row_table, rows));
  job.shape = attention_shape(*shape);
  job.value_dim = shape->value_dim;
  job.rows = {row_table, static_cast<std::size_t>(rows)};
  job.selection = selection;
  job.queries = queries;
  constexpr std::int64_t kMostScores = std::int64_t{1} << 34;
  if (shape->heads * longest_of(job.rows) > kMostScores)
    return bad("row_table: expected at most {} scores a row, found {} heads and {} entries", kMostScores, shape->heads,
               longest_of(job.rows));
  rotary_tables(*shape, job.rows, job.cosine, job.sine);
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
  const std::int64_t n = job.count(), query_floats = s.heads * s.query_dim(), absorbed_floats = s.heads * s.cache_dim();
  const std::uint64_t context_bytes = float_bytes(n * s.heads * job.value_dim);
  WorkLease& m = *work;
  {
    const Stopwatch watch(counters_.scatter_seconds);
    const std::vector<gpu::RowArgs> args = row_args(*device_, job.rows);
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
  const gpu::StepTable step{p.rows, n, longest_of(job.rows), p.cosine, p.sine};
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

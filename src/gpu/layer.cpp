#include "gpu/layer.h"

#include <algorithm>

#include "gpu/placer.h"
#include "gpu/rowwise.h"

namespace colibri::gpu {
namespace {

constexpr std::uint64_t kAmpleScratch = std::uint64_t{64} << 20;  // scores of several rows at once where they fit in this

ExpertShape expert_shape_of(const LayerShape& s) {
  return {s.hidden, s.moe_intermediate, s.router.experts, s.router.per_token, {}, {}, {}};
}

std::uint64_t scratch_needed(const LayerShape& s, std::int64_t max_rows, std::int64_t max_context) {
  const auto both = [&](std::int64_t rows) {
    return std::max(attention_scratch_bytes(s.attention, rows, max_context),
                    s.indexer.top_k > 0 ? indexer_scratch_bytes(s.indexer, rows, max_context) : 0);
  };
  return std::max(both(1), std::min(both(max_rows), kAmpleScratch));
}

LayerBuffers lay_out(const LayerShape& s, std::int64_t n, std::int64_t max_context, Placer& p) {
  LayerBuffers b{};
  const std::int64_t heads = s.attention.heads, cache = s.attention.cache_dim(), slots = n * s.router.per_token;
  b.normed = p.floats(n * s.hidden);
  b.q_latent = p.floats(2 * n * s.q_lora_rank);  // before and after its norm
  b.queries = p.floats(n * heads * s.attention.query_dim());
  b.kv = p.floats(n * cache);
  b.absorbed = p.floats(n * heads * cache);
  b.latent_context = p.floats(n * heads * s.attention.latent);
  b.context = p.floats(n * heads * s.v_head_dim);
  b.attention_out = p.floats(n * s.hidden);
  b.mid = p.floats(n * s.hidden);
  if (s.indexer.top_k > 0) {
    b.index_keys = p.floats(n * s.indexer.head_dim);
    b.index_queries = p.floats(n * s.indexer.heads * s.indexer.head_dim);
    b.index_weights = p.floats(n * s.indexer.heads);
  }
  b.gate = p.floats(n * s.widest_mlp);
  b.up = p.floats(n * s.widest_mlp);
  b.mlp_out = p.floats(n * s.hidden);
  if (s.router.experts > 0) {
    b.logits = p.floats(n * s.router.experts);
    b.chosen = p.take(static_cast<std::uint64_t>(slots) * sizeof(i32));
    b.weights = p.floats(slots);
    b.predicted_normed = p.floats(n * s.hidden);
    b.predicted_logits = p.floats(n * s.router.experts);
    b.predicted = p.take(static_cast<std::uint64_t>(slots) * sizeof(i32));
    b.predicted_weights = p.floats(slots);
    b.groups = p.take(expert_groups_bytes(expert_shape_of(s), n));
    b.expert_act = p.floats(slots * s.moe_intermediate);
    b.expert_out = p.floats(slots * s.hidden);
  }
  b.scratch_bytes = scratch_needed(s, n, max_context);
  b.scratch = p.take(b.scratch_bytes);
  return b;
}

}  // namespace

std::uint64_t LayerBuffers::bytes(const LayerShape& shape, std::int64_t max_rows, std::int64_t max_context) {
  Placer placer(0);
  lay_out(shape, max_rows, max_context, placer);
  return placer.used();
}

LayerBuffers LayerBuffers::place(const LayerShape& shape, std::int64_t max_rows, std::int64_t max_context, Address memory) {
  Placer placer(memory);
  return lay_out(shape, max_rows, max_context, placer);
}

ExpertShape LayerEncoder::expert_shape(const LayerView& layer) const {
  ExpertShape s = expert_shape_of(shape_);
  s.gate = layer.expert_gate;
  s.up = layer.expert_up;
  s.down = layer.expert_down;
  return s;
}

void LayerEncoder::attention(Encoder& e, const LayerView& layer, const StepTable& step, const SelectionTable& selection,
                             Address x, Address damage) const {
  const LayerBuffers& b = buffers_;
  const AttentionShape& a = shape_.attention;
  const std::int64_t n = step.count, hidden = shape_.hidden, q_rank = shape_.q_lora_rank;
  const Address q_normed = b.q_latent + static_cast<Address>(n * q_rank) * sizeof(float);

  rms_norm(e, {x, n, hidden, hidden}, layer.input_norm, shape_.eps, b.normed, hidden);
  e.barrier();
  const Rows input{b.normed, n, hidden, hidden};
  product(e, plan_, layer.q_a, input, b.q_latent, q_rank);
  product(e, plan_, layer.kv_a, input, b.kv, a.cache_dim());
  if (layer.indexer) {
    product(e, plan_, layer.indexer->wk, input, b.index_keys, shape_.indexer.head_dim);
    product(e, plan_, layer.indexer->weights_proj, input, b.index_weights, shape_.indexer.heads);
  }
  e.barrier();
  rms_norm(e, {b.q_latent, n, q_rank, q_rank}, layer.q_a_norm, shape_.latent_eps, q_normed, q_rank);
  write_cache_entries(e, a, step, b.kv, layer.kv_a_norm, shape_.latent_eps, damage);
  if (layer.indexer)
    write_index_keys(e, shape_.indexer, step, b.index_keys, layer.indexer->k_norm, layer.indexer->k_norm_bias, damage);
  e.barrier();
  const Rows q_latent{q_normed, n, q_rank, q_rank};
  const std::int64_t query_floats = a.heads * a.query_dim(), index_floats = shape_.indexer.heads * shape_.indexer.head_dim;
  product(e, plan_, layer.q_b, q_latent, b.queries, query_floats);
  if (layer.indexer) product(e, plan_, layer.indexer->wq_b, q_latent, b.index_queries, index_floats);
  e.barrier();
  const std::int64_t absorbed_floats = a.heads * a.cache_dim();
  transposed_head_products(e, layer.kv_b, {a.heads, shape_.head_rows(), 0, a.nope}, {b.queries, n, a.nope, query_floats},
                           a.query_dim(), b.absorbed, absorbed_floats, a.cache_dim());
  e.barrier();
  rotate_queries(e, a, step, b.queries, b.absorbed, damage);
  if (layer.indexer)
    select_positions(e, shape_.indexer, step, b.index_queries, b.index_weights, selection, b.scratch, b.scratch_bytes, damage);
  e.barrier();
  attend(e, a, step, selection, b.absorbed, b.latent_context, b.scratch, b.scratch_bytes);
  e.barrier();
  const std::int64_t context_floats = a.heads * shape_.v_head_dim;
  head_products(e, plan_, layer.kv_b, {a.heads, shape_.head_rows(), a.nope, shape_.v_head_dim},
                {b.latent_context, n, a.latent, a.heads * a.latent}, a.latent, b.context, context_floats, shape_.v_head_dim);
  e.barrier();
  product(e, plan_, layer.o, {b.context, n, context_floats, context_floats}, b.attention_out, hidden);
  e.barrier();
  add(e, x, b.attention_out, b.mid, n * hidden, damage, kDamageAttention);
  e.barrier();
}

void LayerEncoder::router(Encoder& e, const LayerView& layer, std::int64_t rows, Address damage) const {
  const LayerBuffers& b = buffers_;
  rms_norm(e, {b.mid, rows, shape_.hidden, shape_.hidden}, layer.post_attention_norm, shape_.eps, b.normed, shape_.hidden);
  e.barrier();
  if (!layer.sparse) return;
  product(e, plan_, layer.router, {b.normed, rows, shape_.hidden, shape_.hidden}, b.logits, shape_.router.experts);
  e.barrier();
  route(e, shape_.router, rows, b.logits, layer.router_bias, b.chosen, b.weights, damage);
}

void LayerEncoder::prediction(Encoder& e, const LayerView& next, std::int64_t rows, Address damage) const {
  const LayerBuffers& b = buffers_;
  rms_norm(e, {b.mid, rows, shape_.hidden, shape_.hidden}, next.post_attention_norm, shape_.eps, b.predicted_normed,
           shape_.hidden);
  e.barrier();
  product(e, plan_, next.router, {b.predicted_normed, rows, shape_.hidden, shape_.hidden}, b.predicted_logits,
          shape_.router.experts);
  e.barrier();
  route(e, shape_.router, rows, b.predicted_logits, next.router_bias, b.predicted, b.predicted_weights, damage);
}

void LayerEncoder::mlp(Encoder& e, const LayerView& layer, std::int64_t rows) const {
  const LayerBuffers& b = buffers_;
  const std::int64_t width = layer.gate.rows, hidden = shape_.hidden;
  if (width == 0) return;
  const Rows input{b.normed, rows, hidden, hidden};
  product(e, plan_, layer.gate, input, b.gate, width);
  product(e, plan_, layer.up, input, b.up, width);
  e.barrier();
  swiglu(e, b.gate, b.up, b.gate, rows * width);
  e.barrier();
  product(e, plan_, layer.down, {b.gate, rows, width, width}, b.mlp_out, hidden);
}

void LayerEncoder::dense_end(Encoder& e, std::int64_t rows, Address x_out, Address damage) const {
  e.barrier();
  add(e, buffers_.mid, buffers_.mlp_out, x_out, rows * shape_.hidden, damage, kDamageFeedForward);
}

void LayerEncoder::group(Encoder& e, const LayerView& layer, std::int64_t rows) const {
  const ExpertShape s = expert_shape(layer);
  e.barrier();
  group_by_expert(e, s, rows, buffers_.chosen, place_expert_groups(s, rows, buffers_.groups));
}

void LayerEncoder::experts(Encoder& e, const LayerView& layer, std::int64_t rows, Address table) const {
  const ExpertShape s = expert_shape(layer);
  const ExpertGroups groups = place_expert_groups(s, rows, buffers_.groups);
  e.barrier();
  expert_swiglu(e, s, table, groups, {buffers_.normed, rows, shape_.hidden, shape_.hidden}, buffers_.expert_act);
  e.barrier();
  expert_down(e, s, table, groups, rows, buffers_.expert_act, buffers_.expert_out);
}

void LayerEncoder::sparse_end(Encoder& e, const LayerView& layer, std::int64_t rows, Address x_out, Address damage) const {
  const ExpertShape s = expert_shape(layer);
  e.barrier();
  combine_experts(e, s, place_expert_groups(s, rows, buffers_.groups), rows, buffers_.weights, buffers_.expert_out,
                  layer.gate.rows > 0 ? buffers_.mlp_out : 0, buffers_.mid, x_out, damage);
}

}  // namespace colibri::gpu

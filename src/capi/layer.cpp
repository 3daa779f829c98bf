// layer_decode: one layer of the graph by gpu::LayerEncoder, as the engine runs it.
#include <algorithm>
#include <cmath>

#include "capi/backend.h"
#include "numerics/attention.h"
#include "numerics/norm.h"

namespace colibri::capi {
namespace {

constexpr std::int64_t kMostRows = 64;

struct LayerJob {
  gpu::LayerShape shape;
  gpu::LayerView view;
  std::vector<Expert> experts;
  StepRows rows;
  std::int64_t top_k = 0;  // of the selection read or written; 0: none
};

Outcome<> read_attention(const Memory& memory, const coli_metal_layer& l, LayerJob& job) {
  COLIBRI_CHECK(check_attention(l.attention));
  COLIBRI_CHECK(check_range(l.hidden, 1, kMostExtent, "layer.hidden"));
  COLIBRI_CHECK(check_range(l.q_lora_rank, 1, kMostExtent, "layer.q_lora_rank"));
  if (!(l.eps > 0) || !std::isfinite(l.eps)) return bad("layer.eps: expected a number above 0, found {}", l.eps);
  COLIBRI_CHECK(check_floats(l.input_norm, "layer.input_norm"));
  COLIBRI_CHECK(check_floats(l.post_attention_norm, "layer.post_attention_norm"));
  COLIBRI_CHECK(check_floats(l.q_a_norm, "layer.q_a_norm"));
  COLIBRI_CHECK(check_floats(l.kv_a_norm, "layer.kv_a_norm"));
  const coli_metal_attention& a = l.attention;
  COLIBRI_TRY(q_a, memory.matrix(l.q_a, "layer.q_a", l.q_lora_rank, l.hidden));
  COLIBRI_TRY(q_b, memory.matrix(l.q_b, "layer.q_b", a.heads * (a.nope + a.rope), l.q_lora_rank));
  COLIBRI_TRY(kv_a, memory.matrix(l.kv_a, "layer.kv_a", a.latent + a.rope, l.hidden));
  COLIBRI_TRY(kv_b, memory.matrix(l.kv_b, "layer.kv_b", a.heads * (a.nope + a.value_dim), a.latent));
  COLIBRI_TRY(o, memory.matrix(l.o, "layer.o", l.hidden, a.heads * a.value_dim));
  job.view.q_a = q_a;
  job.view.q_b = q_b;
  job.view.kv_a = kv_a;
  job.view.kv_b = kv_b;
  job.view.o = o;
  job.shape.hidden = l.hidden;
  job.shape.q_lora_rank = l.q_lora_rank;
  job.shape.v_head_dim = a.value_dim;
  job.shape.eps = l.eps;
  job.shape.latent_eps = numerics::kLatentNormEps;
  job.shape.attention = attention_shape(a);
  return {};
}

Outcome<> read_indexer(const Memory& memory, const coli_metal_layer& l, LayerJob& job) {
  if (l.indexer == nullptr) return {};
  const coli_metal_indexer& x = *l.indexer;
  COLIBRI_CHECK(check_range(x.heads, 1, 65535, "indexer.heads"));
  COLIBRI_CHECK(check_range(x.head_dim, l.attention.rope, 65536, "indexer.head_dim"));
  COLIBRI_CHECK(check_range(x.top_k, 1, std::int64_t{1} << 24, "indexer.top_k"));
  COLIBRI_CHECK(check_floats(x.k_norm, "indexer.k_norm"));
  COLIBRI_CHECK(check_floats(x.k_norm_bias, "indexer.k_norm_bias"));
  COLIBRI_TRY(wq_b, memory.matrix(x.wq_b, "indexer.wq_b", x.heads * x.head_dim, l.q_lora_rank));
  COLIBRI_TRY(wk, memory.matrix(x.wk, "indexer.wk", x.head_dim, l.hidden));
  COLIBRI_TRY(weights_proj, memory.matrix(x.weights_proj, "indexer.weights_proj", x.heads, l.hidden));
  job.view.indexer = gpu::IndexerView{wq_b, wk, weights_proj, 0, 0};
  job.shape.indexer = {
      x.heads, x.head_dim, l.attention.rope, x.top_k, numerics::inverse_sqrt(x.head_dim), numerics::inverse_sqrt(x.heads)};
  return {};
}

Outcome<> read_mlp(const Memory& memory, const coli_metal_layer& l, LayerJob& job) {
  job.shape.widest_mlp = 1;
  if (l.gate.data != nullptr) {
    COLIBRI_TRY(gate, memory.matrix(l.gate, "layer.gate", -1, l.hidden));
    COLIBRI_TRY(up, memory.matrix(l.up, "layer.up", gate.rows, l.hidden));
    COLIBRI_TRY(down, memory.matrix(l.down, "layer.down", l.hidden, gate.rows));
    job.view.gate = gate;
    job.view.up = up;
    job.view.down = down;
    job.shape.widest_mlp = gate.rows;
  }
  COLIBRI_CHECK(check_range(l.experts, 0, 65536, "layer.experts"));
  if (l.experts == 0) return l.gate.data == nullptr ? check_pointer(l.gate.data, "layer.gate.data") : Outcome<>{};
  COLIBRI_CHECK(check_range(l.per_token, 1, l.experts, "layer.per_token"));
  COLIBRI_CHECK(check_range(l.moe_intermediate, 1, kMostExtent, "layer.moe_intermediate"));
  if (!std::isfinite(l.routed_scaling)) return bad("layer.routed_scaling: expected a finite number, found {}", l.routed_scaling);
  COLIBRI_CHECK(check_floats(l.router_bias, "layer.router_bias"));
  COLIBRI_CHECK(check_pointer(l.table, "layer.table"));
  COLIBRI_TRY(router, memory.matrix(l.router, "layer.router", l.experts, l.hidden));
  job.view.router = router;
  job.view.sparse = true;
  job.shape.router = {l.experts, l.per_token, l.renormalise != 0, l.routed_scaling};
  job.shape.moe_intermediate = l.moe_intermediate;
  for (std::int64_t i = 0; i < l.experts; ++i) {
    COLIBRI_TRY(expert, memory.expert(l.table[i], i, l.hidden, l.moe_intermediate));
    if (!expert.there) return bad("layer.table: expected every expert, found expert {} not there", i);
    job.experts.push_back(expert);
    COLIBRI_CHECK(check_same_formats(job.experts.front(), expert, i));
  }
  job.view.expert_gate = job.experts.front().gate.format;
  job.view.expert_up = job.experts.front().up.format;
  job.view.expert_down = job.experts.front().down.format;
  return {};
}

// Everything but weights and caches.
struct Parts {
  gpu::Address buffers, x, x_out, rows, cosine, sine, chosen, counts, damage, experts;
  gpu::Address input_norm, post_attention_norm, q_a_norm, kv_a_norm, k_norm, k_norm_bias, router_bias;
};

Parts lay_out(const LayerJob& job, gpu::Placer& p) {
  const gpu::LayerShape& s = job.shape;
  const std::int64_t n = job.rows.count();
  Parts parts{};
  parts.buffers = p.take(gpu::LayerBuffers::bytes(s, n, job.rows.longest()));
  parts.x = p.floats(n * s.hidden);
  parts.x_out = p.floats(n * s.hidden);
  parts.rows = p.take(static_cast<std::uint64_t>(n) * sizeof(gpu::RowArgs));
  parts.cosine = p.floats(n * s.attention.rope / 2);
  parts.sine = p.floats(n * s.attention.rope / 2);
  parts.chosen = p.floats(n * job.top_k);
  parts.counts = p.floats(n);
  parts.damage = p.floats(1);
  parts.experts = p.take(job.experts.size() * sizeof(gpu::ExpertEntry));
  parts.input_norm = p.floats(s.hidden);
  parts.post_attention_norm = p.floats(s.hidden);
  parts.q_a_norm = p.floats(s.q_lora_rank);
  parts.kv_a_norm = p.floats(s.attention.latent);
  parts.k_norm = p.floats(s.indexer.head_dim);
  parts.k_norm_bias = p.floats(s.indexer.head_dim);
  parts.router_bias = p.floats(s.router.experts);
  return parts;
}

// The caches' entries at the rows' positions: a layer that fails leaves them as they were.
class SavedEntries {
 public:
  SavedEntries(std::span<const coli_metal_sequence> sequences, const StepRows::Widths& widths) {
    for (const coli_metal_sequence& s : sequences) {
      save(s.entries + s.first * widths.entry, s.rows * widths.entry);
      if (widths.key > 0) save(s.keys + s.first * widths.key, s.rows * widths.key);
    }
  }
  void restore() const {
    for (const auto& [to, values] : saved_) std::copy(values.begin(), values.end(), to);
  }

 private:
  void save(float* at, std::int64_t count) { saved_.emplace_back(at, std::vector<float>(at, at + count)); }
  std::vector<std::pair<float*, std::vector<float>>> saved_;
};

// Copies norms and biases behind the activations and points the view at them.
void put_constants(WorkLease& m, const coli_metal_layer& l, const Parts& p, gpu::LayerView& view) {
  const auto put = [&](gpu::Address& to, gpu::Address at, const float* from, std::int64_t count) {
    m->put(at, from, float_bytes(count));
    to = at;
  };
  put(view.input_norm, p.input_norm, l.input_norm, l.hidden);
  put(view.post_attention_norm, p.post_attention_norm, l.post_attention_norm, l.hidden);
  put(view.q_a_norm, p.q_a_norm, l.q_a_norm, l.q_lora_rank);
  put(view.kv_a_norm, p.kv_a_norm, l.kv_a_norm, l.attention.latent);
  if (view.indexer) {
    put(view.indexer->k_norm, p.k_norm, l.indexer->k_norm, l.indexer->head_dim);
    put(view.indexer->k_norm_bias, p.k_norm_bias, l.indexer->k_norm_bias, l.indexer->head_dim);
  }
  if (view.sparse) put(view.router_bias, p.router_bias, l.router_bias, l.experts);
}

void encode_layer(gpu::Encoder& e, const gpu::LayerEncoder& encoder, const gpu::LayerView& view, const gpu::StepTable& step,
                  const gpu::SelectionTable& selection, const Parts& p) {
  encoder.attention(e, view, step, selection, p.x, p.damage);
  encoder.router(e, view, step.count, p.damage);
  if (!view.sparse) {
    encoder.mlp(e, view, step.count);
    return encoder.dense_end(e, step.count, p.x_out, p.damage);
  }
  encoder.group(e, view, step.count);
  encoder.mlp(e, view, step.count);
  encoder.experts(e, view, step.count, view.experts);
  encoder.sparse_end(e, view, step.count, p.x_out, p.damage);
}

}  // namespace

Outcome<> Backend::layer(const coli_metal_layer* layer, const coli_metal_sequence* sequences, std::int64_t sequence_count,
                         coli_metal_selection* selection, const float* x, float* x_out) {
  COLIBRI_CHECK(check_pointer(layer, "layer"));
  COLIBRI_CHECK(check_floats(x, "x"));
  COLIBRI_CHECK(check_floats(x_out, "x_out"));
  LayerJob job;
  COLIBRI_CHECK(read_attention(memory_, *layer, job));
  COLIBRI_CHECK(read_indexer(memory_, *layer, job));
  COLIBRI_CHECK(read_mlp(memory_, *layer, job));
  const StepRows::Widths widths = {job.shape.attention.cache_dim(), job.shape.indexer.head_dim};
  COLIBRI_TRY(read, StepRows::read(memory_, sequences, sequence_count, kMostRows, widths));
  COLIBRI_CHECK(check_scores(layer->attention, read));
  job.rows = std::move(read);
  const std::int64_t rows = job.rows.count(), longest = job.rows.longest();
  const bool chooses = layer->indexer != nullptr;
  if (chooses) {
    COLIBRI_CHECK(check_pointer(selection, "selection"));
    COLIBRI_CHECK(check_pointer(selection->chosen, "selection.chosen"));
    COLIBRI_CHECK(check_pointer(selection->counts, "selection.counts"));
    if (selection->top_k != layer->indexer->top_k)
      return bad("selection.top_k: expected {} as in the indexer, found {}", layer->indexer->top_k, selection->top_k);
  } else if (selection != nullptr) {
    COLIBRI_CHECK(job.rows.check_selection(*selection));
  }
  if (selection != nullptr) job.top_k = selection->top_k;

  gpu::Placer count(0);
  lay_out(job, count);
  const bool was_on = on();
  auto work = lease(count.used());
  if (!work && !was_on) return refuse(COLI_METAL_UNAVAILABLE, "layer: the GPU is switched off: {}", faults_.verdict());
  if (!work) return refuse(COLI_METAL_GPU_FAULT, "layer: {}", last_fault_);
  WorkLease& m = *work;
  gpu::Placer placer(m.address());
  const Parts p = lay_out(job, placer);
  const std::uint64_t state_bytes = float_bytes(rows * layer->hidden);
  const auto choice_bytes = static_cast<std::uint64_t>(rows * job.top_k) * sizeof(std::int32_t);
  const auto count_bytes = static_cast<std::uint64_t>(rows) * sizeof(std::uint32_t);
  {
    const Stopwatch watch(counters_.scatter_seconds);
    std::vector<float> cosine, sine;
    job.rows.rotary_tables(layer->attention, cosine, sine);
    const std::vector<gpu::RowArgs> args = job.rows.args(*device_);
    m->put(p.rows, args.data(), args.size() * sizeof(gpu::RowArgs));
    m->put(p.cosine, cosine.data(), cosine.size() * sizeof(float));
    m->put(p.sine, sine.data(), sine.size() * sizeof(float));
    m->put(p.x, x, state_bytes);
    m->put(p.damage, nullptr, sizeof(std::uint32_t));
    if (selection != nullptr && !chooses) {
      m->put(p.chosen, selection->chosen, choice_bytes);
      m->put(p.counts, selection->counts, count_bytes);
    }
    put_constants(m, *layer, p, job.view);
  }
  const gpu::LayerEncoder encoder(job.shape, plan_, gpu::LayerBuffers::place(job.shape, rows, longest, p.buffers));
  const gpu::StepTable step{p.rows, rows, longest, p.cosine, p.sine};
  gpu::SelectionTable table;
  if (selection != nullptr) table = {p.chosen, p.counts, job.top_k};
  const SavedEntries saved(job.rows.sequences(), widths);
  auto commands = submit([&](gpu::Encoder& e) {
    auto* entries = m->block.host<gpu::ExpertEntry>(p.experts);
    for (std::size_t i = 0; i < job.experts.size(); ++i)
      entries[i] = {gpu::matrix_args(e, job.experts[i].gate), gpu::matrix_args(e, job.experts[i].up),
                    gpu::matrix_args(e, job.experts[i].down)};
    if (job.view.sparse) job.view.experts = p.experts;
    encode_layer(e, encoder, job.view, step, table, p);
  });
  if (!commands || !finish(*commands)) {
    saved.restore();
    return refuse(COLI_METAL_GPU_FAULT, "layer: {}", last_fault_);
  }
  std::uint32_t damage = 0;
  m->get(&damage, p.damage, sizeof damage);
  if (damage != 0) {
    saved.restore();
    faults_.succeeded();
    const std::string_view part = (damage & gpu::kDamageAttention) != 0 ? "attention"
                                  : (damage & gpu::kDamageIndexer) != 0 ? "the indexer"
                                  : (damage & gpu::kDamageRouter) != 0  ? "the router"
                                                                        : "the feed-forward part";
    return refuse(COLI_METAL_NOT_FINITE, "layer: expected finite numbers, found an infinite or NaN value in {}", part);
  }
  const Stopwatch watch(counters_.scatter_seconds);
  m->get(x_out, p.x_out, state_bytes);
  if (chooses) {
    m->get(selection->counts, p.counts, count_bytes);
    for (std::int64_t r = 0; r < rows; ++r)
      m->get(selection->chosen + r * job.top_k, p.chosen + static_cast<gpu::Address>(r * job.top_k) * sizeof(std::int32_t),
             selection->counts[r] * sizeof(std::int32_t));
  }
  succeeded(job.view.sparse ? static_cast<std::uint64_t>(rows * layer->per_token) : 0);
  return {};
}

}  // namespace colibri::capi

#include "model/gpu_layers.h"

#include <algorithm>
#include <tuple>

#include "numerics/attention.h"
#include "numerics/norm.h"

namespace colibri {
namespace {

using gpu::Address;

constexpr std::int64_t kFewRows = 4;     // a step of this many rows keeps every layer's state: one wait a token
constexpr std::int64_t kManyStates = 4;  // a longer one keeps this many

std::int64_t cache_layers(const ModelConfig& config) { return config.layers + config.mtp_layers; }

gpu::LayerShape shape_of(const ModelConfig& c) {
  gpu::LayerShape s;
  s.hidden = c.hidden_size;
  s.q_lora_rank = c.mla.q_lora_rank;
  s.v_head_dim = c.mla.v_head_dim;
  s.eps = c.rms_norm_eps;
  s.latent_eps = numerics::kLatentNormEps;
  s.attention = {c.heads, c.mla.kv_lora_rank, c.mla.qk_rope_head_dim, c.mla.qk_nope_head_dim,
                 numerics::inverse_sqrt(c.mla.qk_head_dim())};
  if (c.indexer.top_k > 0)
    s.indexer = {c.indexer.heads,
                 c.indexer.head_dim,
                 c.mla.qk_rope_head_dim,
                 c.indexer.top_k,
                 numerics::inverse_sqrt(c.indexer.head_dim),
                 numerics::inverse_sqrt(c.indexer.heads)};
  if (c.experts > 0) s.router = {c.experts, c.experts_per_token, c.norm_topk_prob, c.routed_scaling_factor};
  s.moe_intermediate = c.moe_intermediate_size;
  s.widest_mlp = std::max(c.intermediate_size, c.moe_intermediate_size * std::max<std::int64_t>(c.shared_experts, 1));
  return s;
}

// Everything of a step but weights and cache, in one block.
struct WorkParts {
  Address layers, states, rows, cosine, sine, chosen, counts, damage, ignored, head_in, head_out, ready_table, late_table;
};

std::int64_t state_rows(const ModelConfig& c, std::int64_t max_rows) {
  return std::max(kFewRows * (cache_layers(c) + 2), kManyStates * max_rows);
}

WorkParts lay_out_work(const ModelConfig& c, std::int64_t max_rows, std::int64_t max_context, gpu::Placer& p) {
  WorkParts w{};
  const std::int64_t half = c.mla.qk_rope_head_dim / 2, states = state_rows(c, max_rows);
  w.layers = p.take(gpu::LayerBuffers::bytes(shape_of(c), max_rows, max_context));
  w.states = p.floats(states * c.hidden_size);
  w.rows = p.take(static_cast<std::uint64_t>(cache_layers(c) * max_rows) * sizeof(gpu::RowArgs));
  w.cosine = p.floats(max_rows * half);
  w.sine = p.floats(max_rows * half);
  w.chosen = p.floats(states * c.indexer.top_k);
  w.counts = p.floats(states);
  w.damage = p.floats(cache_layers(c) + 2);
  w.ignored = p.floats(1);
  w.head_in = p.floats(GpuLayers::kHeadRows * c.hidden_size);
  w.head_out = p.floats(GpuLayers::kHeadRows * c.vocab_size);
  w.ready_table = p.take(static_cast<std::uint64_t>(c.experts) * sizeof(gpu::ExpertEntry));
  w.late_table = p.take(static_cast<std::uint64_t>(c.experts) * sizeof(gpu::ExpertEntry));
  return w;
}

std::uint64_t constant_bytes(const ModelConfig& c) {
  gpu::Placer p(0);
  p.floats(c.hidden_size);  // the final norm
  for (std::int64_t i = 0; i < cache_layers(c); ++i)
    for (const std::int64_t n :
         {c.hidden_size, c.hidden_size, c.mla.q_lora_rank, c.mla.kv_lora_rank, c.experts, c.indexer.head_dim, c.indexer.head_dim})
      p.floats(n);
  return p.used();
}

}  // namespace

std::uint64_t GpuLayers::memory_bytes(const ModelConfig& config, std::int64_t max_rows, std::int64_t max_context) {
  gpu::Placer p(0);
  lay_out_work(config, max_rows, max_context, p);
  const auto tables = static_cast<std::uint64_t>(cache_layers(config) * config.experts) * sizeof(gpu::ExpertEntry);
  return p.used() + constant_bytes(config) + tables;
}

GpuLayers::GpuLayers(gpu::Device& device, const ModelConfig& config, ModelWeights& weights, std::int64_t max_rows,
                     std::int64_t max_context, const GpuOptions& options)
    : device_(device),
      config_(config),
      weights_(weights),
      options_(options),
      max_rows_(max_rows),
      max_context_(max_context),
      shape_(shape_of(config)),
      kernels_(device) {}

Result<std::unique_ptr<GpuLayers>> GpuLayers::create(gpu::Device& device, const ModelConfig& config, ModelWeights& weights,
                                                     std::int64_t max_rows, std::int64_t max_context, const GpuOptions& options) {
  std::unique_ptr<GpuLayers> layers(new GpuLayers(device, config, weights, max_rows, max_context, options));
  COLIBRI_CHECK(layers->lay_out());
  return layers;
}

Result<void> GpuLayers::lay_out() {
  COLIBRI_TRY(weight_memory, gpu::Registration::add(device_, weights_.memory()));
  weight_memory_ = std::move(weight_memory);
  COLIBRI_TRY(constants, gpu::DeviceBlock::allocate(device_, constant_bytes(config_)));
  constants_ = std::move(constants);
  gpu::Placer count(0);
  lay_out_work(config_, max_rows_, max_context_, count);
  COLIBRI_TRY(work, gpu::DeviceBlock::allocate(device_, count.used()));
  work_ = std::move(work);
  gpu::Placer placer(work_.address());
  const WorkParts w = lay_out_work(config_, max_rows_, max_context_, placer);
  encoder_.emplace(shape_, options_.products, gpu::LayerBuffers::place(shape_, max_rows_, max_context_, w.layers));
  states_ = w.states;
  state_rows_ = state_rows(config_, max_rows_);
  rows_ = w.rows;
  cosine_ = w.cosine;
  sine_ = w.sine;
  chosen_ = w.chosen;
  counts_ = w.counts;
  damage_ = w.damage;
  ignored_ = w.ignored;
  head_in_ = w.head_in;
  head_out_ = w.head_out;
  ready_table_ = w.ready_table;
  late_table_ = w.late_table;

  gpu::Placer constant(constants_.address());
  final_norm_ = copy_constant(weights_.final_norm, constant);
  for (const LayerWeights& layer : weights_.layers) views_.push_back(view(layer, constant));
  if (weights_.mtp) views_.push_back(view(weights_.mtp->layer, constant));
  supported_.assign(views_.size(), true);
  for (std::size_t i = 0; i < views_.size(); ++i) check_formats(i);
  return {};
}

Address GpuLayers::copy_constant(const AlignedArray<float>& values, gpu::Placer& constants) {
  const Address at = constants.floats(static_cast<std::int64_t>(values.size()));
  std::copy(values.data(), values.data() + values.size(), constants_.host<float>(at));
  return at;
}

gpu::LayerView GpuLayers::view(const LayerWeights& layer, gpu::Placer& constants) {
  const auto copy = [&](const AlignedArray<float>& values) { return copy_constant(values, constants); };
  gpu::LayerView v;
  v.input_norm = copy(layer.input_norm);
  v.post_attention_norm = copy(layer.post_attention_norm);
  const MlaWeights& a = layer.attention;
  v.q_a_norm = copy(a.q_a_norm);
  v.kv_a_norm = copy(a.kv_a_norm);
  v.q_a = a.q_a;
  v.q_b = a.q_b;
  v.kv_a = a.kv_a;
  v.kv_b = a.kv_b;
  v.o = a.o;
  if (a.indexer)
    v.indexer = gpu::IndexerView{a.indexer->wq_b, a.indexer->wk, a.indexer->weights_proj, copy(a.indexer->k_norm),
                                 copy(a.indexer->k_norm_bias)};
  v.gate = layer.mlp.gate;
  v.up = layer.mlp.up;
  v.down = layer.mlp.down;
  v.sparse = layer.sparse;
  if (layer.sparse) {
    v.router = layer.router;
    v.router_bias = copy(layer.router_bias);
  }
  return v;
}

// One dispatch applies all experts of a layer, so they must be of one kind.
void GpuLayers::check_formats(std::size_t layer) {
  gpu::LayerView& v = views_[layer];
  if (!v.sparse) return;
  const auto& records = weights_.experts[layer];
  const auto formats = [](const ExpertRecord& r) {
    return std::tuple(r.gate.matrix.format, r.up.matrix.format, r.down.matrix.format);
  };
  std::tie(v.expert_gate, v.expert_up, v.expert_down) = formats(records.front());
  std::string reason;
  if (config_.router != RouterKind::kSigmoid) reason = "its router is no sigmoid router";
  for (std::size_t e = 1; e < records.size() && reason.empty(); ++e)
    if (formats(records[e]) != formats(records.front()))
      reason = fmt::format("expert {} is stored in another format than expert 0", e);
  if (reason.empty()) return;
  supported_[layer] = false;
  notices_.push_back(fmt::format("layer {} is computed by the CPU, not by the GPU: {}", layer, reason));
}

Result<void> GpuLayers::use_experts(ExpertSource& experts) {
  experts_ = &experts;
  for (const std::span<std::byte> memory : experts.memory()) {
    COLIBRI_TRY(registration, gpu::Registration::add(device_, memory));
    expert_memory_.push_back(std::move(registration));
  }
  std::size_t sparse = views_.size();
  for (std::size_t i = views_.size(); i-- > 0;)
    if (views_[i].sparse) sparse = i;
  resident_ = routing_ == nullptr && sparse < views_.size() && experts.resident(static_cast<std::int64_t>(sparse), 0) != nullptr;
  if (!resident_) return {};

  const auto per_layer = static_cast<std::uint64_t>(config_.experts) * sizeof(gpu::ExpertEntry);
  COLIBRI_TRY(tables, gpu::DeviceBlock::allocate(device_, per_layer * views_.size()));
  tables_ = std::move(tables);
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (!views_[i].sparse) continue;
    views_[i].experts = tables_.address() + per_layer * i;
    auto* entries = tables_.host<gpu::ExpertEntry>(views_[i].experts);
    for (std::int32_t e = 0; e < config_.experts; ++e) {
      COLIBRI_TRY(entry, expert_entry(*experts.resident(static_cast<std::int64_t>(i), e)));
      entries[e] = entry;
    }
  }
  return {};
}

Result<gpu::ExpertEntry> GpuLayers::expert_entry(const ExpertWeights& weights) {
  gpu::ExpertEntry entry{};
  for (const auto& [args, matrix] :
       {std::pair{&entry.gate, &weights.gate}, {&entry.up, &weights.up}, {&entry.down, &weights.down}}) {
    COLIBRI_TRY(one, gpu::matrix_args(device_, *matrix));
    *args = one;
  }
  return entry;
}

Result<void> GpuLayers::adopt(KvCache& cache) {
  COLIBRI_TRY(registration, gpu::Registration::add(device_, cache.memory()));
  cache.keep(std::make_shared<gpu::Registration>(std::move(registration)));
  return {};
}

GpuCounters GpuCounters::since(const GpuCounters& before) const {
  GpuCounters d = *this;
  d.blocks -= before.blocks;
  d.redone -= before.redone;
  d.experts -= before.experts;
  d.attention_launches -= before.attention_launches;
  d.setup_seconds -= before.setup_seconds;
  d.wall_seconds -= before.wall_seconds;
  d.kernel_seconds -= before.kernel_seconds;
  d.attention_kernel_seconds -= before.attention_kernel_seconds;
  d.expert_kernel_seconds -= before.expert_kernel_seconds;
  d.expert_wall_seconds -= before.expert_wall_seconds;
  d.scatter_seconds -= before.scatter_seconds;
  d.compile_seconds -= before.compile_seconds;
  d.encoded.command_buffers -= before.encoded.command_buffers;
  d.encoded.dispatches -= before.encoded.dispatches;
  d.encoded.barriers -= before.encoded.barriers;
  d.encoded.waits -= before.encoded.waits;
  return d;
}

GpuCounters GpuLayers::counters() const {
  GpuCounters c = counters_;
  c.compile_seconds = kernels_.compile_seconds();
  return c;
}

}  // namespace colibri

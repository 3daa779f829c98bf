#include "model/gpu_layers.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "gpu/rowwise.h"
#include "numerics/attention.h"
#include "numerics/elementary.h"
#include "numerics/norm.h"
#include "numerics/selection.h"

namespace colibri {
namespace {

using gpu::Address;
using gpu::Fault;

constexpr std::int64_t kFewRows = 4;     // a step of this many rows keeps every layer's state: one wait a token
constexpr std::int64_t kManyStates = 4;  // a longer one keeps this many
constexpr std::int64_t kHeadRows = 4;    // rows of logits at a time

std::uint64_t bytes_of(std::int64_t floats) { return static_cast<std::uint64_t>(floats) * sizeof(float); }

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
  w.head_in = p.floats(kHeadRows * c.hidden_size);
  w.head_out = p.floats(kHeadRows * c.vocab_size);
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

// --- one step ------------------------------------------------------------------------------------------------------

// Slot 0 selects nothing.
gpu::SelectionTable GpuLayers::selection(const Step& step, std::size_t slot) const {
  if (slot == 0) return {};
  const auto first = static_cast<Address>((slot - 1) * step.rows.rows.size());
  return {chosen_ + first * bytes_of(config_.indexer.top_k), counts_ + first * sizeof(std::uint32_t), config_.indexer.top_k};
}

Address GpuLayers::state(const Step& step, std::size_t job) const {
  return states_ + static_cast<Address>(job % ring_) * bytes_of(step.rows.count() * config_.hidden_size);
}

gpu::StepTable GpuLayers::table(const Step& step, std::int64_t layer) const {
  return {rows_ + static_cast<Address>(layer * max_rows_) * sizeof(gpu::RowArgs), step.rows.count(), longest_, cosine_, sine_};
}

bool GpuLayers::begin(const Step& step) {
  PhaseClock clock;
  head_ready_ = 0;
  const std::int64_t rows = step.rows.count(), half = config_.mla.qk_rope_head_dim / 2;
  const std::int64_t states = state_rows(config_, max_rows_);
  ring_ = static_cast<std::size_t>(std::min(states / rows, static_cast<std::int64_t>(step.jobs.size()) + 1));
  longest_ = 0;
  for (const Row& row : step.rows.rows) longest_ = std::max(longest_, row.position + 1);
  std::copy(step.rows.cosine, step.rows.cosine + rows * half, work_.host<float>(cosine_));
  std::copy(step.rows.sine, step.rows.sine + rows * half, work_.host<float>(sine_));
  bool reachable = true;
  for (const LayerJob& job : step.jobs) {
    auto* args = work_.host<gpu::RowArgs>(table(step, job.index).rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      const Row& row = step.rows.rows[static_cast<std::size_t>(r)];
      args[r] = {};
      args[r].entries = device_.address(row.cache->row(job.index, 0));
      if (row.cache->indexed(job.index)) args[r].keys = device_.address(row.cache->index_key(job.index, 0));
      reachable = reachable && args[r].entries != 0;
      args[r].position = static_cast<gpu::u32>(row.position);
    }
  }
  // Every layer with an indexer takes the next slot.
  selection_of_.clear();
  std::size_t slot = 0, taken = 0;
  for (const LayerJob& job : step.jobs) {
    if (job.weights->attention.indexer) slot = 1 + taken++ % ring_;
    selection_of_.push_back(slot);
  }
  std::copy(step.x, step.x + rows * config_.hidden_size, work_.host<float>(state(step, 0)));
  clock.add_to(counters_.scatter_seconds);
  return reachable;
}

Result<StepEnd> GpuLayers::run(const Step& step) {
  reachable_ = begin(step);
  if (!reachable_) faults_.failed(Fault::kResidency, "a sequence's KV cache is not registered with the GPU");
  for (std::size_t job = 0;;) {
    const bool all_submitted = job == step.jobs.size();
    if (all_submitted) submit_head(step);
    auto progress = all_submitted ? settle(step, 0, job) : submit(step, job);
    if (!progress || progress->stopped) {
      drop();
      if (!progress) return pass(std::move(progress).error());
      return StepEnd::kStopped;
    }
    if (all_submitted && !progress->redone) break;
    job = progress->next;
  }
  release_held();
  PhaseClock clock;
  const auto* last = work_.host<float>(state(step, step.jobs.size()));
  std::copy(last, last + step.rows.count() * config_.hidden_size, step.x);
  clock.add_to(counters_.scatter_seconds);
  return StepEnd::kDone;
}

// The logits of a few rows behind the last layer, so that a token costs one wait.
void GpuLayers::submit_head(const Step& step) {
  const std::int64_t rows = step.rows.count(), d = config_.hidden_size;
  if (!step.with_head || rows > kHeadRows || !on() || !reachable_) return;
  PhaseClock clock;
  gpu::Encoder e(kernels_, counters_.encoded);
  gpu::rms_norm(e, {state(step, step.jobs.size()), rows, d, d}, final_norm_, config_.rms_norm_eps, head_in_, d);
  e.barrier();
  gpu::product(e, options_.products, weights_.head, {head_in_, rows, d, d}, head_out_, config_.vocab_size);
  clock.add_to(counters_.setup_seconds);
  if (!hand_over(e, step.jobs.size(), Pending::Part::kHead, true)) faults_.failed(e.fault(), e.error()->message);
}

Result<GpuLayers::Progress> GpuLayers::submit(const Step& step, std::size_t job) {
  const LayerJob& layer = step.jobs[job];
  if (step.keep_going && !step.keep_going()) return Progress{job, false, true};
  const bool here = on() && reachable_ && supported_[static_cast<std::size_t>(layer.index)];
  // The state this layer writes must not be an input of one that may still fail.
  COLIBRI_TRY(settled, settle(step, here && !step.observe ? ring_ - 2 : 0, job));
  if (settled.next != job || settled.stopped) return settled;
  if (step.observe) step.observe(layer.index, work_.host<float>(state(step, job)));
  if (!here) return redo(step, job);

  PhaseClock clock;
  const gpu::LayerView& view = views_[static_cast<std::size_t>(layer.index)];
  const Address x = state(step, job), x_out = state(step, job + 1), damage = this->damage(job);
  const std::int64_t rows = step.rows.count();
  *work_.host<std::uint32_t>(damage) = 0;
  gpu::Encoder e(kernels_, counters_.encoded);
  encoder_->attention(e, view, table(step, layer.index), selection(step, selection_of_[job]), x, damage);
  encoder_->router(e, view, rows, damage);
  if (view.sparse && !resident_) {
    encoder_->mlp(e, view, rows);
    const bool predict = layer.next_sparse != nullptr && experts_->wants_predictions();
    if (predict) encoder_->prediction(e, views_[static_cast<std::size_t>(layer.index) + 1], rows, ignored_);
    clock.add_to(counters_.setup_seconds);
    if (!hand_over(e, job, Pending::Part::kAttention, false)) return fail_and_redo(step, job, e);
    COLIBRI_TRY(chosen, settle(step, 0, job));
    if (chosen.redone || chosen.stopped) return chosen;
    return run_experts(step, job, predict);
  }
  if (view.sparse) {
    encoder_->group(e, view, rows);
    encoder_->mlp(e, view, rows);
    encoder_->experts(e, view, rows, view.experts);
    encoder_->sparse_end(e, view, rows, x_out, damage);
  } else {
    encoder_->mlp(e, view, rows);
    encoder_->dense_end(e, rows, x_out, damage);
  }
  clock.add_to(counters_.setup_seconds);
  if (!hand_over(e, job, Pending::Part::kLayer, true)) return fail_and_redo(step, job, e);
  return Progress{job + 1, false, false};
}

bool GpuLayers::hand_over(gpu::Encoder& encoder, std::size_t job, Pending::Part part, bool last) {
  auto work = encoder.commit();
  if (!work) return false;
  pending_.push_back({part, last, job, std::move(*work), {}});
  return true;
}

// Encoding failed: what came before is finished first, for the CPU needs its outputs.
Result<GpuLayers::Progress> GpuLayers::fail_and_redo(const Step& step, std::size_t job, const gpu::Encoder& encoder) {
  COLIBRI_TRY(settled, settle(step, 0, job));
  if (settled.next != job || settled.stopped) return settled;
  faults_.failed(encoder.fault(), encoder.error()->message);
  return redo(step, job);
}

Result<GpuLayers::Progress> GpuLayers::settle(const Step& step, std::size_t keep, std::size_t next) {
  if (pending_.size() <= keep) return Progress{next, false, false};
  // One wait, for the last that must be done: those before it are done then.
  PhaseClock clock;
  double waited = 0;
  ++counters_.encoded.waits;
  pending_[pending_.size() - keep - 1].work.wait();
  clock.add_to(waited);
  counters_.wall_seconds += waited;
  if (step.times != nullptr) step.times->gpu += waited;
  double to_come = 0;  // on the GPU, of what is done by now
  for (std::size_t i = 0; i + keep < pending_.size(); ++i) to_come += pending_[i].work.wait().gpu_seconds;
  while (pending_.size() > keep) {
    Pending first = std::move(pending_.front());
    pending_.pop_front();
    const gpu::Completion done = first.work.wait();
    to_come -= done.gpu_seconds;
    counters_.kernel_seconds += done.gpu_seconds;
    const bool head = first.part == Pending::Part::kHead;
    if (done.fault == Fault::kNone && (head || *work_.host<std::uint32_t>(damage(first.job)) == 0)) {
      count(step, first, done, to_come);
      continue;
    }
    if (done.fault != Fault::kNone) faults_.failed(done.fault, done.message);
    if (head) continue;  // whoever asks for logits computes them
    // What was handed over after it computed on what it left behind.
    for (Pending& p : pending_) p.work.wait();
    pending_.clear();
    return redo(step, first.job);
  }
  return Progress{next, false, false};
}

// later: seconds that the GPU worked on since.
void GpuLayers::count(const Step& step, Pending& pending, const gpu::Completion& done, double later) {
  using Part = Pending::Part;
  if (pending.part == Part::kHead) {
    head_ready_ = step.rows.count();
    return faults_.succeeded();
  }
  if (pending.part == Part::kAttention) counters_.attention_kernel_seconds += done.gpu_seconds;
  if (pending.part == Part::kExperts) {
    counters_.expert_kernel_seconds += done.gpu_seconds;
    double wall = 0;
    pending.since.add_to(wall);
    counters_.expert_wall_seconds += std::max(wall - later, done.gpu_seconds);
  } else {
    ++counters_.attention_launches;
  }
  if (!pending.last) return;
  ++counters_.blocks;
  faults_.succeeded();
  if (step.jobs[pending.job].weights->sparse)
    counters_.experts += static_cast<std::uint64_t>(step.rows.count() * config_.experts_per_token);
}

Result<GpuLayers::Progress> GpuLayers::redo(const Step& step, std::size_t job) {
  assert(pending_.empty());
  release_held();
  const std::size_t rows = step.rows.rows.size();
  const auto* in = work_.host<float>(state(step, job));
  auto* out = work_.host<float>(state(step, job + 1));
  std::copy(in, in + step.rows.count() * config_.hidden_size, out);
  Selection selection;
  read_selection(step, selection_of_[job], rows, selection);
  COLIBRI_TRY(end, step.redo(step.jobs[job], selection, out));
  if (end == StepEnd::kStopped) return Progress{job, true, true};
  if (step.jobs[job].weights->attention.indexer) write_selection(step, selection_of_[job], selection);
  ++counters_.redone;
  return Progress{job + 1, true, false};
}

// --- experts that come and go ------------------------------------------------------------------------------------------

// The router's choice is known: asks for its experts, and tells which ones the next layer will probably want.
Result<void> GpuLayers::request_experts(const Step& step, const LayerJob& layer, bool predict) {
  const auto distinct = [&](Address chosen, std::vector<std::int32_t>& ids, std::vector<std::int32_t>& rows) {
    const auto* choice = work_.host<std::int32_t>(chosen);
    std::vector<std::int32_t> place(static_cast<std::size_t>(config_.experts), -1);
    ids.clear();
    rows.clear();
    for (std::int64_t i = 0; i < step.rows.count() * config_.experts_per_token; ++i) {
      std::int32_t& at = place[static_cast<std::size_t>(choice[i])];
      if (at < 0) {
        at = static_cast<std::int32_t>(ids.size());
        ids.push_back(choice[i]);
        rows.push_back(0);
      }
      ++rows[static_cast<std::size_t>(at)];
    }
  };
  if (routing_ != nullptr) choose_by_model(step, layer);
  distinct(encoder_->buffers().chosen, ids_, id_rows_);
  COLIBRI_CHECK(experts_->request(layer.index, ids_, id_rows_));
  if (!predict) return {};
  std::vector<std::int32_t> ids, rows;
  distinct(encoder_->buffers().predicted, ids, rows);
  experts_->predict(layer.index + 1, ids);
  return {};
}

// A synthetic model's experts are a function of the position; its router's scores still weigh them.
void GpuLayers::choose_by_model(const Step& step, const LayerJob& layer) {
  const gpu::LayerBuffers& b = encoder_->buffers();
  const numerics::RouterRule rule{config_.experts_per_token, config_.norm_topk_prob, config_.routed_scaling_factor};
  std::vector<float> scores(static_cast<std::size_t>(config_.experts)), weights;
  std::vector<std::int32_t> ids;
  for (std::int64_t r = 0; r < step.rows.count(); ++r) {
    const std::int64_t position = step.rows.rows[static_cast<std::size_t>(r)].position, first = r * config_.experts_per_token;
    const auto* logits = work_.host<float>(b.logits) + r * config_.experts;
    std::transform(logits, logits + config_.experts, scores.begin(), numerics::sigmoid);
    routing_->choose(position, layer.index, ids);
    numerics::router_weights(scores, rule, ids, weights);
    std::copy(ids.begin(), ids.end(), work_.host<std::int32_t>(b.chosen) + first);
    std::copy(weights.begin(), weights.end(), work_.host<float>(b.weights) + first);
    routing_->predict(position, layer.index + 1, ids);
    std::copy(ids.begin(), ids.end(), work_.host<std::int32_t>(b.predicted) + first);
  }
}

void GpuLayers::clear_table(Address table) {
  std::memset(work_.host<std::byte>(table), 0, static_cast<std::size_t>(config_.experts) * sizeof(gpu::ExpertEntry));
}

void GpuLayers::add_expert(const ExpertSource::Ready& ready, Address table, gpu::Encoder& encoder) {
  held_.push_back(ready.index);
  auto entry = expert_entry(ready.weights);
  if (entry)
    work_.host<gpu::ExpertEntry>(table)[ids_[ready.index]] = *entry;
  else
    encoder.fail_with(Fault::kResidency, std::move(entry).error());
}

// Those that are there are handed over before the disk is waited for, the others together when the last has arrived; only
// where the cache cannot hold them all at once do they come in waves.
Result<GpuLayers::Progress> GpuLayers::run_experts(const Step& step, std::size_t job, bool predict) {
  const LayerJob& layer = step.jobs[job];
  const gpu::LayerView& view = views_[static_cast<std::size_t>(layer.index)];
  const std::int64_t rows = step.rows.count();
  release_held();
  COLIBRI_CHECK(request_experts(step, layer, predict));
  PhaseClock clock;
  clear_table(ready_table_);
  clear_table(late_table_);
  std::size_t missing = ids_.size(), in_table = 0;
  gpu::Encoder first(kernels_, counters_.encoded);
  for (;; --missing, ++in_table) {
    COLIBRI_TRY(ready, experts_->next(false));
    if (!ready) break;
    add_expert(*ready, ready_table_, first);
  }
  encoder_->group(first, view, rows);
  if (in_table > 0) encoder_->experts(first, view, rows, ready_table_);
  if (missing == 0) encoder_->sparse_end(first, view, rows, state(step, job + 1), damage(job));
  clock.add_to(counters_.setup_seconds);
  if (!hand_over(first, job, Pending::Part::kExperts, missing == 0)) return fail_and_redo(step, job, first);

  while (missing > 0) {
    gpu::Encoder late(kernels_, counters_.encoded);
    for (in_table = 0; missing > 0 && experts_->can_wait(); --missing, ++in_table) {
      if (step.keep_going && !step.keep_going()) return Progress{job, false, true};
      PhaseClock wait;
      auto ready = experts_->next(true);
      if (step.times != nullptr) wait.add_to(step.times->expert_wait);
      if (!ready) return pass(std::move(ready).error());
      add_expert(**ready, late_table_, late);
    }
    clock.restart();
    if (in_table > 0) encoder_->experts(late, view, rows, late_table_);
    if (missing == 0) encoder_->sparse_end(late, view, rows, state(step, job + 1), damage(job));
    clock.add_to(counters_.setup_seconds);
    if (in_table > 0 && !hand_over(late, job, Pending::Part::kExperts, missing == 0)) return fail_and_redo(step, job, late);
    if (missing == 0) break;
    COLIBRI_TRY(settled, settle(step, 0, job));  // the cache is full of what this layer uses
    if (settled.redone || settled.stopped) return settled;
    release_held();
    clear_table(late_table_);
  }
  return Progress{job + 1, false, false};
}

// The step is given up: nothing may be in flight or held.
void GpuLayers::drop() {
  for (Pending& p : pending_) p.work.wait();
  pending_.clear();
  release_held();
}

void GpuLayers::release_held() {
  for (const std::size_t index : held_) experts_->release(index);
  held_.clear();
}

void GpuLayers::read_selection(const Step& step, std::size_t slot, std::size_t rows, Selection& out) {
  out.clear(rows);
  if (slot == 0) return;
  const gpu::SelectionTable table = selection(step, slot);
  const auto* counts = work_.host<std::uint32_t>(table.counts);
  const auto* chosen = work_.host<std::int32_t>(table.chosen);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto* first = chosen + static_cast<std::int64_t>(r) * table.top_k;
    out.positions[r].assign(first, first + counts[r]);
  }
}

void GpuLayers::write_selection(const Step& step, std::size_t slot, const Selection& in) {
  const gpu::SelectionTable table = selection(step, slot);
  auto* counts = work_.host<std::uint32_t>(table.counts);
  auto* chosen = work_.host<std::int32_t>(table.chosen);
  for (std::size_t r = 0; r < in.positions.size(); ++r) {
    counts[r] = static_cast<std::uint32_t>(in.positions[r].size());
    std::copy(in.positions[r].begin(), in.positions[r].end(), chosen + static_cast<std::int64_t>(r) * table.top_k);
  }
}

bool GpuLayers::logits(const float* hidden, std::int64_t first, std::int64_t count, float* out) {
  const std::int64_t d = config_.hidden_size, vocab = config_.vocab_size;
  if (first + count <= head_ready_) {
    PhaseClock clock;
    const auto* ready = work_.host<float>(head_out_) + first * vocab;
    std::copy(ready, ready + count * vocab, out);
    clock.add_to(counters_.scatter_seconds);
    return true;
  }
  head_ready_ = 0;
  for (std::int64_t done = 0; done < count; done += kHeadRows) {
    if (!on()) return false;
    const std::int64_t rows = std::min(kHeadRows, count - done);
    PhaseClock clock;
    std::copy(hidden + done * d, hidden + (done + rows) * d, work_.host<float>(head_in_));
    clock.add_to(counters_.scatter_seconds);
    gpu::Encoder e(kernels_, counters_.encoded);
    gpu::product(e, options_.products, weights_.head, {head_in_, rows, d, d}, head_out_, vocab);
    auto work = e.commit();
    clock.add_to(counters_.setup_seconds);
    if (!work) {
      faults_.failed(e.fault(), e.error()->message);
      return false;
    }
    ++counters_.encoded.waits;
    const gpu::Completion end = work->wait();
    clock.add_to(counters_.wall_seconds);
    counters_.kernel_seconds += end.gpu_seconds;
    if (end.fault != Fault::kNone) {
      faults_.failed(end.fault, end.message);
      return false;
    }
    const auto* logits = work_.host<float>(head_out_);
    std::copy(logits, logits + rows * vocab, out + done * vocab);
    clock.add_to(counters_.scatter_seconds);
  }
  return true;
}

}  // namespace colibri

#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "experts/stand_in_experts.h"
#include "format/synthetic_routing.h"

namespace colibri {
namespace {

constexpr int kMaxThreads = 256;
constexpr std::int64_t kMaxPrefillChunk = 4096;
constexpr double kMemoryInterval = 1;             // seconds between two looks at the system's memory
constexpr const char* kEngineName = "colibri";    // in the usage history
constexpr std::uint64_t kTensorEntryBytes = 256;  // a name, a shape and a range in the index

Result<const Kernels*> choose_kernels(const std::string& isa) {
  if (isa.empty()) return &best_kernels();
  if (const Kernels* k = find_kernels(isa)) return k;
  std::string names;
  for (const Kernels* k : available_kernels()) names += fmt::format("{}{}", names.empty() ? "" : ", ", k->name);
  return fail("instruction set '{}' is not available on this CPU; available: {}", isa, names);
}

}  // namespace

// Everything up to the reading of weights: a model that does not fit is refused here.
Result<std::unique_ptr<Engine>> Engine::prepare(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > kMaxThreads)
    return fail("{} threads: expected 1 to {}, or 0 for every CPU", options.threads, kMaxThreads);
  if (options.prefill_chunk < 0 || options.prefill_chunk > kMaxPrefillChunk)
    return fail("a prefill chunk of {} rows: expected 1 to {}", options.prefill_chunk, kMaxPrefillChunk);
  COLIBRI_TRY(kernels, choose_kernels(options.isa));
  COLIBRI_TRY(config, ModelConfig::load(options.model));
  if (options.context < 0 || options.context > config.max_positions)
    return fail("a context of {} positions: {} allows 1 to {}", options.context, options.model.string(), config.max_positions);
  COLIBRI_TRY(checkpoint, Checkpoint::open(options.model));

  COLIBRI_TRY(gpu, choose_gpu(options.gpu));
  const int threads = options.threads > 0 ? options.threads : available_cpus();
  // A thread that spins takes power from a GPU beside it.
  const WaitMode wait = options.block_waits || gpu.device ? WaitMode::kBlock : WaitMode::kAdaptive;
  std::unique_ptr<Engine> engine(new Engine(std::move(gpu), std::move(config), std::move(checkpoint), *kernels, threads, wait));
  COLIBRI_TRY(weights, ModelWeights::plan(engine->checkpoint_, engine->config_));
  engine->weights_ = std::move(weights);
  ModelLimits limits;
  limits.max_context = options.context > 0 ? options.context : std::min(engine->config_.max_positions, kDefaultContext);
  limits.max_rows = std::min(options.prefill_chunk > 0 ? options.prefill_chunk : kDefaultPrefillChunk, limits.max_context);
  engine->model_.emplace(engine->config_, *engine->weights_, engine->kernels_, engine->team_, limits);
  engine->verify_ = options.verify;
  COLIBRI_CHECK(engine->open_routing(options.model));
  COLIBRI_CHECK(engine->plan_experts(options));
  return engine;
}

Result<EnginePlan> Engine::plan(const EngineOptions& options) {
  COLIBRI_TRY(engine, prepare(options));
  EnginePlan plan;
  plan.memory = engine->memory_;
  if (engine->streams()) plan.disk = engine->disk_;
  plan.pins = static_cast<std::int64_t>(engine->pins(options).size());
  plan.forecast = engine->forecast();
  plan.notices = engine->notices_;
  return plan;
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  COLIBRI_TRY(engine, prepare(options));
  COLIBRI_CHECK(engine->weights_->read(engine->team_));
  COLIBRI_CHECK(engine->open_experts(options));
  COLIBRI_CHECK(engine->open_gpu(options));
  engine->load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return engine;
}

Result<void> Engine::open_routing(const std::filesystem::path& dir) {
  COLIBRI_TRY(described, load_synthetic_routing(dir));
  if (!described || weights_->experts.empty()) return {};
  RoutingOptions o{*described};
  o.layers = static_cast<std::int64_t>(weights_->experts.size());
  o.experts = config_.experts;
  o.top_k = config_.experts_per_token;
  model_->use_routing(routing_.emplace(o));
  return {};
}

// How many reads are in flight decides how much memory they take, so the disk is measured between two plans. The first
// refuses a budget that cannot work before anything is read.
Result<void> Engine::plan_experts(const EngineOptions& options) {
  disk_ = disk_choice({}, options.disk);
  COLIBRI_TRY(memory, fit(options, disk_.options));
  memory_ = std::move(memory);
  if (options.stand_in_experts || !streams()) return {};
  load_usage(options);
  if (!options.probe_disk) return {};
  DiskChoice choice = probe_disk(options);
  if (auto again = fit(options, choice.options)) {
    memory_ = std::move(*again);
  } else {  // a budget for the smallest reader alone
    choice = disk_;
    choice.source = "default, because the budget leaves no memory for more";
  }
  disk_ = std::move(choice);
  if (!disk_.notice.empty()) notices_.push_back(disk_.notice);
  return {};
}

Result<MemoryPlan> Engine::fit(const EngineOptions& options, const ReaderOptions& reader) const {
  const auto& records = weights_->experts;
  MemoryNeeds needs;
  needs.dense = weights_->dense_bytes;
  needs.kv_cache = KvCache::bytes_per_position(config_, model_->indexed_layers()) * static_cast<std::uint64_t>(context());
  needs.scratch = model_->scratch_bytes();
  const ModelLimits& limits = model_->limits();
  if (device_) needs.scratch += GpuLayers::memory_bytes(config_, limits.max_rows, limits.max_context);
  needs.read_buffers = RecordReader::buffer_bytes(reader);
  needs.expert_slot = record_slot_bytes(records);
  for (const auto& layer : records) needs.experts += layer.size();
  needs.tables = needs.experts * (sizeof(ReadPlan) + sizeof(std::uint64_t)) + checkpoint_.tensors().size() * kTensorEntryBytes;
  needs.least_experts = std::min<std::uint64_t>(needs.experts, static_cast<std::uint64_t>(config_.experts_per_token));
  MemoryFacts facts = memory_facts();
  if (device_) {
    facts.longest_slab = device_->info().longest_buffer;
    facts.working_set = device_->info().working_set;
  }
  COLIBRI_TRY(memory, plan_memory(facts, needs, options.ram));
  if (options.expert_slots > 0 && static_cast<std::uint64_t>(options.expert_slots) < memory.slabs.slots) {
    COLIBRI_TRY(slabs, plan_slabs(~std::uint64_t{0}, needs.expert_slot, static_cast<std::uint64_t>(options.expert_slots),
                                  ~std::uint64_t{0}));
    memory.slabs = std::move(slabs);
    memory.all_resident = false;
    memory.terms.back() = {"expert arena", memory.slabs.total_bytes(), "the number of experts that was asked for"};
  }
  return memory;
}

DiskChoice Engine::probe_disk(const EngineOptions& options) const {
  std::vector<std::filesystem::path> files;
  for (const Checkpoint::Shard& shard : checkpoint_.shards()) files.push_back(shard.path);
  ProbeLimits limits;
  for (const auto& layer : weights_->experts)
    if (!layer.empty()) limits.offset_phase = plan_record(layer.front(), {}).runs().front().offset % kDirectAlignment;
  return choose_disk_mode(options.model, files, options.disk, limits);
}

void Engine::load_usage(const EngineOptions& options) {
  if (options.usage.empty()) return;
  const CacheShape shape{static_cast<std::int64_t>(weights_->experts.size()), config_.experts, config_.experts_per_token};
  std::string notice;
  usage_ = UsageHistory::load(options.usage, shape, options.usage_decay, notice);
  usage_at_start_ = usage_->total();
  if (notice.empty())
    usage_path_ = options.usage;
  else
    notices_.push_back(notice + "; delete it to let a new one begin");
}

std::vector<ExpertKey> Engine::pins(const EngineOptions& options) const {
  if (!usage_ || !options.pin_hottest) return {};
  return usage_->pin_set(static_cast<std::int64_t>(memory_.slabs.slots));
}

Result<void> Engine::save_usage() const {
  if (!usage_ || usage_path_.empty() || usage_->total() == usage_at_start_) return {};
  const std::filesystem::path dir = usage_path_.has_parent_path() ? usage_path_.parent_path() : ".";
  if (::access(dir.c_str(), W_OK) != 0) return {};
  return usage_->save(usage_path_, kEngineName);
}

SpeedForecast Engine::forecast() const {
  ForecastFacts facts;
  for (std::size_t layer = 0; layer < weights_->experts.size(); ++layer) {
    const auto& records = weights_->experts[layer];
    facts.experts += static_cast<std::int64_t>(records.size());
    // The MTP layer comes after the model's own and is not used for a plain token.
    if (records.empty() || static_cast<std::int64_t>(layer) >= config_.layers) continue;
    facts.bytes_per_token +=
        plan_record(records.front(), {}).read_bytes() * static_cast<std::uint64_t>(config_.experts_per_token);
  }
  facts.slots = static_cast<std::int64_t>(memory_.slabs.slots);
  facts.disk_bytes_per_second = disk_.bytes_per_second;
  if (usage_) facts.share_of_hottest = usage_->share_of_hottest(facts.slots);
  return forecast_speed(facts);
}

Result<void> Engine::open_experts(const EngineOptions& options) {
  const auto& records = weights_->experts;
  if (options.stand_in_experts && memory_.slabs.slots > 0) {
    COLIBRI_TRY(experts, StandInExperts::load(checkpoint_, records, memory_.slabs.slots, team_));
    experts_ = std::move(experts);
    stand_ins_ = true;
  } else if (!streams()) {
    COLIBRI_TRY(experts, ResidentExperts::load(checkpoint_, records, team_));
    experts_ = std::make_unique<ResidentExperts>(std::move(experts));
  } else {
    StreamingOptions streaming;
    streaming.slabs = memory_.slabs;
    streaming.reader = disk_.options;
    streaming.reader.verify = verify_;
    streaming.policy = options.cache_policy;
    streaming.prefetch = options.prefetch;
    if (usage_) streaming.usage = &*usage_;
    streaming.budget = memory_.budget;
    // A GPU that was opened may use the arena's pages where they lie, so none of them can go.
    if (!device_) streaming.memory = options.memory_samples ? options.memory_samples : memory_samples(kMemoryInterval);
    COLIBRI_TRY(experts, StreamingExperts::open(checkpoint_, records, config_.experts_per_token, streaming, team_));
    experts->pin(pins(options));
    streaming_ = experts.get();
    experts_ = std::move(experts);
  }
  model_->use_experts(*experts_);
  return options.trace.empty() ? Result<void>{} : open_trace(options.trace);
}

Result<void> Engine::open_trace(const std::filesystem::path& path) {
  TraceModel model;
  model.layers = static_cast<std::int64_t>(weights_->experts.size());
  model.experts = config_.experts;
  model.top_k = config_.experts_per_token;
  for (const auto& layer : weights_->experts)
    if (!layer.empty()) model.expert_bytes = static_cast<std::int64_t>(plan_record(layer.front(), {}).read_bytes());
  COLIBRI_TRY(writer, TraceWriter::create(path, model));
  trace_.emplace(std::move(writer));
  // A failed write is kept by the writer and reported by finish_trace().
  recorder_ = std::make_unique<TraceRecorder>(*experts_, [this](const TraceStep& step) { (void)trace_->write(step); });
  model_->use_experts(*recorder_);
  return {};
}

bool Engine::packed() const {
  bool any = false;
  for (const auto& layer : weights_->experts)
    for (const ExpertRecord& record : layer) {
      if (record.packed.bytes == 0) return false;
      any = true;
    }
  return any;
}

Result<void> Engine::open_gpu(const EngineOptions& options) {
  if (!device_) return {};
  GpuOptions gpu;
  if (options.gpu_tile_from > 0) gpu.products.tile_from = options.gpu_tile_from;
  // A GPU that cannot take the model leaves it to the CPU; whoever asked for the GPU is told.
  if (const auto used = model_->use_gpu(*device_, *weights_, gpu); !used) {
    notices_.push_back(fmt::format("the GPU ({}) is not used: {}", device_->info().name, used.error().message));
    return {};
  }
  const auto& about_layers = model_->gpu()->notices();
  notices_.insert(notices_.end(), about_layers.begin(), about_layers.end());
  return {};
}

Result<void> Engine::finish_trace() {
  if (!trace_) return {};
  recorder_->flush();
  return trace_->finish();
}

}  // namespace colibri

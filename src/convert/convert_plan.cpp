// What a conversion will write, from the headers of the source alone.
#include <algorithm>

#include "convert/convert_jobs.h"
#include "format/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace colibri {
namespace {

bool is_integer(WeightFormat format) {
  return format == WeightFormat::kInt8Row || format == WeightFormat::kInt4Row || format == WeightFormat::kInt4Grouped ||
         format == WeightFormat::kInt2Row || format == WeightFormat::kInt3G64;
}

TargetFormat format_of(const Matrix& m) { return {m.format, m.format == WeightFormat::kF8Block128 ? 128 : m.group}; }

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const ModelConfig& config, const ConvertOptions& options)
      : checkpoint_(checkpoint), config_(config), options_(options) {}

  Result<ConvertPlan> run() {
    COLIBRI_TRY(packed, PackedIndex::open(checkpoint_));
    packed_ = std::move(packed);
    OptionalParts parts = find_parts(checkpoint_, config_);
    parts.mtp = parts.mtp && options_.mtp;
    for (const LayerCensus& layer : model_census(config_, parts)) {
      for (const TensorSpec& spec : layer.dense) {
        use(spec.name);
        if (spec.rows == 0) {
          COLIBRI_CHECK(add_floats(spec));
        } else {
          COLIBRI_CHECK(add_matrix(spec));
        }
      }
      for (const ExpertGroup& group : layer.experts)
        for (std::int64_t e = 0; e < config_.experts; ++e) COLIBRI_CHECK(add_expert(group, e));
    }
    plan_.notices = checkpoint_.notices();
    tell_unused();
    plan_.files.shards = plan_shards(std::move(units_), {options_.shard_bytes, "coli " COLIBRI_VERSION,
                                                         checkpoint_.dir().lexically_normal().filename().string()});
    plan_.files.parameters = parameters();
    COLIBRI_CHECK(read_documents());
    return std::move(plan_);
  }

 private:
  void use(const std::string& name) {
    for (const char* suffix : {"", ".qs", "_scale_inv"}) used_.insert(name + suffix);
  }

  void add(ConvertJob job, std::vector<PlannedTensor> tensors, std::optional<PackedLayout> record = {}) {
    PlannedUnit unit;
    unit.tensors = std::move(tensors);
    unit.record = record;
    unit.job = plan_.jobs.size();
    plan_.jobs.push_back(std::move(job));
    units_.push_back(std::move(unit));
  }

  // Formats of the classes, for the report. A class may hold several.
  void note(TensorClass c, const TargetFormat& target) {
    std::string& text = plan_.formats[static_cast<std::size_t>(c)];
    const std::string format = target_format_text(target);
    if (("+" + text + "+").find("+" + format + "+") == std::string::npos) text += (text.empty() ? "" : "+") + format;
  }

  ConvertMatrix decide(const std::string& name, const MatrixSource& source, TensorClass c) const {
    const TargetFormat have = format_of(source.matrix);
    const std::optional<TargetFormat>& asked = c == TensorClass::kExperts      ? options_.experts
                                               : c == TensorClass::kMtpExperts ? options_.mtp_experts
                                               : c == TensorClass::kEmbedding  ? options_.io
                                                                               : options_.dense;
    TargetFormat target;
    if (c == TensorClass::kRouter) {
      target = is_integer(have.format) ? have : TargetFormat{WeightFormat::kF32, 0};
    } else if (asked) {
      target = *asked;
    } else if (is_integer(have.format)) {
      target = have;
    } else if (c == TensorClass::kExperts) {
      target = {WeightFormat::kInt4Grouped, 64};
    }
    target = simplified(target, source.matrix.cols);
    const bool keep = options_.keep_weights || target == have;
    return {name, source, keep ? have : target, keep};
  }

  Result<void> add_floats(const TensorSpec& spec) {
    ConvertJob job;
    const TensorInfo* tensor = checkpoint_.find(spec.name);
    if (options_.keep_weights && tensor) {
      job.ranges = {tensor->range};
      add(std::move(job), {planned_tensor(spec.name, tensor->dtype, tensor->shape)});
      return {};
    }
    job.kind = ConvertJob::Kind::kFloats;
    job.name = spec.name;
    job.count = spec.cols;
    COLIBRI_CHECK(checkpoint_.read_floats(spec.name, spec.cols));  // small; a missing one is named before work begins
    add(std::move(job), {planned_tensor(spec.name, DType::kF32, {spec.cols})});
    return {};
  }

  Result<void> add_matrix(const TensorSpec& spec) {
    COLIBRI_TRY(source, checkpoint_.find_matrix(spec.name, spec.rows, spec.cols));
    ConvertJob job;
    job.tensor_class = spec.tensor_class;
    job.matrices.push_back(decide(spec.name, source, spec.tensor_class));
    const ConvertMatrix& matrix = job.matrices[0];
    note(spec.tensor_class, matrix.target);
    if (!matrix.keep) {
      COLIBRI_TRY(tensors, matrix_tensors(spec.name, matrix.target, spec.rows, spec.cols));
      job.kind = ConvertJob::Kind::kMatrix;
      add(std::move(job), std::move(tensors));
      return {};
    }
    const TensorInfo& tensor = *checkpoint_.find(spec.name);
    job.ranges.push_back(source.data);
    if (source.scales.bytes > 0) job.ranges.push_back(source.scales);
    if (tensor.dtype == DType::kF8E4M3) {  // Hugging Face's own form of fp8, which has no .qs
      const TensorInfo& scales = *checkpoint_.find(spec.name + "_scale_inv");
      add(std::move(job),
          {planned_tensor(tensor.name, tensor.dtype, tensor.shape), planned_tensor(scales.name, scales.dtype, scales.shape)});
      return {};
    }
    COLIBRI_TRY(tensors, matrix_tensors(spec.name, matrix.target, spec.rows, spec.cols));
    add(std::move(job), std::move(tensors));
    return {};
  }

  Result<void> add_expert(const ExpertGroup& group, std::int64_t e) {
    const std::string name = fmt::format("{}{}.", group.prefix, e);
    for (const char* which : {"gate", "up", "down"}) use(fmt::format("{}{}_proj.weight", name, which));
    for (const char* stacked : {"gate_up_proj", "down_proj"}) use(group.prefix + stacked);
    used_.insert(packed_expert_name(group.prefix, e));
    COLIBRI_TRY(sources, find_expert(checkpoint_, packed_, config_, group.prefix, e));
    ConvertJob job;
    job.kind = ConvertJob::Kind::kExpert;
    job.tensor_class = group.tensor_class;
    for (const auto& [which, source] : {std::pair{"gate", &sources.gate}, {"up", &sources.up}, {"down", &sources.down}}) {
      job.matrices.push_back(decide(fmt::format("{}{}_proj.weight", name, which), *source, group.tensor_class));
      note(group.tensor_class, job.matrices.back().target);
    }
    if (options_.packed) {
      const PackedLayout layout = expert_layout(job);
      add(std::move(job),
          {planned_tensor(packed_expert_name(group.prefix, e), DType::kU8, {static_cast<std::int64_t>(layout.record_bytes)})},
          layout);
      return {};
    }
    std::vector<PlannedTensor> tensors, scales;
    for (const ConvertMatrix& matrix : job.matrices) {
      const Matrix& m = matrix.source.matrix;
      if (matrix.keep && m.row_origin % 128 != 0)
        return fail(
            "tensor {}: fp8 weights that begin inside a 128x128 block have no place in the plain layout; choose "
            "--layout packed or --experts int8",
            in_quotes(matrix.name));
      COLIBRI_TRY(own, matrix_tensors(matrix.name, matrix.target, m.rows, m.cols));
      tensors.push_back(own.front());
      if (own.size() > 1) scales.push_back(own.back());
    }
    tensors.insert(tensors.end(), scales.begin(), scales.end());
    add(std::move(job), std::move(tensors));
    return {};
  }

  static PackedLayout expert_layout(const ConvertJob& job) {
    std::array<Matrix, 3> m;
    for (std::size_t i = 0; i < 3; ++i) {
      const ConvertMatrix& matrix = job.matrices[i];
      m[i] = describe_matrix(matrix.target, matrix.source.matrix.rows, matrix.source.matrix.cols);
      if (matrix.keep) m[i].row_origin = matrix.source.matrix.row_origin;
    }
    return make_packed_layout(m[0], m[1], m[2]);
  }

  void tell_unused() {
    std::string first;
    std::size_t count = 0;
    for (const TensorInfo& tensor : checkpoint_.tensors()) {
      if (used_.contains(tensor.name) || tensor.name.starts_with("colibri.padding.")) continue;
      if (count++ == 0) first = in_quotes(tensor.name);
    }
    if (count > 0)
      plan_.notices.push_back(
          fmt::format("{} tensors of the source are not needed and were left out (the first: {})", count, first));
  }

  // All that decides the bytes that are written.
  std::map<std::string, std::string> parameters() const {
    const auto text = [](const std::optional<TargetFormat>& t) { return t ? target_format_text(*t) : std::string("default"); };
    std::string table;
    for (const Checkpoint::Shard& shard : checkpoint_.shards())
      table += fmt::format("{} {}\n", shard.path.filename().string(), shard.file_bytes);
    for (const TensorInfo& t : checkpoint_.tensors())
      table += fmt::format("{} {} {} {} {}\n", t.name, dtype_name(t.dtype), t.range.shard, t.range.offset, t.range.bytes);
    return {{"made by", "coli convert " COLIBRI_VERSION},
            {"source", fmt::format("{} with {} tensors, {:016x}", checkpoint_.dir().lexically_normal().filename().string(),
                                   checkpoint_.tensors().size(), XXH3_64bits(table.data(), table.size()))},
            {"--experts", text(options_.experts)},
            {"--mtp-experts", text(options_.mtp_experts)},
            {"--dense", text(options_.dense)},
            {"--io", text(options_.io)},
            {"--pack", options_.keep_weights ? "yes" : "no"},
            {"--layout", options_.packed ? "packed" : "plain"},
            {"--no-mtp", options_.mtp ? "no" : "yes"},
            {"--shard-gb", fmt::format("{} bytes", options_.shard_bytes)}};
  }

  Result<void> read_documents() {
    constexpr std::uint64_t kMaxBytes = 256 << 20;
    for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                             "special_tokens_map.json", "chat_template.jinja", "vocab.json", "merges.txt"}) {
      const std::filesystem::path path = checkpoint_.dir() / name;
      std::error_code error;
      if (!std::filesystem::exists(path, error)) continue;
      COLIBRI_TRY(text, read_text(path, kMaxBytes));
      plan_.files.documents.emplace_back(name, std::move(text));
    }
    return {};
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const ConvertOptions& options_;
  PackedIndex packed_;
  ConvertPlan plan_;
  std::vector<PlannedUnit> units_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace

Result<ConvertPlan> plan_conversion(const Checkpoint& checkpoint, const ModelConfig& config, const ConvertOptions& options) {
  if (options.keep_weights && (options.experts || options.mtp_experts || options.dense || options.io))
    return fail("--pack keeps all weights as they are; leave out --experts, --mtp-experts, --dense and --io, or --pack");
  if (options.shard_bytes == 0) return fail("a shard of 0 bytes: expected a positive size");
  return Planner(checkpoint, config, options).run();
}

}  // namespace colibri

#include "convert/verify.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>

#include "base/aligned.h"
#include "base/thread_team.h"
#include "convert/census.h"
#include "format/file.h"

namespace colibri {
namespace {

constexpr std::uint64_t kPieceBytes = 16 << 20;  // of an array; a record is read whole

// The first element whose bits are those of infinity or NaN.
template <class T>
std::optional<std::uint64_t> find_bits(std::span<const std::byte> bytes, T mask, T bad) {
  for (std::uint64_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    T bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(T), sizeof(T));
    if ((bits & mask) == bad) return i;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> first_not_finite(std::span<const std::byte> bytes, DType dtype) {
  switch (dtype) {
    case DType::kF32: return find_bits<std::uint32_t>(bytes, 0x7f800000u, 0x7f800000u);
    case DType::kBF16: return find_bits<std::uint16_t>(bytes, 0x7f80, 0x7f80);
    case DType::kF16: return find_bits<std::uint16_t>(bytes, 0x7c00, 0x7c00);
    case DType::kF8E4M3: return find_bits<std::uint8_t>(bytes, 0x7f, 0x7f);
    default: return std::nullopt;
  }
}

// The element type of a matrix whose values can be wrong by themselves.
std::optional<DType> checked_dtype(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return DType::kF32;
    case WeightFormat::kBF16: return DType::kBF16;
    case WeightFormat::kF16: return DType::kF16;
    case WeightFormat::kF8Block128: return DType::kF8E4M3;
    default: return std::nullopt;
  }
}

class Verifier {
 public:
  Verifier(const Checkpoint& checkpoint, const ModelConfig& config, const VerifyOptions& options)
      : checkpoint_(checkpoint), config_(config), options_(options) {}

  Result<VerifyReport> run() {
    report_.shards = checkpoint_.shards().size();
    report_.tensors = checkpoint_.tensors().size();
    auto packed = PackedIndex::open(checkpoint_);
    if (!packed) {
      report_.problems.push_back(packed.error().message);
      return std::move(report_);
    }
    packed_ = std::move(*packed);
    walk_census();
    for (PackedExpert& expert : packed_.all()) {
      total_ += expert.record.bytes;
      jobs_.push_back({expert.name, expert.record, DType::kU8, 0, std::move(expert)});
    }
    report_.notices = checkpoint_.notices();
    tell_unused();
    read_all();
    std::sort(found_.begin(), found_.end());
    for (auto& [place, problem] : found_) report_.problems.push_back(std::move(problem));
    return std::move(report_);
  }

 private:
  struct Job {
    std::string name;
    FileRange range;
    DType dtype;
    std::uint64_t first_element = 0;
    std::optional<PackedExpert> record;
  };

  std::string shard_name(std::int32_t shard) const { return checkpoint_.shards()[static_cast<std::size_t>(shard)].path.string(); }

  void use(const std::string& name) {
    for (const char* suffix : {"", ".qs", "_scale_inv"}) used_.insert(name + suffix);
  }

  void walk_census() {
    const OptionalParts parts = find_parts(checkpoint_, config_);
    if (config_.indexer.top_k > 0 && !parts.indexer) report_.notices.emplace_back("the indexer's tensors are not there");
    if (config_.mtp_layers > 0 && !parts.mtp) report_.notices.emplace_back("the MTP layer's tensors are not there");
    for (const LayerCensus& layer : model_census(config_, parts)) {
      for (const TensorSpec& spec : layer.dense) {
        use(spec.name);
        if (spec.rows == 0) {
          if (const auto values = checkpoint_.read_floats(spec.name, spec.cols); !values) problem(values.error());
        } else if (const auto source = checkpoint_.find_matrix(spec.name, spec.rows, spec.cols)) {
          add_matrix(spec.name, *source);
        } else {
          problem(source.error());
        }
      }
      for (const ExpertGroup& group : layer.experts)
        for (std::int64_t e = 0; e < config_.experts; ++e) walk_expert(group, e);
    }
  }

  void walk_expert(const ExpertGroup& group, std::int64_t e) {
    for (const char* which : {"gate", "up", "down"}) use(fmt::format("{}{}.{}_proj.weight", group.prefix, e, which));
    for (const char* stacked : {"gate_up_proj", "down_proj"}) use(group.prefix + stacked);
    const std::string packed_name = packed_expert_name(group.prefix, e);
    used_.insert(packed_name);
    const auto sources = find_expert(checkpoint_, packed_, config_, group.prefix, e);
    if (!sources) return problem(sources.error());
    if (checkpoint_.find(packed_name)) return;  // its record is read whole
    const std::string name = fmt::format("{}{}", group.prefix, e);
    for (const auto& [which, source] : {std::pair{"gate", &sources->gate}, {"up", &sources->up}, {"down", &sources->down}})
      add_matrix(fmt::format("{}.{}_proj.weight", name, which), *source);
  }

  void problem(const Error& error) { report_.problems.push_back(error.message); }

  void add_matrix(const std::string& name, const MatrixSource& source) {
    if (source.scales.bytes > 0)
      add_array("the scales of " + name, source.scales, source.scales_are_bf16 ? DType::kBF16 : DType::kF32);
    if (const auto dtype = checked_dtype(source.matrix.format)) add_array(name, source.data, *dtype);
  }

  void add_array(const std::string& name, const FileRange& range, DType dtype) {
    ++report_.arrays;
    total_ += range.bytes;
    for (std::uint64_t at = 0; at < range.bytes; at += kPieceBytes)
      jobs_.push_back({name,
                       {range.shard, range.offset + at, std::min(kPieceBytes, range.bytes - at)},
                       dtype,
                       at / dtype_bytes(dtype),
                       std::nullopt});
  }

  void tell_unused() {
    std::size_t count = 0;
    std::string first;
    for (const TensorInfo& tensor : checkpoint_.tensors()) {
      if (used_.contains(tensor.name) || tensor.name.starts_with("colibri.padding.")) continue;
      if (count++ == 0) first = in_quotes(tensor.name);
    }
    if (count > 0) report_.notices.push_back(fmt::format("{} tensors are not needed by the model (the first: {})", count, first));
  }

  void read_all() {
    // In the order in which the bytes lie: one pass over the disk.
    std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
      return std::pair(a.range.shard, a.range.offset) < std::pair(b.range.shard, b.range.offset);
    });
    ThreadTeam team(options_.threads > 0 ? options_.threads : available_cpus(), WaitMode::kBlock);
    std::vector<AlignedBytes> buffers(static_cast<std::size_t>(team.size()));
    std::atomic<bool> stop{false};
    std::mutex mutex;
    team.parallel_for(static_cast<std::int64_t>(jobs_.size()), 1, [&](std::int64_t begin, std::int64_t end, int worker) {
      for (std::int64_t i = begin; i < end && !stop.load(std::memory_order_relaxed); ++i) {
        const Job& job = jobs_[static_cast<std::size_t>(i)];
        AlignedBytes& buffer = buffers[static_cast<std::size_t>(worker)];
        if (buffer.size() < job.range.bytes) buffer = AlignedBytes(job.range.bytes);
        const std::span<const std::byte> bytes(buffer.data(), job.range.bytes);
        const auto read = checkpoint_.read(job.range, buffer.data());
        const std::string wrong = read ? check(job, bytes) : read.error().message;
        const std::lock_guard lock(mutex);
        report_.bytes += job.range.bytes;
        report_.records += job.record.has_value();
        if (!wrong.empty()) found_.emplace_back(std::pair(job.range.shard, job.range.offset), wrong);
        if (options_.progress && !options_.progress(report_.bytes, total_)) report_.stopped = stop = true;
      }
    });
  }

  // What is wrong with a piece; empty: nothing.
  std::string check(const Job& job, std::span<const std::byte> bytes) const {
    if (job.record) return check_record(*job.record, bytes);
    const auto bad = first_not_finite(bytes, job.dtype);
    if (!bad) return {};
    return fmt::format("{}: {}: element {} is not a finite number; the file is damaged", shard_name(job.range.shard), job.name,
                       job.first_element + *bad);
  }

  std::string check_record(const PackedExpert& expert, std::span<const std::byte> bytes) const {
    const std::string shard = shard_name(expert.record.shard);
    if (const auto whole = check_packed_record(bytes, expert.name); !whole)
      return fmt::format("{}: {}", shard, whole.error().message);
    for (const MatrixSource* source : {&expert.gate, &expert.up, &expert.down}) {
      const auto part = [&](const FileRange& range) { return bytes.subspan(range.offset - expert.record.offset, range.bytes); };
      const bool scales = source->scales.bytes > 0 && first_not_finite(part(source->scales), DType::kF32);
      const auto dtype = checked_dtype(source->matrix.format);
      if (scales || (dtype && first_not_finite(part(source->data), *dtype)))
        return fmt::format("{}: record {}: holds numbers that are not finite, and was written so", shard, in_quotes(expert.name));
    }
    return {};
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const VerifyOptions& options_;
  PackedIndex packed_;
  std::vector<Job> jobs_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::pair<std::pair<std::int32_t, std::uint64_t>, std::string>> found_;
  std::uint64_t total_ = 0;
  VerifyReport report_;
};

}  // namespace

Result<VerifyReport> verify_model(const std::filesystem::path& dir, const VerifyOptions& options) {
  COLIBRI_TRY(config, ModelConfig::load(dir));
  COLIBRI_TRY(checkpoint, Checkpoint::open(dir));
  return Verifier(checkpoint, config, options).run();
}

}  // namespace colibri

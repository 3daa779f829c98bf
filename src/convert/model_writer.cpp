#include "convert/model_writer.h"

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/thread_team.h"
#include "format/file.h"

namespace colibri {
namespace {

using nlohmann::json;

constexpr const char* kProgressFile = ".coli_progress.json";
constexpr std::uint64_t kMaxProgressBytes = 64 << 20;
constexpr std::uint64_t kDiskReserve = 16 << 20;  // for directories, documents and what else grows meanwhile

Result<void> write_document(const std::filesystem::path& path, std::string_view text) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  return write_atomically(path, std::span(&bytes, 1));
}

std::string gigabytes(std::uint64_t bytes) { return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9); }

// The list of finished shards on disk.
class Progress {
 public:
  explicit Progress(const std::filesystem::path& dir) : dir_(dir), path_(dir / kProgressFile) {}

  Result<void> open(const std::map<std::string, std::string>& parameters) {
    std::error_code error;
    if (!std::filesystem::exists(path_, error)) {
      COLIBRI_CHECK(expect_no_model());
      root_ = {{"parameters", parameters}, {"shards", json::object()}};
      return {};
    }
    COLIBRI_TRY(text, read_text(path_, kMaxProgressBytes));
    root_ = json::parse(text, nullptr, false);
    if (!root_.is_object() || !root_.contains("parameters") || !root_.contains("shards") || !root_["shards"].is_object())
      return fail("{}: not a progress file of this program; delete {} to start again", path_.string(), dir_.string());
    return compare(parameters);
  }

  Result<void> save() const { return write_document(path_, root_.dump(1)); }

  // The errors of a shard that an earlier run finished.
  std::optional<ClassErrors> finished(const PlannedShard& shard) const {
    const auto it = root_["shards"].find(shard.file_name);
    std::error_code error;
    if (it == root_["shards"].end() || std::filesystem::file_size(dir_ / shard.file_name, error) != shard.file_bytes || error)
      return std::nullopt;
    ClassErrors errors;
    if (!it->is_array() || it->size() != 2 * errors.size()) return std::nullopt;
    for (std::size_t i = 0; i < errors.size(); ++i) {
      if (!(*it)[2 * i].is_number() || !(*it)[2 * i + 1].is_number()) return std::nullopt;
      errors[i] = {(*it)[2 * i].get<double>(), (*it)[2 * i + 1].get<double>()};
    }
    return errors;
  }

  Result<void> add(const PlannedShard& shard, const ClassErrors& errors) {
    json list = json::array();
    for (const QuantizationError& e : errors) {
      list.push_back(e.difference_squares);
      list.push_back(e.weight_squares);
    }
    root_["shards"][shard.file_name] = std::move(list);
    return save();
  }

  void remove() const {
    std::error_code error;
    std::filesystem::remove(path_, error);
  }

 private:
  // Another model's config.json would be replaced by this one's.
  Result<void> expect_no_model() const {
    std::error_code error;
    for (std::filesystem::directory_iterator it(dir_, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.front() != '.' && (name.ends_with(".safetensors") || name == "config.json"))
        return fail("{}: already holds {}; choose another directory or empty this one", dir_.string(), name);
    }
    if (error) return fail("{}: cannot be listed: {}", dir_.string(), error.message());
    return {};
  }

  Result<void> compare(const std::map<std::string, std::string>& parameters) const {
    const json& before = root_["parameters"];
    if (before == json(parameters)) return {};
    for (const auto& [key, value] : parameters) {
      const auto it = before.find(key);
      const std::string was = it != before.end() && it->is_string() ? it->get<std::string>() : "not set";
      if (was != value)
        return fail(
            "{}: holds an unfinished model made with {} = {}, now it is {}; use the same options to continue, or delete "
            "the directory",
            dir_.string(), key, was, value);
    }
    return fail("{}: holds an unfinished model made with other options; delete the directory to start again", dir_.string());
  }

  std::filesystem::path dir_, path_;
  json root_;
};

class Writer {
 public:
  Writer(const std::filesystem::path& dir, const ModelFiles& files, UnitMaker& maker, const WriteOptions& options)
      : dir_(dir), files_(files), maker_(maker), options_(options), progress_(dir) {}

  Result<WriteReport> run() {
    std::error_code error;
    std::filesystem::create_directories(dir_, error);
    if (error) return fail("{}: cannot be created: {}", dir_.string(), error.message());
    COLIBRI_TRY(lock, DirectoryLock::acquire(dir_));
    COLIBRI_CHECK(progress_.open(files_.parameters));
    COLIBRI_TRY(unfinished, sort_out());
    COLIBRI_CHECK(check_space(unfinished));
    COLIBRI_CHECK(progress_.save());

    ThreadTeam team(options_.threads > 0 ? options_.threads : available_cpus(), WaitMode::kBlock);
    for (const PlannedShard* shard : unfinished) {
      COLIBRI_CHECK(write_shard(*shard, team));
      if (report_.stopped) return report_;
    }
    for (std::size_t i = 0; i < files_.shards.size(); ++i)
      for (std::size_t c = 0; c < report_.errors.size(); ++c) report_.errors[c] += errors_[files_.shards[i].file_name][c];
    for (const bool config : {false, true})
      for (const auto& [name, text] : files_.documents)
        if ((name == "config.json") == config) COLIBRI_CHECK(write_document(dir_ / name, text));
    progress_.remove();
    return report_;
  }

 private:
  Result<std::vector<const PlannedShard*>> sort_out() {
    std::vector<const PlannedShard*> unfinished;
    for (const PlannedShard& shard : files_.shards) {
      report_.bytes += shard.file_bytes;
      std::error_code error;
      std::filesystem::remove(OutputFile::temporary_name(dir_ / shard.file_name), error);
      if (auto errors = progress_.finished(shard)) {
        errors_[shard.file_name] = *errors;
        done_ += shard.file_bytes;
      } else {
        unfinished.push_back(&shard);
      }
    }
    report_.shards = files_.shards.size();
    report_.shards_kept = report_.shards - unfinished.size();
    return unfinished;
  }

  Result<void> check_space(const std::vector<const PlannedShard*>& unfinished) const {
    std::uint64_t needed = unfinished.empty() ? 0 : kDiskReserve, available = 0;
    for (const PlannedShard* shard : unfinished) needed += shard->file_bytes;
    if (options_.available_bytes) {
      available = *options_.available_bytes;
    } else {
      std::error_code error;
      available = std::filesystem::space(dir_, error).available;
      if (error) return fail("{}: free space: {}", dir_.string(), error.message());
    }
    if (needed <= available) return {};
    return fail("{}: the disk has {} free, {} are needed; free some space or choose another disk", dir_.string(),
                gigabytes(available), gigabytes(needed));
  }

  Result<void> write_shard(const PlannedShard& shard, ThreadTeam& team) {
    COLIBRI_TRY(file, OutputFile::create(dir_ / shard.file_name, shard.file_bytes));
    COLIBRI_CHECK(file.write(0, std::as_bytes(std::span(shard.header))));
    struct Piece {
      const PlannedUnit* unit;
      std::int64_t number, of;
    };
    std::vector<Piece> pieces;
    for (const PlannedUnit& unit : shard.units)
      for (std::int64_t i = 0, n = maker_.pieces(unit); i < n; ++i) pieces.push_back({&unit, i, n});

    std::vector<ClassErrors> piece_errors(pieces.size());
    std::optional<Error> first_error;
    std::atomic<bool> stop{false};
    const std::uint64_t done_before = done_;
    team.parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end, int worker) {
      for (std::int64_t i = begin; i < end && !stop.load(std::memory_order_relaxed); ++i) {
        const Piece& piece = pieces[static_cast<std::size_t>(i)];
        auto made = maker_.make(*piece.unit, piece.number, worker, file, piece_errors[static_cast<std::size_t>(i)]);
        const std::lock_guard guard(mutex_);
        if (!made) {
          if (!first_error) first_error = std::move(made).error();
          stop = true;
          continue;
        }
        std::uint64_t bytes = 0;
        for (const PlannedTensor& tensor : piece.unit->tensors) bytes += tensor.bytes;
        done_ += bytes / static_cast<std::uint64_t>(piece.of);
        if (options_.progress && !options_.progress({done_, report_.bytes, shard.file_name})) report_.stopped = stop = true;
      }
    });
    if (first_error) return pass(std::move(*first_error));
    if (report_.stopped) return {};
    COLIBRI_CHECK(file.commit());
    ClassErrors errors = {};
    for (const ClassErrors& part : piece_errors)
      for (std::size_t c = 0; c < errors.size(); ++c) errors[c] += part[c];
    COLIBRI_CHECK(progress_.add(shard, errors));
    errors_[shard.file_name] = errors;
    done_ = done_before + shard.file_bytes;
    return {};
  }

  std::filesystem::path dir_;
  const ModelFiles& files_;
  UnitMaker& maker_;
  const WriteOptions& options_;
  Progress progress_;
  std::map<std::string, ClassErrors> errors_;
  std::mutex mutex_;
  std::uint64_t done_ = 0;
  WriteReport report_;
};

}  // namespace

Result<WriteReport> write_model(const std::filesystem::path& dir, const ModelFiles& files, UnitMaker& maker,
                                const WriteOptions& options) {
  return Writer(dir, files, maker, options).run();
}

}  // namespace colibri

// Writes a planned model directory: many threads, bounded memory, resumable.
//
// A shard is written under a temporary name and renamed when whole; a progress file (.coli_progress.json) lists the
// finished ones with the parameters of the run. After an interruption or a kill the same call keeps what is finished and
// makes the rest, to the same bytes. config.json is written last, so that an unfinished directory is not taken for a model.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "convert/census.h"
#include "convert/output_file.h"
#include "convert/quantize.h"
#include "convert/shard_plan.h"

namespace colibri {

using ClassErrors = std::array<QuantizationError, kTensorClassCount>;

// Makes the content of planned units.
class UnitMaker {
 public:
  virtual ~UnitMaker() = default;
  // Parts of a unit that threads may make at the same time.
  virtual std::int64_t pieces(const PlannedUnit& unit) const = 0;
  // Makes one piece and writes it at its place. Called from several threads at once; worker tells them apart. What a
  // piece writes and adds to `errors` must not depend on the thread or the order.
  virtual Result<void> make(const PlannedUnit& unit, std::int64_t piece, int worker, const OutputFile& file,
                            ClassErrors& errors) = 0;
};

struct WriteProgress {
  std::uint64_t bytes_done = 0, bytes_total = 0;  // of the shards, those kept from an earlier run included
  std::string_view file;
};

struct WriteOptions {
  int threads = 0;                                     // 0: every CPU this process may use
  std::function<bool(const WriteProgress&)> progress;  // after each piece, one thread at a time; false stops the run
  std::optional<std::uint64_t> available_bytes;        // free disk space when the caller knows it; else the system is asked
};

struct WriteReport {
  bool stopped = false;  // by the progress function; call again to continue
  std::uint64_t bytes = 0;
  std::size_t shards = 0, shards_kept = 0;  // kept: finished by an earlier run
  ClassErrors errors = {};
};

struct ModelFiles {
  std::vector<PlannedShard> shards;
  std::map<std::string, std::string> parameters;               // all that decides the bytes; must be equal to continue a run
  std::vector<std::pair<std::string, std::string>> documents;  // name and content of config.json, tokenizer.json, ...
};

// Errors: the directory holds another model or an unfinished one with other parameters, the disk is too small (before
// anything is written), or what the maker and the system report.
Result<WriteReport> write_model(const std::filesystem::path& dir, const ModelFiles& files, UnitMaker& maker,
                                const WriteOptions& options);

}  // namespace colibri

// Checks a model directory: structure, completeness, and everything that shows damage.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace colibri {

struct VerifyOptions {
  int threads = 0;  // 0: every CPU this process may use
  // Bytes read of those to read; after each piece, one thread at a time; false stops the run.
  std::function<bool(std::uint64_t done, std::uint64_t total)> progress;
};

struct VerifyReport {
  bool stopped = false;
  std::size_t shards = 0, tensors = 0;
  std::size_t records = 0;            // packed experts whose checksum was compared
  std::size_t arrays = 0;             // scales and float weights whose values were looked at
  std::uint64_t bytes = 0;            // read
  std::vector<std::string> problems;  // each names shard and tensor; in order of their place. Empty: the model is whole
  std::vector<std::string> notices;
};

// Every shard's header is checked, every tensor that config.json asks for must be there in a readable format. Then the
// checksum of every packed record is compared, and scales and float weights must be finite (integer weights of a plain
// container cannot be checked: every byte is a weight). Errors: what keeps the directory from being opened at all.
Result<VerifyReport> verify_model(const std::filesystem::path& dir, const VerifyOptions& options);

}  // namespace colibri

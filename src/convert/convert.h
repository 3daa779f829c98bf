// Makes a model directory from another one: quantises Hugging Face weights, changes formats, or only repacks.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "convert/model_writer.h"
#include "convert/quantize.h"

namespace colibri {

struct ConvertOptions {
  // What each kind of matrix becomes. Not set: weights that are already integers are kept as they are, others become
  // int4-g64 (routed experts) or int8 (all else; drafting by the MTP layer needs its experts that precise).
  std::optional<TargetFormat> experts, mtp_experts;
  std::optional<TargetFormat> dense;  // attention, indexer, dense MLP, shared experts, MTP projection
  std::optional<TargetFormat> io;     // embedding and head
  bool keep_weights = false;          // --pack: no weight changes, whatever its format; the four above must not be set
  bool packed = true;                 // one record per expert; false: one tensor per matrix, as in existing containers
  bool mtp = true;                    // false: leave the MTP layer out
  std::uint64_t shard_bytes = std::uint64_t{4} << 30;
};

struct ConvertReport {
  WriteReport written;
  std::array<std::string, kTensorClassCount> formats;  // what each class was stored as: "int4-g64"; empty: none there
  std::vector<std::string> notices;
};

// Router, norms and biases stay f32. config.json and the tokenizer's files are copied. Memory: one expert (source and
// result) per thread. The same options on the same source give the same bytes, with any number of threads and
// interruptions.
Result<ConvertReport> convert_model(const std::filesystem::path& source, const std::filesystem::path& destination,
                                    const ConvertOptions& options, const WriteOptions& write);

}  // namespace colibri

// Which tensors a model of a given configuration consists of, by name, shape and class.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/checkpoint.h"
#include "format/config.h"
#include "format/packed.h"

namespace colibri {

enum class TensorClass : std::uint8_t {
  kFloats,  // norms, biases
  kRouter,
  kEmbedding,  // embed_tokens and lm_head
  kAttention,
  kIndexer,
  kDenseMlp,
  kSharedExperts,
  kMtpProjection,
  kExperts,
  kMtpExperts,
};
inline constexpr int kTensorClassCount = 10;
std::string_view class_name(TensorClass c);  // "routed experts"

struct TensorSpec {
  std::string name;
  std::int64_t rows = 0;  // 0: a vector of cols numbers
  std::int64_t cols = 0;
  TensorClass tensor_class = TensorClass::kFloats;
};

// The routed experts of one layer: gate and up [moe_intermediate_size, hidden], down transposed.
struct ExpertGroup {
  std::string prefix;  // "model.layers.3.mlp.experts."
  TensorClass tensor_class = TensorClass::kExperts;
};

struct LayerCensus {
  std::vector<TensorSpec> dense;
  std::vector<ExpertGroup> experts;  // none or one
};

// Parts that a model directory may lack.
struct OptionalParts {
  bool indexer = false;
  bool mtp = false;
  bool mtp_indexer = false;
  bool head = true;  // false: lm_head is the embedding
};
OptionalParts find_parts(const Checkpoint& checkpoint, const ModelConfig& config);

// Globals first, then layer by layer, the MTP layer last.
std::vector<LayerCensus> model_census(const ModelConfig& config, const OptionalParts& parts);

// An expert's three matrices wherever the checkpoint keeps them: packed, one tensor per matrix, or stacked.
struct ExpertSources {
  MatrixSource gate, up, down;
};
Result<ExpertSources> find_expert(const Checkpoint& checkpoint, const PackedIndex& packed, const ModelConfig& config,
                                  std::string_view prefix, std::int64_t expert);

}  // namespace colibri

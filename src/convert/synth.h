// Synthetic models: true shapes, random but well-scaled weights, as fast as the disk takes them. For measuring the engine
// where the real model is not at hand. What such a model says is noise.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "convert/model_writer.h"
#include "convert/quantize.h"
#include "format/synthetic_routing.h"

namespace colibri {

struct SynthShape {
  std::int64_t hidden = 0, vocab = 0, heads = 0;
  std::int64_t q_lora = 0, kv_lora = 0, qk_nope = 0, qk_rope = 0, v_head = 0;
  std::int64_t index_heads = 0, index_head_dim = 0, index_topk = 0;
  std::int64_t intermediate = 0, moe_intermediate = 0, shared_experts = 1;
  std::int64_t experts = 0, experts_per_token = 0;
  std::int64_t max_positions = 0;
};
// "glm-5.2" or "tiny".
Result<SynthShape> synth_shape(std::string_view like);

struct SynthOptions {
  SynthShape shape;
  std::string like;  // for the record
  std::int64_t sparse_layers = 5;
  std::int64_t dense_layers = 1;
  bool mtp = false;
  std::uint64_t seed = 1;
  TargetFormat experts = {WeightFormat::kInt4Grouped, 64};
  bool packed = true;  // false: the plain layout of existing containers
  std::uint64_t shard_bytes = std::uint64_t{4} << 30;
  std::optional<SyntheticRouting> routing = SyntheticRouting{};  // goes into config.json; without it the random routers choose
};

// The documents of the model.
std::string synth_config(const SynthOptions& options);
std::string synth_generation_config(const SynthShape& shape);
// Byte-level, one token per byte; the rest of the vocabulary are words " w300" and the family's special tokens.
std::string synth_tokenizer(const SynthShape& shape);

// Files and sizes of the model, for asking first.
Result<ModelFiles> plan_synthetic_model(const SynthOptions& options);
// Writes it. The same options give the same bytes on every machine and with any number of threads.
Result<WriteReport> synthesize_model(const std::filesystem::path& dir, const SynthOptions& options, const WriteOptions& write);

}  // namespace colibri

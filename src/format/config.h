// config.json of a model directory, validated, with every derived shape. Families are values of this struct,
// not code: docs/DESIGN names them; nothing about a model is compiled in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace colibri {

enum class RouterKind : std::uint8_t { kSigmoid, kSoftmax };

// Multi-head latent attention.
struct MlaShape {
  std::int64_t q_lora_rank = 0;
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;
  std::int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  std::int64_t cache_dim() const { return kv_lora_rank + qk_rope_head_dim; }  // floats per position: latent, then rope key
};

// DSA's lightning indexer. top_k == 0: the family has none.
struct IndexerShape {
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t top_k = 0;
};

struct ModelConfig {
  std::string model_type;
  std::int64_t hidden_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t layers = 0;      // without MTP layers
  std::int64_t mtp_layers = 0;  // num_nextn_predict_layers; their indices follow the main ones
  std::int64_t heads = 0;
  std::int64_t max_positions = 0;
  float rms_norm_eps = 1e-5f;
  double rope_theta = 10000;
  bool tie_word_embeddings = false;

  MlaShape mla;
  IndexerShape indexer;
  std::vector<bool> indexer_full;  // per layer: computes its own selection; others reuse the last full layer's

  std::vector<bool> sparse;  // per layer: routed experts, else a dense MLP
  std::int64_t intermediate_size = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t shared_experts = 0;
  RouterKind router = RouterKind::kSigmoid;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0f;

  std::vector<std::int32_t> eos_ids;  // generation_config.json's, then those only config.json has

  // Reads and validates config.json (and generation_config.json where there is one). An unknown model_type, a missing
  // key or a value out of range is an error that names the key.
  static Result<ModelConfig> load(const std::filesystem::path& dir);
  // The same from the files' texts; generation_config empty: there is none.
  static Result<ModelConfig> parse(std::string_view config, std::string_view generation_config);
};

}  // namespace colibri

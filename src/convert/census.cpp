#include "convert/census.h"

namespace colibri {
namespace {

class Walk {
 public:
  Walk(const ModelConfig& config, const OptionalParts& parts) : config_(config), parts_(parts) {}

  std::vector<LayerCensus> run() {
    const std::int64_t d = config_.hidden_size;
    LayerCensus& globals = out_.emplace_back();
    matrix(globals, "model.embed_tokens.weight", config_.vocab_size, d, TensorClass::kEmbedding);
    if (parts_.head) matrix(globals, "lm_head.weight", config_.vocab_size, d, TensorClass::kEmbedding);
    floats(globals, "model.norm.weight", d);
    for (std::int64_t i = 0; i < config_.layers; ++i) {
      const auto at = static_cast<std::size_t>(i);
      layer(i, config_.sparse[at], parts_.indexer && config_.indexer_full[at], TensorClass::kExperts);
    }
    if (parts_.mtp) {
      LayerCensus& mtp = layer(config_.layers, true, parts_.mtp_indexer, TensorClass::kMtpExperts);
      const std::string name = layer_name(config_.layers);
      matrix(mtp, name + "eh_proj.weight", d, 2 * d, TensorClass::kMtpProjection);
      for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"}) floats(mtp, name + norm, d);
    }
    return std::move(out_);
  }

  static std::string layer_name(std::int64_t i) { return fmt::format("model.layers.{}.", i); }

 private:
  static void matrix(LayerCensus& to, std::string name, std::int64_t rows, std::int64_t cols, TensorClass tensor_class) {
    to.dense.push_back({std::move(name), rows, cols, tensor_class});
  }
  static void floats(LayerCensus& to, std::string name, std::int64_t count) {
    to.dense.push_back({std::move(name), 0, count, TensorClass::kFloats});
  }
  void mlp(LayerCensus& to, const std::string& name, std::int64_t inner, TensorClass tensor_class) const {
    matrix(to, name + "gate_proj.weight", inner, config_.hidden_size, tensor_class);
    matrix(to, name + "up_proj.weight", inner, config_.hidden_size, tensor_class);
    matrix(to, name + "down_proj.weight", config_.hidden_size, inner, tensor_class);
  }
  void attention(LayerCensus& to, const std::string& name, bool indexer) const {
    const MlaShape& s = config_.mla;
    const std::int64_t d = config_.hidden_size, heads = config_.heads;
    constexpr TensorClass kClass = TensorClass::kAttention;
    matrix(to, name + "q_a_proj.weight", s.q_lora_rank, d, kClass);
    floats(to, name + "q_a_layernorm.weight", s.q_lora_rank);
    matrix(to, name + "q_b_proj.weight", heads * s.qk_head_dim(), s.q_lora_rank, kClass);
    matrix(to, name + "kv_a_proj_with_mqa.weight", s.cache_dim(), d, kClass);
    floats(to, name + "kv_a_layernorm.weight", s.kv_lora_rank);
    matrix(to, name + "kv_b_proj.weight", heads * (s.qk_nope_head_dim + s.v_head_dim), s.kv_lora_rank, kClass);
    matrix(to, name + "o_proj.weight", d, heads * s.v_head_dim, kClass);
    if (!indexer) return;
    const IndexerShape& x = config_.indexer;
    matrix(to, name + "indexer.wq_b.weight", x.heads * x.head_dim, s.q_lora_rank, TensorClass::kIndexer);
    matrix(to, name + "indexer.wk.weight", x.head_dim, d, TensorClass::kIndexer);
    matrix(to, name + "indexer.weights_proj.weight", x.heads, d, TensorClass::kIndexer);
    floats(to, name + "indexer.k_norm.weight", x.head_dim);
    floats(to, name + "indexer.k_norm.bias", x.head_dim);
  }
  LayerCensus& layer(std::int64_t index, bool sparse, bool indexer, TensorClass experts) {
    LayerCensus& to = out_.emplace_back();
    const std::string name = layer_name(index);
    floats(to, name + "input_layernorm.weight", config_.hidden_size);
    attention(to, name + "self_attn.", indexer);
    floats(to, name + "post_attention_layernorm.weight", config_.hidden_size);
    if (!sparse) {
      mlp(to, name + "mlp.", config_.intermediate_size, TensorClass::kDenseMlp);
      return to;
    }
    matrix(to, name + "mlp.gate.weight", config_.experts, config_.hidden_size, TensorClass::kRouter);
    floats(to, name + "mlp.gate.e_score_correction_bias", config_.experts);
    if (config_.shared_experts > 0)
      mlp(to, name + "mlp.shared_experts.", config_.shared_experts * config_.moe_intermediate_size, TensorClass::kSharedExperts);
    to.experts.push_back({name + "mlp.experts.", experts});
    return to;
  }

  const ModelConfig& config_;
  const OptionalParts& parts_;
  std::vector<LayerCensus> out_;
};

}  // namespace

std::string_view class_name(TensorClass c) {
  constexpr std::string_view kNames[kTensorClassCount] = {
      "norms and biases", "router",         "embedding and head", "attention",      "indexer",
      "dense MLP",        "shared experts", "MTP projection",     "routed experts", "MTP routed experts"};
  return kNames[static_cast<int>(c)];
}

OptionalParts find_parts(const Checkpoint& checkpoint, const ModelConfig& config) {
  OptionalParts parts;
  const auto has = [&](std::int64_t layer, const char* name) {
    return checkpoint.find(Walk::layer_name(layer) + name) != nullptr;
  };
  constexpr const char* kIndexer = "self_attn.indexer.wq_b.weight";
  for (std::int64_t i = 0; i < config.layers && config.indexer.top_k > 0; ++i) parts.indexer = parts.indexer || has(i, kIndexer);
  parts.mtp = config.mtp_layers > 0 && has(config.layers, "eh_proj.weight");
  parts.mtp_indexer = parts.mtp && has(config.layers, kIndexer);
  parts.head = !config.tie_word_embeddings || checkpoint.find("lm_head.weight");
  return parts;
}

std::vector<LayerCensus> model_census(const ModelConfig& config, const OptionalParts& parts) { return Walk(config, parts).run(); }

Result<ExpertSources> find_expert(const Checkpoint& checkpoint, const PackedIndex& packed, const ModelConfig& config,
                                  std::string_view prefix, std::int64_t expert) {
  const std::int64_t d = config.hidden_size, i = config.moe_intermediate_size;
  COLIBRI_TRY(record, packed.find(prefix, expert, i, d));
  if (record) return ExpertSources{record->gate, record->up, record->down};
  const std::string stacked = fmt::format("{}gate_up_proj", prefix);
  if (checkpoint.find(stacked)) {
    COLIBRI_TRY(gate, checkpoint.find_stacked(stacked, config.experts, 2 * i, d, expert, 0, i));
    COLIBRI_TRY(up, checkpoint.find_stacked(stacked, config.experts, 2 * i, d, expert, i, i));
    COLIBRI_TRY(down, checkpoint.find_stacked(fmt::format("{}down_proj", prefix), config.experts, d, i, expert, 0, d));
    return ExpertSources{gate, up, down};
  }
  const std::string own = fmt::format("{}{}.", prefix, expert);
  COLIBRI_TRY(gate, checkpoint.find_matrix(own + "gate_proj.weight", i, d));
  COLIBRI_TRY(up, checkpoint.find_matrix(own + "up_proj.weight", i, d));
  COLIBRI_TRY(down, checkpoint.find_matrix(own + "down_proj.weight", d, i));
  return ExpertSources{gate, up, down};
}

}  // namespace colibri

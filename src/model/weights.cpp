#include "model/weights.h"

#include <algorithm>
#include <cassert>

#include "format/packed.h"

namespace colibri {

// Collects what to read while the names are walked, then reads everything into one block of memory.
class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config, ModelWeights& out)
      : checkpoint_(checkpoint), config_(config), out_(out) {}

  Result<void> walk() {
    ModelWeights& out = out_;
    COLIBRI_TRY(packed, PackedIndex::open(checkpoint_));
    packed_ = std::move(packed);
    COLIBRI_CHECK(matrix("model.embed_tokens.weight", config_.vocab_size, config_.hidden_size, out.embedding));
    const bool tied = config_.tie_word_embeddings && !checkpoint_.find("lm_head.weight");
    if (!tied) COLIBRI_CHECK(matrix("lm_head.weight", config_.vocab_size, config_.hidden_size, out.head));
    COLIBRI_CHECK(floats("model.norm.weight", config_.hidden_size, out.final_norm));

    const bool indexer = has_indexer(out);
    out.layers.resize(static_cast<std::size_t>(config_.layers));
    out.experts.resize(out.layers.size() + 1);
    for (std::size_t i = 0; i < out.layers.size(); ++i)
      COLIBRI_CHECK(layer(layer_name(i), config_.sparse[i], indexer && config_.indexer_full[i], out.layers[i], out.experts[i]));

    if (has_mtp(out)) {
      out.mtp.emplace();
      const std::string name = layer_name(out.layers.size());
      COLIBRI_CHECK(matrix(name + "eh_proj.weight", config_.hidden_size, 2 * config_.hidden_size, out.mtp->eh_proj));
      COLIBRI_CHECK(floats(name + "enorm.weight", config_.hidden_size, out.mtp->embedding_norm));
      COLIBRI_CHECK(floats(name + "hnorm.weight", config_.hidden_size, out.mtp->hidden_norm));
      COLIBRI_CHECK(floats(name + "shared_head.norm.weight", config_.hidden_size, out.mtp->head_norm));
      const bool own_indexer = checkpoint_.find(name + "self_attn.indexer.wq_b.weight") != nullptr;
      COLIBRI_CHECK(layer(name, true, own_indexer, out.mtp->layer, out.experts.back()));
    }
    return {};
  }

 private:
  static std::string layer_name(std::size_t index) { return fmt::format("model.layers.{}.", index); }

  Result<void> matrix(const std::string& name, std::int64_t rows, std::int64_t cols, Matrix& target) {
    COLIBRI_TRY(source, checkpoint_.find_matrix(name, rows, cols));
    out_.reads_.push_back({source, &target});
    return {};
  }

  Result<void> floats(const std::string& name, std::int64_t count, AlignedArray<float>& target) {
    COLIBRI_TRY(values, checkpoint_.read_floats(name, count));
    target = std::move(values);
    return {};
  }

  Result<void> mlp(const std::string& name, std::int64_t intermediate, MlpWeights& out) {
    COLIBRI_CHECK(matrix(name + "gate_proj.weight", intermediate, config_.hidden_size, out.gate));
    COLIBRI_CHECK(matrix(name + "up_proj.weight", intermediate, config_.hidden_size, out.up));
    return matrix(name + "down_proj.weight", config_.hidden_size, intermediate, out.down);
  }

  Result<void> attention(const std::string& name, bool indexer, MlaWeights& out) {
    const MlaShape& s = config_.mla;
    const std::int64_t d = config_.hidden_size, heads = config_.heads;
    COLIBRI_CHECK(matrix(name + "q_a_proj.weight", s.q_lora_rank, d, out.q_a));
    COLIBRI_CHECK(matrix(name + "q_b_proj.weight", heads * s.qk_head_dim(), s.q_lora_rank, out.q_b));
    COLIBRI_CHECK(matrix(name + "kv_a_proj_with_mqa.weight", s.cache_dim(), d, out.kv_a));
    COLIBRI_CHECK(matrix(name + "kv_b_proj.weight", heads * (s.qk_nope_head_dim + s.v_head_dim), s.kv_lora_rank, out.kv_b));
    COLIBRI_CHECK(matrix(name + "o_proj.weight", d, heads * s.v_head_dim, out.o));
    COLIBRI_CHECK(floats(name + "q_a_layernorm.weight", s.q_lora_rank, out.q_a_norm));
    COLIBRI_CHECK(floats(name + "kv_a_layernorm.weight", s.kv_lora_rank, out.kv_a_norm));
    if (!indexer) return {};
    const IndexerShape& x = config_.indexer;
    out.indexer.emplace();
    COLIBRI_CHECK(matrix(name + "indexer.wq_b.weight", x.heads * x.head_dim, s.q_lora_rank, out.indexer->wq_b));
    COLIBRI_CHECK(matrix(name + "indexer.wk.weight", x.head_dim, d, out.indexer->wk));
    COLIBRI_CHECK(matrix(name + "indexer.weights_proj.weight", x.heads, d, out.indexer->weights_proj));
    COLIBRI_CHECK(floats(name + "indexer.k_norm.weight", x.head_dim, out.indexer->k_norm));
    return floats(name + "indexer.k_norm.bias", x.head_dim, out.indexer->k_norm_bias);
  }

  Result<void> layer(const std::string& name, bool sparse, bool indexer, LayerWeights& out, std::vector<ExpertRecord>& experts) {
    COLIBRI_CHECK(floats(name + "input_layernorm.weight", config_.hidden_size, out.input_norm));
    COLIBRI_CHECK(floats(name + "post_attention_layernorm.weight", config_.hidden_size, out.post_attention_norm));
    COLIBRI_CHECK(attention(name + "self_attn.", indexer, out.attention));
    out.sparse = sparse;
    if (!sparse) return mlp(name + "mlp.", config_.intermediate_size, out.mlp);
    COLIBRI_CHECK(matrix(name + "mlp.gate.weight", config_.experts, config_.hidden_size, out.router));
    COLIBRI_CHECK(floats(name + "mlp.gate.e_score_correction_bias", config_.experts, out.router_bias));
    if (config_.shared_experts == 0 && checkpoint_.find(name + "mlp.shared_experts.gate_proj.weight"))
      return fail(
          "{}: config.json has no shared experts (`n_shared_experts`), but the files hold {}mlp.shared_experts.gate_proj.weight; "
          "one of "
          "the two belongs to another model",
          checkpoint_.dir().string(), name);
    if (config_.shared_experts > 0)
      COLIBRI_CHECK(mlp(name + "mlp.shared_experts.", config_.moe_intermediate_size * config_.shared_experts, out.mlp));
    for (std::int64_t e = 0; e < config_.experts; ++e) {
      COLIBRI_TRY(record, expert(name + "mlp.experts.", e));
      experts.push_back(record);
    }
    return {};
  }

  // A packed record, one tensor per matrix, or the stacked tensors of newer checkpoints: gate_up_proj [E, 2 I, D], down_proj [E,
  // D, I].
  Result<ExpertRecord> expert(const std::string& name, std::int64_t e) const {
    const std::int64_t d = config_.hidden_size, i = config_.moe_intermediate_size;
    COLIBRI_TRY(packed, packed_.find(name, e, i, d));
    if (packed) return ExpertRecord{packed->gate, packed->up, packed->down, packed->record};
    ExpertRecord record;
    const auto set = [](MatrixSource& target, Result<MatrixSource> source) -> Result<void> {
      if (!source) return pass(std::move(source).error());
      target = *source;
      return {};
    };
    if (checkpoint_.find(name + "gate_up_proj")) {
      COLIBRI_CHECK(set(record.gate, checkpoint_.find_stacked(name + "gate_up_proj", config_.experts, 2 * i, d, e, 0, i)));
      COLIBRI_CHECK(set(record.up, checkpoint_.find_stacked(name + "gate_up_proj", config_.experts, 2 * i, d, e, i, i)));
      COLIBRI_CHECK(set(record.down, checkpoint_.find_stacked(name + "down_proj", config_.experts, d, i, e, 0, d)));
    } else {
      const std::string own = fmt::format("{}{}.", name, e);
      COLIBRI_CHECK(set(record.gate, checkpoint_.find_matrix(own + "gate_proj.weight", i, d)));
      COLIBRI_CHECK(set(record.up, checkpoint_.find_matrix(own + "up_proj.weight", i, d)));
      COLIBRI_CHECK(set(record.down, checkpoint_.find_matrix(own + "down_proj.weight", d, i)));
    }
    return record;
  }

  // A container converted without its indexer still runs: attention is then dense at every length. A part of the
  // indexer missing is a damaged model, which the walk reports by name.
  bool has_indexer(ModelWeights& out) const {
    if (config_.indexer.top_k == 0) return false;
    for (std::size_t i = 0; i < config_.indexer_full.size(); ++i)
      if (config_.indexer_full[i] && checkpoint_.find(layer_name(i) + "self_attn.indexer.wq_b.weight")) return true;
    out.notices.push_back(
        fmt::format("no indexer tensors in {}: attention is dense, also beyond {} positions where the "
                    "model was trained to select",
                    checkpoint_.dir().string(), config_.indexer.top_k));
    return false;
  }

  bool has_mtp(ModelWeights& out) const {
    if (config_.mtp_layers == 0) return false;
    const std::string name = layer_name(static_cast<std::size_t>(config_.layers));
    if (checkpoint_.find(name + "eh_proj.weight")) return true;
    out.notices.push_back(fmt::format("no MTP layer in {}: drafts by the model are off", checkpoint_.dir().string()));
    return false;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  ModelWeights& out_;
  PackedIndex packed_;
};

Result<std::unique_ptr<ModelWeights>> ModelWeights::plan(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::unique_ptr<ModelWeights> weights(new ModelWeights(checkpoint));
  COLIBRI_CHECK(WeightLoader(checkpoint, config, *weights).walk());
  weights->dense_bytes = matrix_block_bytes(weights->reads_);
  for (std::string& notice : checkpoint.notices()) weights->notices.push_back(std::move(notice));
  return weights;
}

const MatrixSource& ModelWeights::source_of(const Matrix& matrix) const {
  // By its bytes: a tied head is another view of the embedding.
  const auto it = std::find_if(reads_.begin(), reads_.end(), [&](const MatrixRead& r) { return r.target->data == matrix.data; });
  assert(it != reads_.end());
  return it->source;
}

Result<void> ModelWeights::read(ThreadTeam& team) {
  COLIBRI_TRY(block, read_matrix_block(checkpoint_, reads_, team));
  memory_ = std::move(block);
  if (head.rows == 0) head = embedding;
  return {};
}

}  // namespace colibri

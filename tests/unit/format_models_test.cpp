// The checkpoints of the tree: every one opens and every tensor that the architecture needs resolves.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "format/checkpoint.h"
#include "format/config.h"
#include "format/safetensors.h"

namespace colibri {
namespace {

const std::filesystem::path kRoot = COLIBRI_SOURCE_DIR;

class ModelFolder : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::filesystem::path dir = kRoot / GetParam();
    auto opened = Checkpoint::open(dir);
    ASSERT_TRUE(opened) << opened.error().message;
    checkpoint.emplace(std::move(*opened));
    auto loaded = ModelConfig::load(dir);
    ASSERT_TRUE(loaded) << loaded.error().message;
    config = *loaded;
  }

  void matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
    const auto source = checkpoint->find_matrix(name, rows, cols);
    ASSERT_TRUE(source) << source.error().message;
    used.insert(name);
    if (source->matrix.format >= WeightFormat::kInt8Row) used.insert(name + ".qs");
    AlignedBytes memory(Checkpoint::matrix_bytes(*source));
    const auto read = checkpoint->read_matrix(*source, memory.data());
    ASSERT_TRUE(read) << read.error().message;
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::int64_t o = 0; o < rows; ++o) {
      dequantize_row(*read, o, row.data());
      for (const float value : row) ASSERT_TRUE(std::isfinite(value)) << name << " row " << o;
    }
  }
  void floats(const std::string& name, std::int64_t count) {
    const auto values = checkpoint->read_floats(name, count);
    ASSERT_TRUE(values) << values.error().message;
    used.insert(name);
  }
  void mlp(const std::string& prefix, std::int64_t inner) {
    matrix(prefix + "gate_proj.weight", inner, config.hidden_size);
    matrix(prefix + "up_proj.weight", inner, config.hidden_size);
    matrix(prefix + "down_proj.weight", config.hidden_size, inner);
  }
  void indexer(const std::string& prefix) {
    matrix(prefix + "wq_b.weight", config.indexer.heads * config.indexer.head_dim, config.mla.q_lora_rank);
    matrix(prefix + "wk.weight", config.indexer.head_dim, config.hidden_size);
    matrix(prefix + "weights_proj.weight", config.indexer.heads, config.hidden_size);
    floats(prefix + "k_norm.weight", config.indexer.head_dim);
    floats(prefix + "k_norm.bias", config.indexer.head_dim);
  }
  void layer(std::int64_t index, bool sparse, bool has_indexer) {
    const std::string prefix = "model.layers." + std::to_string(index) + ".", attention = prefix + "self_attn.";
    const MlaShape& mla = config.mla;
    floats(prefix + "input_layernorm.weight", config.hidden_size);
    floats(prefix + "post_attention_layernorm.weight", config.hidden_size);
    matrix(attention + "q_a_proj.weight", mla.q_lora_rank, config.hidden_size);
    floats(attention + "q_a_layernorm.weight", mla.q_lora_rank);
    matrix(attention + "q_b_proj.weight", config.heads * mla.qk_head_dim(), mla.q_lora_rank);
    matrix(attention + "kv_a_proj_with_mqa.weight", mla.cache_dim(), config.hidden_size);
    floats(attention + "kv_a_layernorm.weight", mla.kv_lora_rank);
    matrix(attention + "kv_b_proj.weight", config.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank);
    matrix(attention + "o_proj.weight", config.hidden_size, config.heads * mla.v_head_dim);
    if (has_indexer) indexer(attention + "indexer.");
    if (!sparse) return mlp(prefix + "mlp.", config.intermediate_size);
    matrix(prefix + "mlp.gate.weight", config.experts, config.hidden_size);
    floats(prefix + "mlp.gate.e_score_correction_bias", config.experts);
    mlp(prefix + "mlp.shared_experts.", config.shared_experts * config.moe_intermediate_size);
    for (std::int64_t e = 0; e < config.experts; ++e)
      mlp(prefix + "mlp.experts." + std::to_string(e) + ".", config.moe_intermediate_size);
  }

  std::optional<Checkpoint> checkpoint;
  ModelConfig config;
  std::set<std::string> used;
};

TEST_P(ModelFolder, EveryTensorResolvesAndIsUsed) {
  matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  floats("model.norm.weight", config.hidden_size);
  for (std::int64_t i = 0; i < config.layers; ++i)
    layer(i, config.sparse[static_cast<std::size_t>(i)], config.indexer_full[static_cast<std::size_t>(i)]);
  for (std::int64_t i = config.layers; i < config.layers + config.mtp_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    layer(i, true, checkpoint->find(prefix + "self_attn.indexer.wq_b.weight") != nullptr);
    matrix(prefix + "eh_proj.weight", config.hidden_size, 2 * config.hidden_size);
    for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"})
      floats(prefix + norm, config.hidden_size);
  }
  for (const TensorInfo& tensor : checkpoint->tensors()) EXPECT_TRUE(used.contains(tensor.name)) << tensor.name;
}

TEST_P(ModelFolder, ReferenceValuesAreReadable) {
  for (const char* name : {"expected.safetensors", "contract.safetensors"}) {
    const auto tensors = read_safetensors(kRoot / GetParam() / name);
    ASSERT_TRUE(tensors) << tensors.error().message;
    EXPECT_FALSE(tensors->empty());
    for (const auto& [key, tensor] : *tensors) {
      const std::size_t numbers = std::max(tensor.floats().size(), tensor.ints().size());
      EXPECT_EQ(numbers, static_cast<std::size_t>(tensor.count())) << name << " " << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tree, ModelFolder,
                         testing::Values("models/demo", "tests/oracle/cases/glm-dense-attn", "tests/oracle/cases/glm-dsa-tiny",
                                         "tests/oracle/cases/glm-dsa-tiny-g64", "tests/oracle/cases/glm-dsa-tiny-i4row",
                                         "tests/oracle/cases/glm-dsa-tiny-mixed", "tests/oracle/cases/glm-odd-dims"),
                         [](const auto& test) {
                           std::string name = test.param.substr(test.param.rfind('/') + 1);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace colibri

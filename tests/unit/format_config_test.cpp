// config.json: what a good one gives, and that every bad value is refused by the name of its key.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "format/config.h"
#include "format_test_util.h"

namespace colibri {
namespace {

using nlohmann::json;
using test::expect_error;
using test::TempDir;
using test::write_file;

json good() {
  return json::parse(R"({"model_type": "glm_moe_dsa", "hidden_size": 128, "vocab_size": 256, "num_hidden_layers": 4,
    "num_nextn_predict_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
    "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 48,
    "index_n_heads": 16, "index_head_dim": 32, "index_topk": 8, "indexer_types": ["full", "shared", "full", "shared"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "intermediate_size": 192, "moe_intermediate_size": 64,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "routed_scaling_factor": 2.5,
    "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "hidden_act": "silu", "attention_bias": false,
    "eos_token_id": [1, 2], "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}})");
}

Result<ModelConfig> parse(const json& config, std::string_view generation = {}) {
  return ModelConfig::parse(config.dump(), generation);
}

json with(const char* key, json value) {
  json config = good();
  config[key] = std::move(value);
  return config;
}
json without(std::initializer_list<const char*> keys) {
  json config = good();
  for (const char* key : keys) config.erase(key);
  return config;
}

TEST(Config, EveryValueArrives) {
  const auto c = parse(good());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->model_type, "glm_moe_dsa");
  EXPECT_EQ(c->hidden_size, 128);
  EXPECT_EQ(c->vocab_size, 256);
  EXPECT_EQ(c->layers, 4);
  EXPECT_EQ(c->mtp_layers, 1);
  EXPECT_EQ(c->heads, 4);
  EXPECT_EQ(c->max_positions, 4096);
  EXPECT_EQ(c->rms_norm_eps, 1e-5f);
  EXPECT_EQ(c->rope_theta, 1e6);
  EXPECT_FALSE(c->tie_word_embeddings);
  EXPECT_EQ(c->mla.q_lora_rank, 96);
  EXPECT_EQ(c->mla.kv_lora_rank, 64);
  EXPECT_EQ(c->mla.qk_head_dim(), 48);
  EXPECT_EQ(c->mla.cache_dim(), 80);
  EXPECT_EQ(c->mla.v_head_dim, 48);
  EXPECT_EQ(c->indexer.heads, 16);
  EXPECT_EQ(c->indexer.head_dim, 32);
  EXPECT_EQ(c->indexer.top_k, 8);
  EXPECT_EQ(c->indexer_full, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(c->sparse, (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(c->intermediate_size, 192);
  EXPECT_EQ(c->moe_intermediate_size, 64);
  EXPECT_EQ(c->experts, 8);
  EXPECT_EQ(c->experts_per_token, 3);
  EXPECT_EQ(c->shared_experts, 1);
  EXPECT_EQ(c->router, RouterKind::kSigmoid);
  EXPECT_TRUE(c->norm_topk_prob);
  EXPECT_EQ(c->routed_scaling_factor, 2.5f);
  EXPECT_EQ(c->eos_ids, (std::vector<std::int32_t>{1, 2}));
}

TEST(Config, AbsentKeysHaveTheirDefaults) {
  const auto c = parse(without({"rms_norm_eps", "rope_parameters", "num_nextn_predict_layers", "routed_scaling_factor",
                                "norm_topk_prob", "eos_token_id", "n_group", "topk_group", "hidden_act", "attention_bias"}));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->rms_norm_eps, 1e-5f);
  EXPECT_EQ(c->rope_theta, 10000);
  EXPECT_EQ(c->mtp_layers, 0);
  EXPECT_EQ(c->routed_scaling_factor, 1.0f);
  EXPECT_TRUE(c->norm_topk_prob);
  EXPECT_TRUE(c->eos_ids.empty());
}

TEST(Config, EpsIsTheNearestFloat) {
  for (const double eps : {1e-5, 1e-6, 9.999999e-6, 1.2345678901234e-5}) {
    const auto c = parse(with("rms_norm_eps", eps));
    ASSERT_TRUE(c) << c.error().message;
    const float up = std::nextafter(c->rms_norm_eps, 1.0f), down = std::nextafter(c->rms_norm_eps, 0.0f);
    EXPECT_LE(std::abs(c->rms_norm_eps - eps), std::abs(up - eps));
    EXPECT_LE(std::abs(c->rms_norm_eps - eps), std::abs(down - eps));
  }
}

TEST(Config, FirstDenseLayersAndIndexerFrequencyFromNumbers) {
  json config = without({"mlp_layer_types", "indexer_types"});
  config["first_k_dense_replace"] = 2;
  config["num_hidden_layers"] = 9;
  auto c = parse(config);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->sparse, (std::vector<bool>{false, false, true, true, true, true, true, true, true}));
  EXPECT_EQ(c->indexer_full, std::vector<bool>(9, true));
  config["index_topk_freq"] = 3;
  c = parse(config);  // max(i - 1, 0) a multiple of 3
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->indexer_full, (std::vector<bool>{true, true, false, false, true, false, false, true, false}));
  config["index_skip_topk_offset"] = 3;  // max(i - 2, 0)
  c = parse(config);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->indexer_full, (std::vector<bool>{true, true, true, false, false, true, false, false, true}));
  config["index_skip_topk_offset"] = 0;  // layer 0 would have nothing to share
  expect_error(parse(config), {"index_skip_topk_offset", "layer 0"});
  config.erase("index_skip_topk_offset");
  config.erase("first_k_dense_replace");
  expect_error(parse(config), {"first_k_dense_replace", "missing"});
}

TEST(Config, LayerListsMayNameTheMtpLayerToo) {
  json config = good();
  config["indexer_types"].push_back("full");
  config["mlp_layer_types"].push_back("sparse");
  const auto c = parse(config);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->indexer_full.size(), 4u);
  EXPECT_EQ(c->sparse.size(), 4u);
}

TEST(Config, OlderSpellingOfRope) {
  json config = without({"rope_parameters"});
  config["rope_theta"] = 5e5;
  config["rope_scaling"] = nullptr;
  auto c = parse(config);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->rope_theta, 5e5);
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 4}};
  expect_error(parse(config), {"rope_scaling.type", "yarn", "default"});
  config = good();
  config["rope_theta"] = 10000;
  expect_error(parse(config), {"rope_parameters.rope_theta", "1000000", "10000"});
}

TEST(Config, EosIdsOfBothFiles) {
  auto c = parse(good(), R"({"eos_token_id": [7, 2], "temperature": 0.7})");
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->eos_ids, (std::vector<std::int32_t>{7, 2, 1}));
  c = parse(with("eos_token_id", 5), R"({"eos_token_id": 6})");
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->eos_ids, (std::vector<std::int32_t>{6, 5}));
  expect_error(parse(good(), R"({"eos_token_id": 256})"), {"generation_config.json", "eos_token_id", "255", "256"});
  expect_error(parse(good(), "[1]"), {"generation_config.json", "object"});
  expect_error(parse(good(), "{"), {"generation_config.json", "JSON"});
}

TEST(Config, MissingKeysAreNamed) {
  for (const char* key :
       {"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "q_lora_rank",
        "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_n_heads", "index_head_dim", "index_topk",
        "intermediate_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"})
    expect_error(parse(without({key})), {"config.json", key, "missing"});
  expect_error(parse(without({"model_type"})), {"model_type", "glm_moe_dsa"});
}

TEST(Config, SizesAreIntegersInRange) {
  const char* kSizes[] = {
      "hidden_size",      "vocab_size",         "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
      "q_lora_rank",      "kv_lora_rank",       "qk_nope_head_dim",  "qk_rope_head_dim",    "v_head_dim",
      "index_n_heads",    "index_topk",         "index_head_dim",    "intermediate_size",   "moe_intermediate_size",
      "n_routed_experts", "num_experts_per_tok"};
  for (const char* key : kSizes)
    for (const json& bad : {json(0), json(-1), json(128.0), json(1e300), json("128"), json(true), json::array({128}),
                            json::object(), json(std::numeric_limits<std::uint64_t>::max()),
                            json(std::numeric_limits<std::int64_t>::max()), json(std::numeric_limits<std::int64_t>::min())})
      expect_error(parse(with(key, bad)), {key, "expected an integer"});
  for (const char* key : {"num_nextn_predict_layers", "n_shared_experts"})
    for (const json& bad : {json(-1), json(1.0), json(1 << 20)}) expect_error(parse(with(key, bad)), {key});
}

TEST(Config, LimitsAndRelations) {
  expect_error(parse(with("num_hidden_layers", 1025)), {"num_hidden_layers", "1024"});
  expect_error(parse(with("num_experts_per_tok", 9)), {"num_experts_per_tok", "8", "9"});
  expect_error(parse(with("qk_rope_head_dim", 15)), {"qk_rope_head_dim", "odd"});
  expect_error(parse(with("index_head_dim", 8)), {"index_head_dim", "qk_rope_head_dim"});
  expect_error(parse(with("qk_head_dim", 64)), {"qk_head_dim", "64", "48"});
  expect_error(parse(with("num_hidden_layers", 5)), {"indexer_types"});  // lists of four
  expect_error(parse(with("mlp_layer_types", json::array({"dense"}))), {"mlp_layer_types", "1 entries"});
  expect_error(parse(with("mlp_layer_types", json::array({"dense", "sparse", "moe", "sparse"}))),
               {"mlp_layer_types", "entry 2", "moe"});
  expect_error(parse(with("indexer_types", json::array({"full", 1, "full", "shared"}))), {"indexer_types", "entry 1"});
  expect_error(parse(with("indexer_types", json::array({"shared", "full", "full", "shared"}))), {"indexer_types", "layer 0"});
  expect_error(parse(with("indexer_types", "full")), {"indexer_types"});
}

TEST(Config, WhatTheEngineDoesNotComputeIsRefused) {
  const std::pair<const char*, json> kKeys[] = {{"n_group", 8},
                                                {"topk_group", 4},
                                                {"hidden_act", "gelu"},
                                                {"attention_bias", true},
                                                {"mlp_bias", true},
                                                {"rope_interleave", false},
                                                {"indexer_rope_interleave", false},
                                                {"scoring_func", "softmax"},
                                                {"topk_method", "greedy"}};
  for (const auto& [key, value] : kKeys) expect_error(parse(with(key, value)), {key, value.dump()});
  for (const char* type : {"yarn", "linear", "dynamic"})
    expect_error(parse(with("rope_parameters", {{"rope_type", type}})), {"rope_parameters.rope_type", type});
  expect_error(parse(with("rope_parameters", 3)), {"rope_parameters"});
  expect_error(parse(with("quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}})),
               {"weight_block_size"});
  EXPECT_TRUE(parse(with("quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}})));
  EXPECT_TRUE(parse(with("rope_interleave", true)));
}

TEST(Config, NumbersInRange) {
  for (const json& bad : {json(0), json(-1e-5), json(2), json("1e-5"), json(1e-60)})
    expect_error(parse(with("rms_norm_eps", bad)), {"rms_norm_eps"});
  for (const json& bad : {json(0), json(-1), json(1e300), json(false)})
    expect_error(parse(with("routed_scaling_factor", bad)), {"routed_scaling_factor"});
  for (const json& bad : {json(0), json(-5), json(1e300), json("x")})
    expect_error(parse(with("rope_parameters", {{"rope_theta", bad}})), {"rope_parameters.rope_theta"});
  for (const json& bad :
       {json(-1), json(256), json(1.0), json("1"), json::array({1, -2}), json::array({json::array()}), json::object()})
    expect_error(parse(with("eos_token_id", bad)), {"config.json", "eos_token_id"});
  expect_error(parse(with("eos_token_id", std::vector<int>(65, 1))), {"eos_token_id", "65"});
  expect_error(parse(with("norm_topk_prob", 1)), {"norm_topk_prob", "true or false"});
}

TEST(Config, OtherFamiliesListWhatRuns) {
  for (const char* type : {"llama", "deepseek_v3", ""})
    expect_error(parse(with("model_type", type)), {"model_type", "glm_moe_dsa"});
  expect_error(parse(with("model_type", 3)), {"model_type", "glm_moe_dsa"});
  expect_error(parse(with("model_type", "a\x1b[2Jb")), {"'a\\x1b[2Jb'"});  // nothing reaches a terminal unescaped
}

TEST(Config, TextThatIsNoJsonObject) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("{\"a\":NaN}"),
        std::string("{\"model_type\": \"\xff\"}"), std::string(1 << 20, '['), std::string("{} x")})
    expect_error(ModelConfig::parse(text, {}), {"config.json"});
  for (const char* key : {"hidden_size", "eos_token_id", "quantization_config", "unknown"}) {
    json deep = json::array();
    for (int i = 0; i < 40; ++i) deep = json::array({deep});
    expect_error(parse(with(key, deep)), {"config.json", "deep"});
  }
  const std::string brackets = std::string(100000, '[') + std::string(100000, ']');
  expect_error(ModelConfig::parse(R"({"model_type":"glm_moe_dsa","hidden_size":)" + brackets + "}", {}), {"config.json", "deep"});
  expect_error(parse(good(), R"({"eos_token_id":)" + brackets + "}"), {"generation_config.json", "deep"});
}

TEST(Config, LoadNamesTheFile) {
  TempDir dir;
  expect_error(ModelConfig::load(dir.path()), {dir.path().string(), "config.json"});
  write_file(dir / "config.json", good().dump());
  ASSERT_TRUE(ModelConfig::load(dir.path()));
  write_file(dir / "generation_config.json", R"({"eos_token_id": -1})");
  expect_error(ModelConfig::load(dir.path()), {dir.path().string(), "generation_config.json", "eos_token_id"});
  write_file(dir / "generation_config.json", "");
  write_file(dir / "config.json", with("n_group", 2).dump());
  expect_error(ModelConfig::load(dir.path()), {dir.path().string(), "config.json", "n_group"});
}

}  // namespace
}  // namespace colibri

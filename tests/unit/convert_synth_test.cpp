// Synthetic models: they open, run, stay in range, and are the same bytes however they are made.
#include <gtest/gtest.h>

#include "convert/synth.h"
#include "convert/synth_jobs.h"
#include "format_test_util.h"
#include "synth_test_util.h"
#if COLIBRI_TEST_TEXT
#include "text/tokenizer.h"
#endif

namespace colibri {
namespace {

namespace fs = std::filesystem;
using test::make;
using test::tiny;

std::map<std::string, std::string> contents(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(dir)) files[entry.path().filename().string()] = test::read_file(entry.path());
  return files;
}

TEST(Synth, TheSameBytesWithAnyNumberOfThreads) {
  const test::TempDir dir;
  make(dir / "a", tiny(), 1);
  make(dir / "b", tiny(), 3);
  const auto a = contents(dir / "a");
  EXPECT_EQ(a, contents(dir / "b"));
  EXPECT_GT(a.size(), 5u);  // three documents and several shards
  EXPECT_FALSE(a.contains(".coli_progress.json"));
  SynthOptions other = tiny();
  other.seed = 2;
  make(dir / "c", other);
  EXPECT_NE(a.at("out-00001.safetensors"), contents(dir / "c").at("out-00001.safetensors"));
}

// Values that a container says nothing about: int3's unused columns are zeros, like those of any writer.
TEST(Synth, PaddingColumnsAreZero) {
  const test::TempDir dir;
  SynthOptions options = tiny(1);
  options.shape.moe_intermediate = 80;
  options.experts = *parse_target_format("int3-g64");
  make(dir / "m", options);
  const Checkpoint checkpoint = test::open_folder(dir / "m");
  const auto index = PackedIndex::open(checkpoint);
  const auto expert = index->find("model.layers.1.mlp.experts.", 3, 80, 128);
  ASSERT_TRUE(expert && expert->has_value());
  MatrixSource wide = (*expert)->down;
  wide.matrix.cols = 128;  // the same bytes and scales, as if the padding were weights
  const test::LoadedMatrix loaded = test::load(checkpoint, wide);
  const std::vector<float> weights = loaded.weights();
  int others = 0;
  for (std::int64_t o = 0; o < 128; ++o)
    for (std::int64_t k = 0; k < 128; ++k) {
      const float w = weights[static_cast<std::size_t>(o * 128 + k)];
      if (k >= 80) {
        EXPECT_EQ(w, 0.0f) << o << " " << k;
      }
      if (k < 80) others += w != 0;
    }
  EXPECT_GT(others, 128 * 80 / 2);
}

TEST(Synth, ConfigSaysWhatItIs) {
  SynthOptions options = tiny(3);
  options.dense_layers = 2;
  options.routing->recall = 0.5;
  const auto config = ModelConfig::parse(synth_config(options), synth_generation_config(options.shape));
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->layers, 5);
  EXPECT_EQ(config->sparse, (std::vector<bool>{false, false, true, true, true}));
  EXPECT_EQ(config->eos_ids.size(), 3u);
  const auto routing = parse_synthetic_routing(synth_config(options));
  ASSERT_TRUE(routing) << routing.error().message;
  EXPECT_EQ(*routing, *options.routing);
}

TEST(Synth, RoutingNumbersAreChecked) {
  const auto none = parse_synthetic_routing("{}");
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value());
  const auto some = parse_synthetic_routing(R"({"colibri_synthetic_routing": {"recall": 0.5}})");
  ASSERT_TRUE(some && some->has_value());
  EXPECT_EQ((*some)->recall, 0.5);
  EXPECT_EQ((*some)->topics, SyntheticRouting().topics);
  for (const char* bad : {R"("recall": 1.5)", R"("recall": "0.5")", R"("seed": -1)", R"("topics": 0)", R"("topic_tokens": 0)"}) {
    const auto result = parse_synthetic_routing(fmt::format(R"({{"colibri_synthetic_routing": {{{}}}}})", bad));
    test::expect_error(result, {"colibri_synthetic_routing", std::string_view(bad).substr(1, 4)});
  }
}

TEST(Synth, GlmHasItsTrueSizes) {
  SynthOptions options;
  options.like = "glm-5.2";
  options.shape = *synth_shape("glm-5.2");
  const auto plan = plan_synthetic_model(options);
  ASSERT_TRUE(plan) << plan.error().message;
  std::uint64_t records = 0, record_bytes = 0, total = 0;
  for (const PlannedShard& shard : plan->shards) {
    total += shard.file_bytes;
    EXPECT_LE(shard.file_bytes, options.shard_bytes + (1 << 20));
    for (const PlannedUnit& unit : shard.units)
      if (unit.record) ++records, record_bytes += unit.tensors[0].bytes;
  }
  EXPECT_EQ(records, 5u * 256);
  EXPECT_EQ(record_bytes / records, 21250048u);
  EXPECT_GT(total, 29'000'000'000u);
  EXPECT_LT(total, 32'000'000'000u);
}

TEST(Synth, ImpossibleShapesAreRefused) {
  SynthOptions options = tiny();
  options.shape.vocab = 200;
  test::expect_error(plan_synthetic_model(options), {"200", "277"});
  options = tiny();
  options.shape.experts_per_token = 17;
  test::expect_error(plan_synthetic_model(options), {"num_experts_per_tok"});
  options = tiny(0);
  test::expect_error(plan_synthetic_model(options), {"sparse"});
  test::expect_error(synth_shape("gpt"), {"gpt", "glm-5.2"});
}

#if COLIBRI_TEST_TEXT
TEST(Synth, TheTokenizerCoversTheVocabulary) {
  const SynthShape shape = *synth_shape("glm-5.2");
  const auto tokenizer = Tokenizer::parse(synth_tokenizer(shape), "tokenizer.json");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->vocab_size(), shape.vocab);
  const std::string text = "Grüße, \"World\"\n";
  const auto ids = tokenizer->encode(text, false);
  EXPECT_EQ(ids.size(), text.size());
  EXPECT_EQ(tokenizer->decode(ids, false), text);
  EXPECT_EQ(tokenizer->token_bytes(1000), " w1000");
  EXPECT_EQ(tokenizer->encode("<|user|>hi", true).size(), 3u);
  for (std::int32_t id = 0; id < shape.vocab; ++id) ASSERT_FALSE(tokenizer->token_bytes(id).empty()) << id;
}
#endif

}  // namespace
}  // namespace colibri

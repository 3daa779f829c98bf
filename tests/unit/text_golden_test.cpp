// Other models' tokenizers against the ids that an independent implementation gave 55 texts (tests/tokenizers).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "text/tokenizer.h"

namespace colibri {
namespace {

// utf8proc and the reference agree on NFC; only such a tokenizer may give back other text than it got.
struct Model {
  const char* name;
  bool normalizes;
};

class Golden : public testing::TestWithParam<Model> {};

TEST_P(Golden, IdsAreEqual) {
  const std::string name = GetParam().name;
  const std::filesystem::path path = std::filesystem::path(COLIBRI_TEST_TOKENIZERS) / (name + ".json");
  ASSERT_TRUE(std::filesystem::exists(path)) << path << " is missing: run scripts/fetch_test_tokenizers.sh (make test does)";
  const auto tokenizer = Tokenizer::load(path);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;

  std::ifstream file(std::string(COLIBRI_SOURCE_DIR "/tests/tokenizers/golden-") + name + ".jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const nlohmann::json c = nlohmann::json::parse(line);
    const auto text = c.at("text").get<std::string>();
    const auto ids = c.at("ids").get<std::vector<std::int32_t>>();
    EXPECT_EQ(tokenizer->encode(text, true), ids) << text;
    const std::string decoded = tokenizer->decode(ids, false);
    if (GetParam().normalizes) {
      EXPECT_EQ(tokenizer->encode(decoded, true), ids) << text;
    } else {
      EXPECT_EQ(decoded, text);
    }
  }
  EXPECT_EQ(cases, 55);
}

INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         testing::Values(Model{"qwen3", true}, Model{"deepseek_v3", false}, Model{"gptoss", false}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace colibri

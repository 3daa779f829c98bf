// tokenizer.json from a stranger: an error that names file and key, never a crash.
#include <gtest/gtest.h>

#include <functional>

#include "text_test_util.h"

namespace colibri {
namespace {

using namespace text_test;
using nlohmann::json;

json full_tokenizer() {
  json out = small_tokenizer({{"t", "h"}, {"th", "e"}, {" ", "the"}});
  out["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array({{{"type", "NFC"}}})}};
  out["pre_tokenizer"] = {{"type", "Sequence"},
                          {"pretokenizers",
                           {{{"type", "Split"},
                             {"pattern", {{"Regex", R"(\s?\p{L}+|\p{N}|[^\s\p{L}]+|\s+(?!\S))"}}},
                             {"behavior", "Isolated"},
                             {"invert", false}},
                            {{"type", "Digits"}, {"individual_digits", true}},
                            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}};
  out["decoder"] = {{"type", "ByteLevel"}};
  out["added_tokens"] = {added_token(300, "<|a|>"), added_token(301, "<b>")};
  out["added_tokens"][1]["normalized"] = true;
  return out;
}

struct Bad {
  const char* name;
  std::function<void(json&)> damage;
  const char* place;  // must stand in the error, as the file's name must
};

TEST(HostileTokenizer, EveryErrorNamesFileAndKey) {
  ASSERT_TRUE(Tokenizer::parse(full_tokenizer().dump(), "x/tokenizer.json"));
  const std::vector<Bad> cases = {
      {"no model", [](json& j) { j.erase("model"); }, "model"},
      {"model null", [](json& j) { j["model"] = nullptr; }, "model"},
      {"model a list", [](json& j) { j["model"] = json::array(); }, "model"},
      {"unigram", [](json& j) { j["model"]["type"] = "Unigram"; }, "model.type"},
      {"type a number", [](json& j) { j["model"]["type"] = 3; }, "model.type"},
      {"suffix", [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix"},
      {"prefix", [](json& j) { j["model"]["continuing_subword_prefix"] = "##"; }, "model.continuing_subword_prefix"},
      {"byte fallback", [](json& j) { j["model"]["byte_fallback"] = true; }, "model.byte_fallback"},
      {"dropout", [](json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout"},
      {"ignore_merges", [](json& j) { j["model"]["ignore_merges"] = "yes"; }, "model.ignore_merges"},
      {"no vocab", [](json& j) { j["model"].erase("vocab"); }, "vocab"},
      {"vocab a list", [](json& j) { j["model"]["vocab"] = json::array({"a"}); }, "model.vocab"},
      {"vocab empty", [](json& j) { j["model"]["vocab"] = json::object(); }, "model.vocab"},
      {"id a text", [](json& j) { j["model"]["vocab"]["th"] = "5"; }, "model.vocab[\"th\"]"},
      {"id negative", [](json& j) { j["model"]["vocab"]["th"] = -1; }, "model.vocab[\"th\"]"},
      {"id a fraction", [](json& j) { j["model"]["vocab"]["th"] = 1.5; }, "model.vocab[\"th\"]"},
      {"id too large", [](json& j) { j["model"]["vocab"]["th"] = 1 << 24; }, "model.vocab[\"th\"]"},
      {"id huge", [](json& j) { j["model"]["vocab"]["th"] = UINT64_MAX; }, "model.vocab[\"th\"]"},
      {"id twice", [](json& j) { j["model"]["vocab"]["th"] = 257; }, "257"},
      {"empty token", [](json& j) { j["model"]["vocab"][""] = 400; }, "model.vocab"},
      {"byte missing", [](json& j) { j["model"]["vocab"].erase("!"); }, "0x21"},
      {"lead byte missing", [](json& j) { j["model"]["vocab"].erase(alphabet_of_byte(0xF4)); }, "0xF4"},
      {"no merges", [](json& j) { j["model"].erase("merges"); }, "merges"},
      {"merges an object", [](json& j) { j["model"]["merges"] = json::object(); }, "model.merges"},
      {"merge a number", [](json& j) { j["model"]["merges"][1] = 5; }, "model.merges[1]"},
      {"merge of three", [](json& j) { j["model"]["merges"][1] = {"a", "b", "c"}; }, "model.merges[1]"},
      {"merge of numbers", [](json& j) { j["model"]["merges"][1] = {1, 2}; }, "model.merges[1]"},
      {"merge without space", [](json& j) { j["model"]["merges"][1] = "the"; }, "model.merges[1]"},
      {"merge with spaces", [](json& j) { j["model"]["merges"][1] = "t h e"; }, "model.merges[1]"},
      {"merge unknown", [](json& j) { j["model"]["merges"][1] = "xx yy"; }, "\"xx\""},
      {"merge to unknown", [](json& j) { j["model"]["merges"][1] = "x y"; }, "\"xy\""},
      {"normalizer", [](json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }, "normalizer.type"},
      {"normalizer a text", [](json& j) { j["normalizer"] = "NFC"; }, "normalizer"},
      {"normalizers missing", [](json& j) { j["normalizer"].erase("normalizers"); }, "normalizers"},
      {"normalizers inner", [](json& j) { j["normalizer"]["normalizers"][0]["type"] = "NFKC"; },
       "normalizer.normalizers[0].type"},
      {"no pre_tokenizer", [](json& j) { j["pre_tokenizer"] = nullptr; }, "pre_tokenizer"},
      {"other pre_tokenizer", [](json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}}; }, "pre_tokenizer.type"},
      {"no byte level", [](json& j) { j["pre_tokenizer"]["pretokenizers"].erase(2); }, "ByteLevel"},
      {"byte level first",
       [](json& j) { std::swap(j["pre_tokenizer"]["pretokenizers"][0], j["pre_tokenizer"]["pretokenizers"][2]); },
       "pre_tokenizer.pretokenizers[0]"},
      {"stages a text", [](json& j) { j["pre_tokenizer"]["pretokenizers"] = "x"; }, "pre_tokenizer.pretokenizers"},
      {"bad pattern", [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; },
       "pre_tokenizer.pretokenizers[0].pattern.Regex"},
      {"pattern a number", [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = 4; },
       "pre_tokenizer.pretokenizers[0].pattern.Regex"},
      {"no pattern", [](json& j) { j["pre_tokenizer"]["pretokenizers"][0].erase("pattern"); }, "pattern"},
      {"empty pattern object", [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = json::object(); }, "pattern"},
      {"behavior", [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Shuffled"; },
       "pre_tokenizer.pretokenizers[0].behavior"},
      {"decoder", [](json& j) { j["decoder"] = {{"type", "Metaspace"}}; }, "decoder.type"},
      {"added an object", [](json& j) { j["added_tokens"] = {{"a", 1}}; }, "added_tokens"},
      {"added a text", [](json& j) { j["added_tokens"][1] = "b"; }, "added_tokens[1]"},
      {"added no id", [](json& j) { j["added_tokens"][1].erase("id"); }, "added_tokens[1]"},
      {"added id too large", [](json& j) { j["added_tokens"][1]["id"] = 1 << 24; }, "added_tokens[1].id"},
      {"added id taken", [](json& j) { j["added_tokens"][1]["id"] = 300; }, "added_tokens[1].id"},
      {"added id of a token", [](json& j) { j["added_tokens"][1]["id"] = 258; }, "added_tokens[1].id"},
      {"added of a byte", [](json& j) { j["added_tokens"][1].update({{"id", 33}, {"content", "!"}}); },
       "added_tokens[1].special"},
      {"added empty", [](json& j) { j["added_tokens"][1]["content"] = ""; }, "added_tokens[1].content"},
      {"added too long", [](json& j) { j["added_tokens"][1]["content"] = std::string(10'000, 'x'); }, "added_tokens[1].content"},
      {"added twice", [](json& j) { j["added_tokens"][1]["content"] = "<|a|>"; }, "added_tokens[1].content"},
      {"added flag", [](json& j) { j["added_tokens"][1]["lstrip"] = 1; }, "added_tokens[1].lstrip"},
  };
  for (const Bad& bad : cases) {
    json damaged = full_tokenizer();
    bad.damage(damaged);
    const auto tokenizer = Tokenizer::parse(damaged.dump(), "x/tokenizer.json");
    ASSERT_FALSE(tokenizer) << bad.name;
    EXPECT_NE(tokenizer.error().message.find("x/tokenizer.json: "), std::string::npos) << tokenizer.error().message;
    EXPECT_NE(tokenizer.error().message.find(bad.place), std::string::npos) << bad.name << ": " << tokenizer.error().message;
  }
}

TEST(HostileTokenizer, NoJsonAndNoFile) {
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string("7"), std::string("\"\xFF\""),
                                  std::string(200'000, '['), std::string(R"({"model": )")}) {
    const auto tokenizer = Tokenizer::parse(text, "t.json");
    ASSERT_FALSE(tokenizer);
    EXPECT_NE(tokenizer.error().message.find("t.json: "), std::string::npos) << tokenizer.error().message;
  }
  const auto missing = Tokenizer::load("no/such/tokenizer.json");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("no/such/tokenizer.json"), std::string::npos);
  EXPECT_FALSE(Tokenizer::load(COLIBRI_SOURCE_DIR));
}

// What a damaged file may still be read as must work without a crash.
void use(const Tokenizer& tokenizer, Random& random) {
  const std::string text = random_text(random, 20) + " the <|a|> 123 <b>" + random_bytes(random, 5);
  for (const bool honour : {false, true}) {
    const Ids ids = tokenizer.encode(text, honour);
    for (const std::int32_t id : ids) ASSERT_LT(id, tokenizer.vocab_size());
    tokenizer.decode(ids, true);
  }
}

TEST(HostileTokenizer, DamagedBytesAreSafe) {
  const std::string good = full_tokenizer().dump();
  Random random(41);
  int loaded = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = good;
    for (std::size_t n = 1 + below(random, 4); n > 0; --n) {
      const std::size_t at = below(random, text.size());
      switch (below(random, 3)) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + below(random, 10)); break;
        default: text.insert(at, std::string(1, "\"{}[]:,0-\\"[below(random, 10)])); break;
      }
    }
    if (const auto tokenizer = Tokenizer::parse(text, "x")) {
      ++loaded;
      use(*tokenizer, random);
    }
  }
  EXPECT_GT(loaded, 0);
}

TEST(HostileTokenizer, DamagedValuesAreSafe) {
  const json good = full_tokenizer();
  std::vector<json::json_pointer> places;
  const json flat = good.flatten();
  for (const auto& [place, value] : flat.items()) {
    for (json::json_pointer at(place); !at.empty(); at.pop_back()) places.push_back(at);
  }
  const std::vector<json> values = {
      nullptr, true, 0, -1, 1e300, UINT64_MAX, "", "th", json::array(), json::object(), {1, 2}, {{"type", "NFC"}}};
  Random random(43);
  int loaded = 0;
  for (int round = 0; round < 3000; ++round) {
    json damaged = good;
    for (std::size_t n = 1 + below(random, 3); n > 0; --n) {
      const json::json_pointer& at = places[below(random, places.size())];
      if (damaged.contains(at)) damaged[at] = values[below(random, values.size())];
    }
    if (const auto tokenizer = Tokenizer::parse(damaged.dump(), "x")) {
      ++loaded;
      use(*tokenizer, random);
    }
  }
  EXPECT_GT(loaded, 0);
}

}  // namespace
}  // namespace colibri

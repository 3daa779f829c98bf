// Tokens written in the text.
#include <gtest/gtest.h>

#include <algorithm>

#include "text/added_tokens.h"
#include "text_test_util.h"

namespace colibri {
namespace {

using namespace text_test;

// Tokens of these texts, flags set by `change`.
Tokenizer with_tokens(const std::vector<std::string>& contents, const nlohmann::json& change = nlohmann::json::object()) {
  nlohmann::json json = small_tokenizer();
  for (std::size_t i = 0; i < contents.size(); ++i) {
    nlohmann::json token = added_token(static_cast<std::int64_t>(300 + i), contents[i]);
    token.update(change);
    json["added_tokens"].push_back(token);
  }
  return must_parse(json);
}

TEST(AddedTokens, TheLeftmostThenTheLongest) {
  const Tokenizer tokenizer = with_tokens({"ab", "abcd", "bcde", "c"});
  EXPECT_EQ(tokenizer.encode("abcd", true), (Ids{301}));
  EXPECT_EQ(tokenizer.encode("abcde", true), (Ids{301, 'e'}));
  EXPECT_EQ(tokenizer.encode("abcx", true), (Ids{300, 303, 'x'}));
  EXPECT_EQ(tokenizer.encode("bcd", true), (Ids{'b', 303, 'd'}));
  EXPECT_EQ(tokenizer.encode("abcd", false), (Ids{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(tokenizer.encode("\xFF"
                             "ab\xE4",
                             true),
            (Ids{255, 300, 0xE4}));
}

TEST(AddedTokens, EqualASlowSearch) {
  Random random(23);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> contents;
    AddedTokenFinder finder;
    for (std::size_t i = 0; i < 5; ++i) {
      std::string content;
      for (std::size_t n = 1 + below(random, 4); n > 0; --n) content += "abc"[below(random, 3)];
      if (std::find(contents.begin(), contents.end(), content) != contents.end()) continue;
      AddedToken token;
      token.id = static_cast<std::int32_t>(contents.size());
      token.content = content;
      finder.add(token);
      contents.push_back(content);
    }
    std::string text;
    for (int i = 0; i < 30; ++i) text += "abcd"[below(random, 4)];
    for (std::size_t from = 0; from <= text.size(); ++from) {
      std::size_t best = text.size(), length = 0;
      for (const std::string& content : contents) {
        const std::size_t at = text.find(content, from);
        if (at == std::string::npos || at > best || (at == best && content.size() < length)) continue;
        best = at;
        length = content.size();
      }
      const auto found = finder.find(text, from);
      ASSERT_EQ(found.has_value(), length > 0);
      if (!found) continue;
      EXPECT_EQ(found->begin, best);
      EXPECT_EQ(found->end, best + length);
      EXPECT_EQ(contents[static_cast<std::size_t>(found->id)], text.substr(best, length));
    }
  }
}

TEST(AddedTokens, StripFlagsTakeWhiteSpace) {
  const Tokenizer left = with_tokens({"<m>"}, {{"lstrip", true}});
  EXPECT_EQ(left.encode("a \t\u3000<m> b", true), (Ids{'a', 300, ' ', 'b'}));
  EXPECT_EQ(left.encode("<m> <m>", true), (Ids{300, 300}));
  const Tokenizer right = with_tokens({"<m>"}, {{"rstrip", true}});
  EXPECT_EQ(right.encode("a <m> \n b <m>", true), (Ids{'a', ' ', 300, 'b', ' ', 300}));
  EXPECT_EQ(right.decode(Ids{300, 'b'}, false), "<m>b");
}

TEST(AddedTokens, SingleWordsStandAlone) {
  const Tokenizer tokenizer = with_tokens({"cat"}, {{"single_word", true}});
  EXPECT_EQ(tokenizer.encode("cat", true), (Ids{300}));
  EXPECT_EQ(tokenizer.encode("-cat!", true), (Ids{'-', 300, '!'}));
  for (const std::string text : {"cats", "bobcat", "cat\u0301", "_cat", "cat9", "\u00E9cat"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true), false), text);
    EXPECT_EQ(tokenizer.encode(text, true), tokenizer.encode(text, false)) << text;
  }
  EXPECT_EQ(tokenizer.encode("\xE9"
                             "cat",
                             true),
            (Ids{0xE9, 300}));  // a stray byte is no letter
}

TEST(AddedTokens, NormalizedOnesAreFoundInTheNormalisedText) {
  nlohmann::json json = small_tokenizer();
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"] = {added_token(300, "caf\u00E9"), added_token(301, "t\u00E9"), added_token(302, "e\u0301t")};
  for (int i = 1; i < 3; ++i) json["added_tokens"][i]["normalized"] = true;
  const Tokenizer tokenizer = must_parse(json);
  EXPECT_EQ(tokenizer.encode("caf\u00E9", true), (Ids{300}));
  EXPECT_EQ(tokenizer.encode("cafe\u0301", true), (Ids{'c', 'a', 'f', 0xC3, 0xA9}));
  EXPECT_EQ(tokenizer.encode("te\u0301", true), (Ids{301}));
  EXPECT_EQ(tokenizer.encode("\u00E9t", true), (Ids{302}));  // its own text is normalised too
  EXPECT_EQ(tokenizer.token_id("e\u0301t"), 302);
}

TEST(AddedTokens, OrdinaryTextNeverBecomesASpecialToken) {
  // Merges and ignore_merges both lead to "<x>" here.
  nlohmann::json json = small_tokenizer({{"<", "x"}, {"<x", ">"}, {"x", ">"}, {"o", "k"}});
  json["added_tokens"] = nlohmann::json::array({added_token(257, "<x>")});
  for (const bool ignore_merges : {false, true}) {
    json["model"]["ignore_merges"] = ignore_merges;
    const Tokenizer tokenizer = must_parse(json);
    EXPECT_EQ(tokenizer.encode("<x>", true), (Ids{257}));
    EXPECT_EQ(tokenizer.encode("<x>", false), (Ids{'<', 'x', '>'}));
    EXPECT_EQ(tokenizer.encode("ok<x>ok", false), (Ids{259, '<', 'x', '>', 259}));
    EXPECT_TRUE(tokenizer.is_special(257));
    EXPECT_FALSE(tokenizer.is_special(259));
  }
}

TEST(AddedTokens, IgnoreMergesTakesWholePieces) {
  nlohmann::json json = small_tokenizer({{"a", "b"}});
  json["model"]["vocab"]["abc"] = 400;
  EXPECT_EQ(must_parse(json).encode("abc", false), (Ids{256, 'c'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(must_parse(json).encode("abc", false), (Ids{400}));
  EXPECT_EQ(must_parse(json).encode("abcd", false), (Ids{256, 'c', 'd'}));
}

TEST(Tokenizer, InvalidBytesArePiecesOfTheirOwn) {
  nlohmann::json json = small_tokenizer({{"\xE4", "\xB8"}, {"a", "\xE4"}, {"a", "b"}, {"\xC0", "\xFF"}});
  json["pre_tokenizer"]["use_regex"] = true;
  Tokenizer tokenizer = must_parse(json);
  EXPECT_EQ(tokenizer.encode("ab\xE4\xB8"
                             "ab",
                             false),
            (Ids{258, 256, 258}));  // merged within, not across
  EXPECT_EQ(tokenizer.encode("\xC0\xFF", false), (Ids{259}));
  EXPECT_EQ(tokenizer.encode(" \xFF ", false), (Ids{' ', 0xFF, ' '}));

  // A vocabulary without the bytes of no valid text, as some have.
  json = small_tokenizer();
  for (int byte = 0; byte < 256; ++byte) {
    if (byte == 0xC0 || byte == 0xC1 || byte >= 0xF5)
      json["model"]["vocab"].erase(alphabet_of_byte(static_cast<std::uint8_t>(byte)));
  }
  tokenizer = must_parse(json);
  EXPECT_EQ(tokenizer.encode("a\xFF\xE4"
                             "b",
                             false),
            (Ids{'a', 0xEF, 0xBF, 0xBD, 0xE4, 'b'}));
}

TEST(Tokenizer, AnswersAboutItsTokens) {
  nlohmann::json json = small_tokenizer({{" ", "t"}});
  json["added_tokens"] = {added_token(300, "<s>"), added_token(301, "<t>")};
  json["added_tokens"][1]["special"] = false;
  const Tokenizer tokenizer = must_parse(json);
  EXPECT_EQ(tokenizer.vocab_size(), 302);
  EXPECT_EQ(tokenizer.token_id(" t"), 256);
  EXPECT_EQ(tokenizer.token_id("<s>"), 300);
  EXPECT_EQ(tokenizer.token_id("none"), std::nullopt);
  EXPECT_EQ(tokenizer.token_bytes(256), " t");
  EXPECT_EQ(tokenizer.token_bytes(301), "<t>");
  for (const std::int32_t id : {-1, 257, 302, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer.token_bytes(id), "");
    EXPECT_FALSE(tokenizer.is_special(id));
  }
  EXPECT_FALSE(tokenizer.is_special(301));
  EXPECT_EQ(tokenizer.decode(Ids{300, 256, 301, 0xE4}, false), "<s> t<t>\xE4");
  EXPECT_EQ(tokenizer.decode(Ids{300, 256, 301, 0xE4}, true), " t<t>\xE4");
}

}  // namespace
}  // namespace colibri

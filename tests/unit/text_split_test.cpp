// Cutting text into pieces.
#include <gtest/gtest.h>

#include "text/pre_tokenizer.h"
#include "text_test_util.h"

namespace colibri {
namespace {

using namespace text_test;
using Pieces = std::vector<std::string>;

nlohmann::json array(nlohmann::json::initializer_list_t list) { return nlohmann::json::array(list); }

Pieces run(const PreTokenizer& pre_tokenizer, std::string_view text) {
  std::vector<std::string_view> pieces;
  std::deque<std::string> storage;
  pre_tokenizer.run(text, pieces, storage);
  return {pieces.begin(), pieces.end()};
}

Pieces split(Pattern pattern, SplitBehavior behavior, bool invert, std::string_view text) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.splits.push_back({std::move(pattern), behavior, invert});
  return run(pre_tokenizer, text);
}

TEST(Split, Behaviors) {
  const auto dash = [](SplitBehavior behavior) { return split(Pattern::literal("-"), behavior, false, "the-final--countdown"); };
  EXPECT_EQ(dash(SplitBehavior::kRemoved), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(dash(SplitBehavior::kIsolated), (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(dash(SplitBehavior::kMergedWithPrevious), (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(dash(SplitBehavior::kMergedWithNext), (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(dash(SplitBehavior::kContiguous), (Pieces{"the", "-", "final", "--", "countdown"}));
}

TEST(Split, BehaviorsAtTheEdges) {
  const auto dash = [](SplitBehavior behavior) { return split(Pattern::literal("-"), behavior, false, "-a-"); };
  EXPECT_EQ(dash(SplitBehavior::kRemoved), (Pieces{"a"}));
  EXPECT_EQ(dash(SplitBehavior::kIsolated), (Pieces{"-", "a", "-"}));
  EXPECT_EQ(dash(SplitBehavior::kMergedWithPrevious), (Pieces{"-", "a-"}));
  EXPECT_EQ(dash(SplitBehavior::kMergedWithNext), (Pieces{"-a", "-"}));
  EXPECT_EQ(dash(SplitBehavior::kContiguous), (Pieces{"-", "a", "-"}));
}

TEST(Split, InvertSwapsMatchesAndTheRest) {
  EXPECT_EQ(split(*Pattern::compile("[a-z]+"), SplitBehavior::kRemoved, true, "ab 12 cd"), (Pieces{"ab", "cd"}));
  EXPECT_EQ(split(*Pattern::compile("[a-z]"), SplitBehavior::kContiguous, true, "ab12cd"), (Pieces{"ab", "12", "cd"}));
}

TEST(Split, EmptyMatchesCut) {
  EXPECT_EQ(split(*Pattern::compile("(?=[A-Z])"), SplitBehavior::kIsolated, false, "CamelCaseÄx"), (Pieces{"Camel", "CaseÄx"}));
  EXPECT_EQ(split(*Pattern::compile("x*"), SplitBehavior::kIsolated, false, "axxé"), (Pieces{"a", "xx", "é"}));
}

TEST(PreTokenizer, EachStageSeesTheNextOnesPiecesAlone) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.splits.push_back({*Pattern::compile("[0-9]"), SplitBehavior::kIsolated, false});
  pre_tokenizer.splits.push_back({*Pattern::compile("a(?!1)"), SplitBehavior::kIsolated, false});
  EXPECT_EQ(run(pre_tokenizer, "ba1"), (Pieces{"b", "a", "1"}));  // the look-ahead does not see the digit
  EXPECT_EQ(run(pre_tokenizer, ""), Pieces{});
}

TEST(PreTokenizer, PrefixSpaceComesBetweenTheSplits) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.splits.push_back({Pattern::literal("-"), SplitBehavior::kIsolated, false});
  pre_tokenizer.add_prefix_space = true;
  pre_tokenizer.byte_level_splits.push_back({*Pattern::compile(" ?[a-z]+"), SplitBehavior::kIsolated, false});
  EXPECT_EQ(run(pre_tokenizer, "a1- b"), (Pieces{" a", "1", " -", " b"}));
}

// The pre-tokenizer as tokenizer.json writes it: pieces are seen through a tokenizer that merges nothing but "xy".
TEST(PreTokenizer, ReadsEveryKind) {
  nlohmann::json json = small_tokenizer({{"x", "y"}});
  const auto ids = [&](const nlohmann::json& stages, std::string_view text) {
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", stages}};
    return must_parse(json).encode(text, false);
  };
  const nlohmann::json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  EXPECT_EQ(ids(array({byte_level}), "xy"), (Ids{256}));
  EXPECT_EQ(
      ids(array({{{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Isolated"}, {"invert", false}}, byte_level}),
          "xy"),
      (Ids{'x', 'y'}));
  EXPECT_EQ(ids(array({{{"type", "Split"}, {"pattern", {{"Regex", "z"}}}, {"behavior", "Removed"}}, byte_level}), "xzyxy"),
            (Ids{'x', 'y', 256}));
  EXPECT_EQ(ids(array({{{"type", "ByteLevel"}}}), "xy"), (Ids{' ', 256}));  // both settings are on by default
  EXPECT_EQ(ids(array({{{"type", "ByteLevel"}}}), "x y"), (Ids{' ', 'x', ' ', 'y'}));

  json = small_tokenizer({{"1", "2"}});
  EXPECT_EQ(ids(array({{{"type", "Digits"}, {"individual_digits", true}}, byte_level}), "12"), (Ids{'1', '2'}));
  EXPECT_EQ(ids(array({{{"type", "Digits"}, {"individual_digits", false}}, byte_level}), "12"), (Ids{256}));
}

}  // namespace
}  // namespace colibri

// Patterns as tokenizer.json writes them (Oniguruma's Ruby syntax) in PCRE2.
#include <gtest/gtest.h>

#include "text/pattern.h"
#include "text/pattern_syntax.h"
#include "text_test_util.h"

namespace colibri {
namespace {

using Matches = std::vector<std::string>;

Matches matches(std::string_view pattern, std::string_view text) {
  const auto compiled = Pattern::compile(pattern);
  EXPECT_TRUE(compiled) << compiled.error().message;
  std::vector<Span> spans;
  if (compiled) compiled->find_all(text, spans);
  Matches out;
  for (const Span& span : spans) out.emplace_back(text.substr(span.begin, span.end - span.begin));
  return out;
}

TEST(Pattern, WhiteSpaceIsUnicodes) {
  // U+180E was white space once and is for PCRE2's \s; U+FEFF never was; U+0085 is.
  EXPECT_EQ(matches(R"(\s)", "a\u180Eb\uFEFFc\u0085d\u3000e\u00A0\t"), (Matches{"\u0085", "\u3000", "\u00A0", "\t"}));
  EXPECT_EQ(matches(R"(\S+)", "a\u180Eb c"), (Matches{"a\u180Eb", "c"}));
  EXPECT_EQ(matches(R"([^\s]+)", "a\u180Eb c"), (Matches{"a\u180Eb", "c"}));
  EXPECT_EQ(matches(R"([\S\n]+)", "a\u180Eb\nc d"), (Matches{"a\u180Eb\nc", "d"}));
}

TEST(Pattern, SpaceAndItsComplementPartitionUnicode) {
  const auto space = Pattern::compile(R"(\s)"), other = Pattern::compile(R"([\S])");
  ASSERT_TRUE(space && other);
  std::vector<Span> spans;
  int spaces = 0;
  for (std::uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    append_utf8(text, c);
    space->find_all(text, spans);
    const std::size_t is_space = spans.size();
    other->find_all(text, spans);
    ASSERT_EQ(is_space + spans.size(), 1U) << c;
    spaces += static_cast<int>(is_space);
  }
  EXPECT_EQ(spaces, 25);
}

TEST(Pattern, WordsDigitsAndHexDigits) {
  EXPECT_EQ(matches(R"(\w+)", "a\u0301b_\u0661 \u2160\u00B2"), (Matches{"a\u0301b_\u0661", "\u2160"}));  // marks; no superscripts
  EXPECT_EQ(matches(R"(\W)", "a-b"), (Matches{"-"}));
  EXPECT_EQ(matches(R"([\W]+)", "a-+b"), (Matches{"-+"}));
  EXPECT_EQ(matches(R"(\d+\D)", "12\u0663x"), (Matches{"12\u0663x"}));
  EXPECT_EQ(matches(R"(\h+)", "xBadg1"), (Matches{"Bad", "1"}));
  EXPECT_EQ(matches(R"([\H]+\H)", "xyz1"), (Matches{"xyz"}));
  EXPECT_EQ(matches(R"(\bb)", "b ab a\u0301b"), (Matches{"b"}));
  EXPECT_EQ(matches(R"(b\B)", "ba b"), (Matches{"b"}));
}

TEST(Pattern, AnchorsAreOfLines) {
  EXPECT_EQ(matches(R"(^.)", "ab\ncd"), (Matches{"a", "c"}));
  EXPECT_EQ(matches(R"(.$)", "ab\ncd"), (Matches{"b", "d"}));
  EXPECT_EQ(matches(R"(\A.)", "ab\ncd"), (Matches{"a"}));
  EXPECT_EQ(matches(R"(.\z)", "ab\ncd"), (Matches{"d"}));
  EXPECT_EQ(matches(R"(a.)", "a\na\r"), (Matches{"a\r"}));
  EXPECT_EQ(matches(R"((?m:a.))", "a\na\r"), (Matches{"a\n", "a\r"}));
}

TEST(Pattern, Intervals) {
  EXPECT_EQ(matches(R"(\p{N}{1,3}+)", "1234567"), (Matches{"1234567"}));  // a repeated interval, not a possessive one
  EXPECT_EQ(matches(R"((?:ab){2}+c)", "ababababc"), (Matches{"ababababc"}));
  EXPECT_EQ(matches(R"([ab]{2}+)", "abaab"), (Matches{"abaa"}));
  EXPECT_EQ(matches(R"(a{,2}b)", "aaab"), (Matches{"aab"}));
  EXPECT_EQ(matches(R"(a{1,2}?)", "aa"), (Matches{"a", "a"}));
  EXPECT_EQ(matches(R"(a{x}|{)", "a{x}{"), (Matches{"a{x}", "{"}));
  EXPECT_EQ(matches(R"(a++b|a?+c|a*+d)", "aab ac aad"), (Matches{"aab", "ac", "aad"}));
  EXPECT_TRUE(matches(R"(a++a)", "aaa").empty());
}

TEST(Pattern, Groups) {
  EXPECT_EQ(matches(R"((?i:'s|'t)|x)", "'S 't X x \u0027\u017F"), (Matches{"'S", "'t", "x", "'\u017F"}));
  EXPECT_EQ(matches(R"(a(?i)b|c)", "aB C aC c"), (Matches{"aB", "aC"}));  // the option takes the alternatives along
  EXPECT_EQ(matches(R"((?:(?i)a)a)", "Aa AA"), (Matches{"Aa"}));
  EXPECT_EQ(matches(R"((?<word>a)(b)(?>c+)(?=d)(?!x)(?<=c)(?<!b))", "abccd"), (Matches{"abcc"}));
  EXPECT_EQ(matches(R"(((a)|b)+)", "abba"), (Matches{"abba"}));
}

TEST(Pattern, Classes) {
  EXPECT_EQ(matches(R"([a[^b-z ]]+)", "abAz1"), (Matches{"a", "A", "1"}));
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+)", "ab\u4E2Dc"), (Matches{"ab", "c"}));
  EXPECT_EQ(matches(R"([^a-z&&[aeiou]]+)", "xaye1"), (Matches{"x", "y", "1"}));
  EXPECT_EQ(matches(R"([a-z&&[^x]&&[^y]]+)", "axbyc"), (Matches{"a", "b", "c"}));
  EXPECT_EQ(matches(R"([]a]+)", "a]b"), (Matches{"a]"}));
  EXPECT_EQ(matches(R"([a-]+)", "-a-b"), (Matches{"-a-"}));
  EXPECT_EQ(matches(R"([\s-x]+)", " -x\u3001"), (Matches{" -x"}));
  EXPECT_EQ(matches(R"([x-\s]+)", "x- y"), (Matches{"x- "}));
  EXPECT_EQ(matches(R"([+--]+)", "+,-."), (Matches{"+,-"}));
  EXPECT_EQ(matches(R"([\]\[\\^$.|?*+(){}/~`-]+)", R"(a][\^$.|?*+(){}/~`-b)"), (Matches{R"(][\^$.|?*+(){}/~`-)"}));
  EXPECT_EQ(matches(R"([[:alpha:][:digit:]]+)", "a\u00E91-"), (Matches{"a\u00E91"}));
  EXPECT_EQ(matches(R"([\b\t\u0041\x{4e2d}\x42]+)",
                    "\b\tA\u4E2D"
                    "B"),
            (Matches{"\b\tA\u4E2D"
                     "B"}));
  EXPECT_EQ(matches(R"(\u0041\x42\v)", "AB\v"), (Matches{"AB\v"}));
}

TEST(Pattern, Properties) {
  EXPECT_EQ(matches(R"(\p{Lu}\p{Ll}\P{L}\p{^L})", "Ab12"), (Matches{"Ab12"}));
  EXPECT_EQ(matches(R"(\p{Uppercase_Letter}\p{letter}\p{Alpha})", "Abc"), (Matches{"Abc"}));
  // The ideographic comma belongs to Han by its script extensions only.
  EXPECT_EQ(matches(R"(\p{Han}+)", "\u4E2D\u3001\u6587"), (Matches{"\u4E2D", "\u6587"}));
  EXPECT_EQ(matches(R"(\p{hiragana})", "\u3042"), (Matches{"\u3042"}));
}

TEST(Pattern, RefusesWhatItDoesNotKnow) {
  for (const char* bad : {"(",           ")",
                          "[",           "[a",
                          "a)",          "\\",
                          "(?",          "(?<",
                          "(?<n",        "(?<>a)",
                          "(?P<n>a)",    "(?x)a",
                          "(?#c)",       "(?R)",
                          "(?(1)a)",     "(a)\\1",
                          "\\k<n>",      "\\g<n>",
                          "\\K",         "\\G",
                          "\\Q",         "\\N",
                          "\\p",         "\\pL",
                          "\\p{",        "\\p{Nosuchscript}",
                          "\\xE3",       "\\x{110000}",
                          "\\x{",        "\\u12",
                          "a{2}?",       "*",
                          "+a",          "a**",
                          "[[:punct:]]", "[z-a]",
                          "(?--i:a)",    "(*ACCEPT)",
                          "\xFF"}) {
    const auto compiled = Pattern::compile(bad);
    ASSERT_FALSE(compiled) << bad;
    EXPECT_FALSE(compiled.error().message.empty());
  }
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += '[';
  EXPECT_FALSE(Pattern::compile(deep));
  EXPECT_FALSE(Pattern::compile(std::string(100'000, '(') + std::string(100'000, ')')));
}

// Exponential patterns end at the step limit: the matches until then count, the rest is unmatched.
TEST(Pattern, ExponentialPatternsEnd) { EXPECT_EQ(matches(R"(x|(?:a+)+b)", "x" + std::string(5000, 'a') + "x"), (Matches{"x"})); }

// Every repeat of the group takes room; more than the machine stack has.
TEST(Pattern, DeepMatchesGoOnBeyondTheStack) {
  const std::string text(300'000, 'a');
  EXPECT_EQ(matches(R"((?:a|b)*c|(?:a|(b))+)", text), (Matches{text}));
}

TEST(Pattern, LiteralsMatchThemselves) {
  std::vector<Span> spans;
  Pattern::literal("aa").find_all("aaaaa", spans);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[1].begin, 2U);
  Pattern().find_all("aaa", spans);
  EXPECT_TRUE(spans.empty());
}

// Random patterns from random pieces: an error or matches inside the text, never a crash.
TEST(Pattern, RandomPatternsAreSafe) {
  const std::vector<std::string> pieces = {"a",   "b",    "[",   "]",    "^",   "-",      "&&",       "(",       ")",
                                           "(?:", "(?i)", "(?=", "|",    "*",   "+",      "?",        "{1,2}",   "{",
                                           "}",   "\\s",  "\\S", "\\w",  "\\W", "\\p{L}", "\\p{Han}", "\\u4e2d", "\\x{1F600}",
                                           "\\",  "é",    "[^",  "[a-z", "\\b", "$",      ".",        ","};
  text_test::Random random(17);
  int compiled = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string pattern;
    for (std::size_t n = 1 + text_test::below(random, 8); n > 0; --n) pattern += pieces[text_test::below(random, pieces.size())];
    const auto result = Pattern::compile(pattern);
    if (!result) continue;
    ++compiled;
    const std::string text = text_test::random_text(random, 20);
    std::vector<Span> spans;
    result->find_all(text, spans);
    std::size_t at = 0;
    for (const Span& span : spans) {
      ASSERT_LE(at, span.begin) << pattern;
      ASSERT_LE(span.begin, span.end) << pattern;
      ASSERT_LE(span.end, text.size()) << pattern;
      at = span.end;
    }
  }
  EXPECT_GT(compiled, 300);
}

}  // namespace
}  // namespace colibri

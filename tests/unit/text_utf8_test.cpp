// UTF-8 in and out: reading sequences, the stream that holds back half characters, normalisation.
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <memory>

#include "text/normalizer.h"
#include "text_test_util.h"

namespace colibri {
namespace {

using namespace text_test;

TEST(Utf8, ReadsEveryScalarValue) {
  for (std::uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Unit unit = read_utf8(text + "x");
    ASSERT_EQ(unit.status, Utf8Status::kValid) << c;
    ASSERT_EQ(unit.length, text.size()) << c;
    ASSERT_EQ(unit.code_point, c);
    for (std::size_t length = 1; length < text.size(); ++length) {
      ASSERT_EQ(read_utf8(std::string_view(text).substr(0, length)).status, Utf8Status::kIncomplete) << c;
    }
  }
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndLargeValues) {
  for (const std::string_view bad :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x82", "\xF0\x9F\x98"}) {
    EXPECT_EQ(valid_utf8_prefix(bad), 0U);
    EXPECT_EQ(invalid_utf8_prefix(bad), bad.size());
  }
}

std::string stream(std::string_view bytes, const std::vector<std::size_t>& cuts) {
  Utf8Stream stream;
  std::string out;
  std::size_t at = 0;
  for (const std::size_t cut : cuts) {
    const std::string shown = stream.push(bytes.substr(at, cut - at));
    EXPECT_EQ(valid_utf8_prefix(shown), shown.size());
    out += shown;
    at = cut;
  }
  out += stream.push(bytes.substr(at));
  return out + stream.finish();
}

TEST(Utf8Stream, ReplacesWhatIsNoCharacter) {
  EXPECT_EQ(stream("ok", {}), "ok");
  EXPECT_EQ(stream("a\xFF"
                   "b",
                   {}),
            "a\uFFFDb");
  EXPECT_EQ(stream("\xF0\x9F\x98\x80", {1, 2, 3}), "\U0001F600");
  EXPECT_EQ(stream("\xF0\x9F\x98", {1, 2}), "\uFFFD");  // cut short: one replacement
  EXPECT_EQ(stream("\xF0\x9F\x98"
                   "a",
                   {1, 2}),
            "\uFFFD"
            "a");
  EXPECT_EQ(stream("\xED\xA0\x80", {}), "\uFFFD\uFFFD\uFFFD");  // a surrogate's bytes begin nothing
}

TEST(Utf8Stream, HoldsBackNoMoreThanItMust) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xE4\xB8"), "a");
  EXPECT_EQ(stream.push("\xAD"
                        "b\xF0"),
            "\u4E2D"
            "b");
  EXPECT_EQ(stream.push("c"),
            "\uFFFD"
            "c");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, CutsDoNotMatterAndTextIsAlwaysValid) {
  Random random(5);
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = below(random, 2) == 0 ? random_bytes(random, below(random, 30)) : random_text(random, below(random, 12));
    if (below(random, 2) == 0 && !bytes.empty()) bytes[below(random, bytes.size())] = static_cast<char>(random());
    std::vector<std::size_t> cuts;
    for (std::size_t i = 0; i <= bytes.size(); ++i) {
      if (below(random, 3) == 0) cuts.push_back(i);
    }
    const std::string whole = stream(bytes, {});
    EXPECT_EQ(stream(bytes, cuts), whole);
    EXPECT_EQ(valid_utf8_prefix(whole), whole.size());
    EXPECT_TRUE(whole == bytes || valid_utf8_prefix(bytes) < bytes.size());
  }
}

TEST(Normalizer, EqualsUtf8procOnOrdinaryText) {
  Random random(6);
  for (int round = 0; round < 3000; ++round) {
    std::string text = random_text(random, below(random, 20));
    for (std::size_t marks = below(random, 6); marks > 0; --marks)
      append_utf8(text, 0x300 + static_cast<std::uint32_t>(below(random, 0x70)));
    utf8proc_uint8_t* composed = nullptr;
    // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): the library's enum is a set of flags
    constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                                 static_cast<utf8proc_ssize_t>(text.size()), &composed, kCompose);
    ASSERT_GE(length, 0);
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> guard(composed, &std::free);
    EXPECT_EQ(normalize_nfc(text), std::string(reinterpret_cast<const char*>(composed), static_cast<std::size_t>(length)));
  }
  EXPECT_EQ(normalize_nfc("e\u0301 \u1100\u1161"), "\u00E9 \uAC00");
}

// Two classes of marks in turn, the worst order for a sort by neighbours.
TEST(Normalizer, LongRunsOfMarksTakeLinearTime) {
  std::string text = "a", sorted = "\u1EA1";  // a with the first dot below composed
  constexpr int kPairs = 300'000;
  for (int i = 0; i < kPairs; ++i) text += "\u0301\u0323";
  for (int i = 1; i < kPairs; ++i) sorted += "\u0323";
  for (int i = 0; i < kPairs; ++i) sorted += "\u0301";
  EXPECT_EQ(normalize_nfc(text), sorted);
}

}  // namespace
}  // namespace colibri

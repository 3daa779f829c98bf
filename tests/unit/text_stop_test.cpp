// When an answer ends.
#include <gtest/gtest.h>

#include "text/stop.h"
#include "text_test_util.h"

namespace colibri {
namespace {

using namespace text_test;

TEST(StopIds, HoldsWhatWasAdded) {
  StopIds stops;
  EXPECT_FALSE(stops.contains(0));
  stops.add(Ids{5, 1, 5});
  stops.add(Ids{3});
  for (const std::int32_t id : {1, 3, 5}) EXPECT_TRUE(stops.contains(id));
  for (const std::int32_t id : {0, 2, 4, 6}) EXPECT_FALSE(stops.contains(id));
}

TEST(StopTexts, HoldsBackWhatMayBeAStop) {
  StopTexts stops({"\nUser:", "END"});
  EXPECT_EQ(stops.push("one\n").text, "one");
  EXPECT_EQ(stops.push("U").text, "");
  EXPECT_EQ(stops.push("x E").text, "\nUx ");
  const StopTexts::Step step = stops.push("ND more");
  EXPECT_EQ(step.text, "");
  EXPECT_TRUE(step.stopped);
  EXPECT_TRUE(stops.push("more").stopped);
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopTexts, GivesTheRestAtTheEnd) {
  StopTexts stops({"", "abc"});
  EXPECT_EQ(stops.push("xab").text, "x");
  EXPECT_EQ(stops.finish(), "ab");
  StopTexts none({});
  EXPECT_EQ(none.push("xab").text, "xab");
}

TEST(StopTexts, TheFirstToBeCompleteCounts) {
  StopTexts stops({"abcd", "bc", "c"});
  EXPECT_EQ(stops.push("xabcd").text, "xa");
}

TEST(StopTexts, CutsDoNotMatter) {
  Random random(31);
  for (int round = 0; round < 3000; ++round) {
    const auto word = [&](std::size_t length) {
      std::string out;
      for (; length > 0; --length) out += "ab"[below(random, 2)];
      return out;
    };
    std::vector<std::string> texts;
    for (std::size_t n = below(random, 4); n > 0; --n) texts.push_back(word(2 + below(random, 5)));
    const std::string text = word(below(random, 25));

    // Letter by letter without holding back: the first place where a stop is complete.
    std::string wanted = text;
    bool stopped = false;
    for (std::size_t end = 1; end <= text.size() && !stopped; ++end) {
      for (const std::string& stop : texts) {
        if (!std::string_view(text).substr(0, end).ends_with(stop)) continue;
        stopped = true;
        if (end - stop.size() < wanted.size()) wanted = text.substr(0, end - stop.size());
      }
    }
    StopTexts stops(texts);
    std::string shown;
    bool ended = false;
    for (std::size_t at = 0; at < text.size() && !ended;) {
      const std::size_t length = 1 + below(random, 6);
      const StopTexts::Step step = stops.push(std::string_view(text).substr(at, length));
      shown += step.text;
      ended = step.stopped;
      at += length;
      ASSERT_TRUE(wanted.starts_with(shown));
    }
    shown += stops.finish();
    EXPECT_EQ(ended, stopped);
    EXPECT_EQ(shown, wanted);
  }
}

}  // namespace
}  // namespace colibri

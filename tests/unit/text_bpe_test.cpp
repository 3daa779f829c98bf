// Merging against the rule taken literally.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "text/bpe.h"
#include "text_test_util.h"

namespace colibri {
namespace {

using namespace text_test;

std::array<std::int32_t, 256> byte_ids() {
  std::array<std::int32_t, 256> ids{};
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  return ids;
}

// Again and again the first of the earliest merges.
Ids by_the_rule(std::string_view piece, const std::vector<Bpe::Merge>& merges) {
  Ids ids;
  for (const char c : piece) ids.push_back(static_cast<unsigned char>(c));
  for (bool merged = true; merged;) {
    merged = false;
    for (const Bpe::Merge& merge : merges) {
      for (std::size_t i = 0; i + 1 < ids.size() && !merged; ++i) {
        if (ids[i] != merge.left || ids[i + 1] != merge.right) continue;
        ids[i] = merge.result;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        merged = true;
      }
      if (merged) break;
    }
  }
  return ids;
}

TEST(Bpe, EqualsTheRuleTakenLiterally) {
  Random random(3);
  for (int round = 0; round < 60; ++round) {
    // Random merges over three letters and what came of earlier ones; a pair may come again.
    Ids known = {'a', 'b', 'c'};
    std::vector<Bpe::Merge> merges;
    std::map<std::pair<std::int32_t, std::int32_t>, bool> seen;
    for (std::int32_t id = 256; merges.size() < 25; ++id) {
      const Bpe::Merge merge{known[below(random, known.size())], known[below(random, known.size())], id};
      if (!seen.emplace(std::pair(merge.left, merge.right), true).second) continue;
      merges.push_back(merge);
      known.push_back(id);
    }
    const Bpe bpe(byte_ids(), merges);
    for (int i = 0; i < 40; ++i) {
      std::string piece;
      for (std::size_t length = below(random, i % 2 == 0 ? 33 : 120); length > 0; --length) piece += "abcd"[below(random, 4)];
      Ids ids = {7};
      bpe.encode(piece, ids);
      EXPECT_EQ(ids.front(), 7);
      ids.erase(ids.begin());
      EXPECT_EQ(ids, by_the_rule(piece, merges)) << piece;
    }
  }
}

TEST(Bpe, HasNoMergesWithoutAny) {
  const Bpe bpe(byte_ids(), {});
  Ids ids;
  bpe.encode(std::string_view("\0\xFFz", 3), ids);
  EXPECT_EQ(ids, (Ids{0, 255, 'z'}));
  bpe.encode("", ids);
  EXPECT_EQ(ids.size(), 3U);
}

TEST(Bpe, OfTwoMergesOfOnePairTheLastCounts) {
  const Bpe bpe(byte_ids(), {{'a', 'b', 256}, {'b', 'c', 257}, {'a', 'b', 258}});
  Ids ids;
  bpe.encode("abc", ids);
  EXPECT_EQ(ids, (Ids{'a', 257}));
  ids.clear();
  bpe.encode("ab", ids);
  EXPECT_EQ(ids, (Ids{258}));
}

// Every merge of one long letter: 2^22 letters become 2^22 / 2^6 tokens through six rounds of merging.
TEST(Bpe, LongPiecesOfOneLetterTakeLinearTime) {
  std::vector<Bpe::Merge> merges;
  for (std::int32_t i = 0, id = 'a'; i < 6; ++i, id = 255 + i) merges.push_back({id, id, 256 + i});
  const Bpe bpe(byte_ids(), merges);
  Ids ids;
  bpe.encode(std::string((std::size_t{1} << 22) + 3, 'a'), ids);
  Ids wanted(std::size_t{1} << 16, 261);
  wanted.insert(wanted.end(), {256, 'a'});
  EXPECT_EQ(ids, wanted);
}

TEST(ByteAlphabet, SpellsEveryByte) {
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(bytes_of_alphabet(alphabet_of_byte(static_cast<std::uint8_t>(byte))), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(alphabet_of_byte(' '), "\u0120");
  EXPECT_EQ(alphabet_of_byte('\n'), "\u010A");
  EXPECT_EQ(alphabet_of_byte(0xAD), "\u0143");
  EXPECT_FALSE(bytes_of_alphabet("a b"));
  EXPECT_FALSE(bytes_of_alphabet("\u4E2D"));
}

}  // namespace
}  // namespace colibri

// Rows of a step: what may be made, and what is refused.
#include <gtest/gtest.h>

#include <type_traits>

#include "model/step.h"

namespace colibri {
namespace {

KvCache cache_of(std::int64_t positions) {
  ModelConfig config;
  config.mla.kv_lora_rank = 8;
  config.mla.qk_rope_head_dim = 4;
  return KvCache(config, {false}, positions);
}

template <class T>
std::string error_of(const Result<T>& result) {
  return result ? "made" : result.error().message;
}

// Code that relies on neighbours takes ContiguousRows, and rows of several sequences do not pass for them.
static_assert(std::is_convertible_v<const ContiguousRows&, AnyRows> && std::is_convertible_v<const RaggedRows&, AnyRows>);
static_assert(!std::is_convertible_v<const RaggedRows&, ContiguousRows> &&
              !std::is_convertible_v<const AnyRows&, ContiguousRows>);

TEST(Step, ContiguousRowsStandInsideTheirCache) {
  KvCache cache = cache_of(16);
  const auto all = ContiguousRows::make(cache, 0, 16);
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->end(), 16);
  EXPECT_TRUE(ContiguousRows::make(cache, 15, 1));
  EXPECT_NE(error_of(ContiguousRows::make(cache, 15, 2)).find("2 rows from position 15"), std::string::npos);
  EXPECT_NE(error_of(ContiguousRows::make(cache, 15, 2)).find("positions 0 to 15"), std::string::npos);
  EXPECT_NE(error_of(ContiguousRows::make(cache, 16, 1)).find("do not fit"), std::string::npos);
  EXPECT_NE(error_of(ContiguousRows::make(cache, -1, 2)).find("from position -1"), std::string::npos);
  EXPECT_NE(error_of(ContiguousRows::make(cache, 3, 0)).find("found 0"), std::string::npos);
  EXPECT_NE(error_of(ContiguousRows::make(cache, 3, INT64_MAX)).find("do not fit"), std::string::npos);
}

TEST(Step, RaggedRowsHaveEachSequenceOnce) {
  KvCache a = cache_of(16), b = cache_of(4);
  const ContiguousRows of_a = ContiguousRows::make(a, 9, 2).value(), of_b = ContiguousRows::make(b, 0, 3).value(),
                       again = ContiguousRows::make(a, 12, 1).value();
  const auto both = RaggedRows::make({of_a, of_b});
  ASSERT_TRUE(both) << both.error().message;
  const AnyRows view = *both;
  EXPECT_EQ(view.count(), 5);
  ASSERT_EQ(view.sequences().size(), 2u);
  EXPECT_EQ(&view.sequences()[1].cache(), &b);
  EXPECT_EQ(AnyRows(of_a).count(), 2);
  EXPECT_NE(error_of(RaggedRows::make({of_a, of_b, again})).find("0 and 2 are the same one"), std::string::npos);
  EXPECT_NE(error_of(RaggedRows::make({})).find("found none"), std::string::npos);
}

}  // namespace
}  // namespace colibri

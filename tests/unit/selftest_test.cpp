// What `coli selftest` counts: its checks are worth something only if a single wrong bit shows.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "selftest/checks.h"

namespace colibri::selftest {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(Compared, EveryWrongBitCounts) {
  const std::vector<float> expected = {1.0f, 0.0f, -2.5f, kNaN, kNaN, 7.0f};
  std::vector<float> found = {1.0f, -0.0f, std::nextafter(-2.5f, 0.0f), -kNaN, 1.0f, kNaN};
  Compared compared;
  compared.add(found, expected);
  EXPECT_EQ(compared.values, 6);
  EXPECT_EQ(compared.differing, 4);  // the zero's sign, one last place, a number for a NaN and a NaN for a number
  compared.add(std::span<const std::int32_t>(std::vector<std::int32_t>{3, 5}), {3, 4});
  EXPECT_EQ(compared.values, 8);
  EXPECT_EQ(compared.differing, 5);
}

TEST(Checks, HaveDifferentNames) {
  std::set<std::string> names;
  for (const Check& check : all_checks()) EXPECT_TRUE(names.insert(check.name).second) << check.name;
}

}  // namespace
}  // namespace colibri::selftest

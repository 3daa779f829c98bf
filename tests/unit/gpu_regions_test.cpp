#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/kernel_set.h"
#include "gpu/region_table.h"

namespace colibri::gpu {
namespace {

const std::byte* at(std::uintptr_t p) { return reinterpret_cast<const std::byte*>(p); }
constexpr std::uint64_t kPage = kRegionAlignment, kLongest = 100 * kPage;

TEST(RegionTable, FindsTheAddressOfEveryByteAndOfNoOther) {
  RegionTable table;
  table.add(at(40 * kPage), 2 * kPage, 7'000'000);
  table.add(at(10 * kPage), kPage, 1'000'000);
  EXPECT_EQ(table.address(at(10 * kPage - 1)), 0u);
  EXPECT_EQ(table.address(at(10 * kPage)), 1'000'000u);
  EXPECT_EQ(table.address(at(11 * kPage - 1)), 1'000'000u + kPage - 1);
  EXPECT_EQ(table.address(at(11 * kPage)), 0u);
  EXPECT_EQ(table.address(at(42 * kPage - 1)), 7'000'000u + 2 * kPage - 1);
  EXPECT_EQ(table.address(at(42 * kPage)), 0u);
  EXPECT_EQ(table.total_bytes(), 3 * kPage);
  EXPECT_TRUE(table.remove(at(10 * kPage)));
  EXPECT_FALSE(table.remove(at(10 * kPage)));
  EXPECT_EQ(table.address(at(10 * kPage)), 0u);
}

TEST(RegionTable, RefusesWhatADeviceCannotUse) {
  RegionTable table;
  table.add(at(10 * kPage), 4 * kPage, 1);
  EXPECT_TRUE(table.check(at(14 * kPage), kPage, kLongest));
  EXPECT_TRUE(table.check(at(9 * kPage), kPage, kLongest));
  EXPECT_FALSE(table.check(at(20 * kPage), 0, kLongest));
  EXPECT_FALSE(table.check(at(20 * kPage + 64), kPage, kLongest));
  EXPECT_FALSE(table.check(at(20 * kPage), kPage + 64, kLongest));
  EXPECT_FALSE(table.check(at(20 * kPage), kLongest + kPage, kLongest));
  for (const std::uint64_t first : {9u, 10u, 11u, 13u})
    EXPECT_FALSE(table.check(at(first * kPage), 2 * kPage, kLongest)) << first;
}

TEST(KernelFiles, AreWholeTexts) {
  ASSERT_FALSE(kernel_files().empty());
  for (const KernelFile& file : kernel_files()) {
    EXPECT_NE(file.text.find("#pragma METAL fp contract(off)"), std::string_view::npos) << file.name;
    EXPECT_EQ(file.text.find("#include \""), std::string_view::npos) << file.name;
    EXPECT_NE(file.text.find("kernel void"), std::string_view::npos) << file.name;
  }
}

}  // namespace
}  // namespace colibri::gpu

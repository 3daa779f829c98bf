// Small files written and read back.
#include <gtest/gtest.h>

#include <limits>

#include "format_test_util.h"

namespace colibri {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the helpers of this room's tests

TEST(RoundTrip, TensorsMetadataAndBits) {
  TempDir dir;
  const std::vector<NamedTensor> tensors = {
      blob("a.blob", {1, 2, 3}),
      f32("logits", {2, 3}, {1.5f, -0.0f, std::numeric_limits<float>::infinity(), 1e-45f, 3e38f, -7}),
      {"half", DType::kF16, {2}, bytes_of(std::vector<std::uint16_t>{0x3c00, 0xc000})},
      {"bf", DType::kBF16, {1, 2}, bytes_of(std::vector<std::uint16_t>{0x3f80, 0xc000})},
      {"ids", DType::kI64, {3}, bytes_of(std::vector<std::int64_t>{0, -1, 154880})},
      {"ids32", DType::kI32, {2}, bytes_of(std::vector<std::int32_t>{7, std::numeric_limits<std::int32_t>::min()})},
      {"empty", DType::kF32, {0, 5}, {}},
      f32("scalar", {}, {42}),
      f32("na\"me\n\xc3\xa9", {1}, {1})};
  const auto path = dir / "dump.safetensors";
  const auto written = write_safetensors(path, tensors, {{"tool", "test \"1\""}, {"format", "pt"}});
  ASSERT_TRUE(written) << written.error().message;
  const auto read = read_safetensors(path);
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->size(), tensors.size());
  for (const NamedTensor& t : tensors) {
    ASSERT_TRUE(read->contains(t.name)) << t.name;
    const NamedTensor& r = read->at(t.name);
    EXPECT_EQ(r.name, t.name);
    EXPECT_EQ(r.dtype, t.dtype);
    EXPECT_EQ(r.shape, t.shape);
    EXPECT_EQ(r.bytes, t.bytes);
  }
  EXPECT_EQ(read->at("half").floats(), (std::vector<float>{1, -2}));
  EXPECT_EQ(read->at("bf").floats(), (std::vector<float>{1, -2}));
  EXPECT_EQ(read->at("ids").ints(), (std::vector<std::int32_t>{0, -1, 154880}));
  EXPECT_EQ(read->at("ids32").ints(), (std::vector<std::int32_t>{7, std::numeric_limits<std::int32_t>::min()}));
  EXPECT_EQ(read->at("logits").count(), 6);
  EXPECT_EQ(read->at("scalar").count(), 1);
  EXPECT_EQ(read->at("empty").count(), 0);
  EXPECT_TRUE(read->at("ids").floats().empty());
  EXPECT_TRUE(read->at("logits").ints().empty());

  const std::string file = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const auto header = parse_safetensors_header(std::span(file).subspan(8, length), file.size(), 0);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"tool", "test \"1\""}, {"format", "pt"}}));
  for (const TensorInfo& t : header->tensors) EXPECT_EQ(t.range.offset % dtype_bytes(t.dtype), 0u) << t.name;
}

TEST(RoundTrip, IntsThatNeedMoreThan32Bits) {
  const NamedTensor wide{"w", DType::kI64, {2}, bytes_of(std::vector<std::int64_t>{1, std::int64_t{1} << 31})};
  EXPECT_TRUE(wide.ints().empty());
}

TEST(RoundTrip, NoTensorsAtAll) {
  TempDir dir;
  ASSERT_TRUE(write_safetensors(dir / "none.safetensors", {}));
  const auto read = read_safetensors(dir / "none.safetensors");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(read->empty());
}

TEST(Write, ReplacesTheOldFileAndLeavesNothingElse) {
  TempDir dir;
  const auto path = dir / "x.safetensors";
  ASSERT_TRUE(write_safetensors(path, std::vector{f32("a", {1}, {1})}));
  ASSERT_TRUE(write_safetensors(path, std::vector{f32("b", {1}, {2})}));
  EXPECT_TRUE(read_safetensors(path)->contains("b"));
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir.path())) ++files;
  EXPECT_EQ(files, 1u);
}

TEST(Write, RefusesWhatWouldNotRead) {
  TempDir dir;
  const auto path = dir / "x.safetensors";
  ASSERT_TRUE(write_safetensors(path, std::vector{f32("old", {1}, {1})}));
  NamedTensor wrong = f32("wrong", {3}, {1, 2});
  expect_error(write_safetensors(path, std::span(&wrong, 1)), {"x.safetensors", "'wrong'", "12 bytes", "8"});
  wrong = f32("wrong", {-1}, {});
  expect_error(write_safetensors(path, std::span(&wrong, 1)), {"'wrong'", "[-1]"});
  wrong = f32("\xff", {1}, {1});
  expect_error(write_safetensors(path, std::span(&wrong, 1)), {"UTF-8"});
  expect_error(write_safetensors(path, std::vector{f32("twice", {1}, {1}), f32("twice", {1}, {2})}),
               {"x.safetensors", "'twice'"});
  EXPECT_TRUE(read_safetensors(path)->contains("old"));
  expect_error(write_safetensors(dir / "no" / "x.safetensors", {}), {"x.safetensors", "temporary"});
}

TEST(Read, ErrorsNameTheFile) {
  TempDir dir;
  expect_error(read_safetensors(dir / "gone.safetensors"), {"gone.safetensors", "cannot be opened"});
  write_file(dir / "short.safetensors", "123");
  expect_error(read_safetensors(dir / "short.safetensors"), {"short.safetensors", "3 bytes"});
}

}  // namespace
}  // namespace colibri

// Checkpoints written by the test and read back: every format and dtype, shapes that fit several formats, stamps.
#include <gtest/gtest.h>

#include <bit>
#include <thread>
#include <tuple>

#include "format/blob_format.h"
#include "format_test_util.h"

namespace colibri {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the helpers of this room's tests

using Row = std::vector<float>;

void write(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
           const std::map<std::string, std::string>& metadata = {}) {
  const auto written = write_safetensors(path, tensors, metadata);
  ASSERT_TRUE(written) << written.error().message;
}

struct BlobCase {
  WeightFormat format;
  std::int32_t group;
  std::int64_t rows, cols;
};
class BlobContainer : public testing::TestWithParam<BlobCase> {};

TEST_P(BlobContainer, ReadsBackTheRealWeights) {
  const auto [format, group, rows, cols] = GetParam();
  TempDir dir;
  Random random(7);
  const PackedMatrix packed = pack(format, rows, cols, group ? group : cols, random);
  // An odd blob before it, so that the data starts at no multiple of anything.
  write(dir / "out-00001.safetensors", {blob("a", {1, 2, 3}), blob("w", packed.bytes), scales("w", packed.scales)});
  const Checkpoint checkpoint = open_folder(dir.path());
  const auto source = checkpoint.find_matrix("w", rows, cols);
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ(source->matrix.format, format);
  EXPECT_EQ(source->matrix.group, group);
  EXPECT_EQ(source->matrix.data, nullptr);
  const LoadedMatrix loaded = load(checkpoint, *source);
  EXPECT_EQ(loaded.weights(), packed.weights);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(loaded.matrix.data) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(loaded.matrix.scales) % 64, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, BlobContainer,
    testing::Values(BlobCase{WeightFormat::kInt8Row, 0, 6, 33}, BlobCase{WeightFormat::kInt8Row, 0, 1, 1},
                    BlobCase{WeightFormat::kInt4Row, 0, 5, 301}, BlobCase{WeightFormat::kInt2Row, 0, 7, 130},
                    BlobCase{WeightFormat::kInt3G64, 64, 4, 384}, BlobCase{WeightFormat::kInt3G64, 64, 3, 200},
                    BlobCase{WeightFormat::kInt4Grouped, 16, 3, 640}, BlobCase{WeightFormat::kInt4Grouped, 32, 3, 641},
                    BlobCase{WeightFormat::kInt4Grouped, 48, 3, 640}, BlobCase{WeightFormat::kInt4Grouped, 64, 3, 639},
                    BlobCase{WeightFormat::kInt4Grouped, 96, 3, 640}, BlobCase{WeightFormat::kInt4Grouped, 128, 3, 641},
                    BlobCase{WeightFormat::kInt4Grouped, 192, 3, 640}, BlobCase{WeightFormat::kInt4Grouped, 256, 3, 1024}),
    [](const auto& test) {
      std::string name = std::string(format_name(test.param.format)) + "_g" + std::to_string(test.param.group) + "_" +
                         std::to_string(test.param.cols);
      std::erase(name, '-');
      return name;
    });

TEST(BlobContainerFp8, ReadsByteBlobsWithBlockScales) {
  TempDir dir;
  Random random(3);
  const std::int64_t rows = 130, cols = 260;
  std::vector<std::uint8_t> bytes;
  for (std::int64_t i = 0; i < rows * cols; ++i) bytes.push_back(static_cast<std::uint8_t>(random.between(0, 0x7e)));
  Row values;
  for (int i = 0; i < 2 * 3; ++i) values.push_back(random.scale());
  write(dir / "m.safetensors", {blob("w", bytes), scales("w", values)});
  const Checkpoint checkpoint = open_folder(dir.path());
  const auto source = checkpoint.find_matrix("w", rows, cols);
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ(source->matrix.format, WeightFormat::kF8Block128);
  const Row weights = load(checkpoint, *source).weights();
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const std::int64_t o = i / cols, k = i % cols;
    ASSERT_EQ(weights[static_cast<std::size_t>(i)],
              f32_from_e4m3(bytes[static_cast<std::size_t>(i)]) * values[static_cast<std::size_t>(o / 128 * 3 + k / 128)]);
  }
}

// ---- shapes that fit more than one format

struct Ambiguous {
  const char* what;
  std::int64_t rows, cols;
  std::uint64_t blob, scale_bytes;
  WeightFormat format;
  std::int32_t group;
  const char* also;  // in the remark; empty: no remark
};

TEST(Inference, OrderOfRulesAndRemarks) {
  const Ambiguous kCases[] = {
      {"64 before 96", 4, 128, 256, 4 * 4 * 2, WeightFormat::kInt4Grouped, 64, "96 columns"},
      {"64 before 48", 4, 96, 192, 4 * 4 * 2, WeightFormat::kInt4Grouped, 64, "48 columns"},
      {"128 before 96 and 192", 4, 192, 384, 4 * 4 * 2, WeightFormat::kInt4Grouped, 128, "96 columns"},
      {"64 alone", 4, 6144, 4 * 3072, 4 * 4 * 96, WeightFormat::kInt4Grouped, 64, ""},
      {"16 alone", 4, 6144, 4 * 3072, 4 * 4 * 384, WeightFormat::kInt4Grouped, 16, ""},
      {"one group is a row", 4, 64, 128, 4 * 4, WeightFormat::kInt4Row, 0, ""},
      {"int8 before fp8", 6144, 16384, 6144ull * 16384, 4 * 6144, WeightFormat::kInt8Row, 0, "fp8-b128"},
      {"one row of one block", 1, 128, 128, 4, WeightFormat::kInt8Row, 0, "fp8-b128"},
      {"fp8 alone", 256, 256, 65536, 4 * 4, WeightFormat::kF8Block128, 128, ""},
      {"int4 before int3", 2, 48, 48, 8, WeightFormat::kInt4Row, 0, "int3-g64"},
      {"int8 before int3", 2, 24, 48, 8, WeightFormat::kInt8Row, 0, "int3-g64"},
      {"int8 before int4 and int2", 3, 1, 3, 12, WeightFormat::kInt8Row, 0, "int2-row"},
  };
  for (const Ambiguous& c : kCases) {
    const auto found = infer_blob_format(c.rows, c.cols, c.blob, c.scale_bytes, {});
    ASSERT_TRUE(found) << c.what << ": " << found.error().message;
    EXPECT_EQ(found->format, c.format) << c.what;
    EXPECT_EQ(found->group, c.group) << c.what;
    if (*c.also)
      EXPECT_NE(found->ambiguity.find(c.also), std::string::npos) << c.what << ": " << found->ambiguity;
    else
      EXPECT_EQ(found->ambiguity, "") << c.what;
  }
}

TEST(Inference, FormatsThatCannotBeReadAreNamed) {
  expect_error(infer_blob_format(4, 512, 4 * 2 * 98, 4, {}), {"e8-iq3-lattice"});
  expect_error(infer_blob_format(1, 98, 98, 4, {}), {"e8-iq3-lattice"});  // also int8-row: refused without a stamp
  expect_error(infer_blob_format(4, 512, 700, 4, "int4-rans256-g0"), {"int4-rans256-g0"});
  expect_error(infer_blob_format(4, 64, 128, 8, "mxfp4"), {"mxfp4"});
  const auto stamped = infer_blob_format(1, 98, 98, 4, "int8-row");
  ASSERT_TRUE(stamped) << stamped.error().message;
  EXPECT_EQ(stamped->format, WeightFormat::kInt8Row);
}

TEST(Inference, BytesThatFitNothingListWhatWould) {
  expect_error(infer_blob_format(4, 64, 130, 16, {}), {"130 bytes", "16 bytes", "[4, 64]", "int8-row 256 + 16",
                                                       "int4-row 128 + 16", "int2-row 64 + 16", "int3-g64 96 + 16"});
  expect_error(infer_blob_format(4, 64, 128, 20, {}), {"20 bytes of scales"});  // int4 bytes, scales of no group size
}

TEST(Inference, StampDecidesAndIsChecked) {
  EXPECT_EQ(infer_blob_format(6144, 16384, 6144ull * 16384, 4 * 6144, "fp8-e4m3-b128")->format, WeightFormat::kF8Block128);
  EXPECT_EQ(infer_blob_format(2, 48, 48, 8, "int3-g64")->format, WeightFormat::kInt3G64);
  EXPECT_EQ(infer_blob_format(4, 128, 256, 32, "int4-grouped")->group, 64);
  expect_error(infer_blob_format(4, 64, 128, 16, "int8-row"), {"int8-row", "int4-row"});
  expect_error(infer_blob_format(4, 64, 128, 16, "something"), {"something"});
}

TEST(Container, RemarksAreKeptOncePerKind) {
  TempDir dir;
  Random random(1);
  const PackedMatrix p = pack(WeightFormat::kInt4Grouped, 2, 128, 64, random);
  write(dir / "m.safetensors", {blob("a", p.bytes), scales("a", p.scales), blob("b", p.bytes), scales("b", p.scales)});
  const Checkpoint checkpoint = open_folder(dir.path());
  EXPECT_TRUE(checkpoint.notices().empty());
  for (const char* name : {"a", "b", "a"}) ASSERT_TRUE(checkpoint.find_matrix(name, 2, 128));
  const auto notices = checkpoint.notices();
  ASSERT_EQ(notices.size(), 1u);
  for (const char* part : {"[2, 128]", "64 columns", "96 columns", "'a'", "m.safetensors"})
    EXPECT_NE(notices[0].find(part), std::string::npos) << notices[0];
}

// ---- stamps

TEST(Stamp, DecidesBetweenReadings) {
  TempDir dir;
  const std::vector<std::uint8_t> ones(128, 0x38);
  write(dir / "m.safetensors", {blob("w", ones), scales("w", {0.5f})}, {{"colibri.fmt", R"({"w":"fp8-e4m3-b128"})"}});
  const Checkpoint checkpoint = open_folder(dir.path());
  const auto source = checkpoint.find_matrix("w", 1, 128);
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ(load(checkpoint, *source).weights(), Row(128, 0.5f));
  EXPECT_TRUE(checkpoint.notices().empty());
}

TEST(Stamp, DisagreementWithTheBytesIsRefused) {
  TempDir dir;
  write(dir / "m.safetensors",
        {blob("w", std::vector<std::uint8_t>(4 * 64)), scales("w", Row(4, 1.0f)), f32("x", {1, 2}, {1, 2})},
        {{"colibri.fmt", R"({"w":"int4-row","x":"int8-row"})"}});
  const Checkpoint checkpoint = open_folder(dir.path());
  expect_error(checkpoint.find_matrix("w", 4, 64), {"m.safetensors", "'w'", "int4-row", "int8-row"});
  expect_error(checkpoint.find_matrix("x", 1, 2), {"m.safetensors", "'x'", "int8-row", "F32"});
}

TEST(Stamp, ConflictBetweenShardsIsRefusedAndAgreementIsNot) {
  TempDir dir;
  write(dir / "a.safetensors", {blob("w", {1})}, {{"colibri.fmt", R"({"w":"int4-row"})"}});
  write(dir / "b.safetensors", {scales("w", {1})}, {{"colibri.fmt", R"({"w":"int4-row"})"}});
  EXPECT_TRUE(Checkpoint::open(dir.path()));
  write(dir / "b.safetensors", {scales("w", {1})}, {{"colibri.fmt", R"({"w":"int8-row"})"}});
  expect_error(Checkpoint::open(dir.path()), {"a.safetensors", "b.safetensors", "'w'", "int4-row", "int8-row"});
}

TEST(Stamp, MustBeAFlatMapOfAtMost4096Texts) {
  TempDir dir;
  std::string many = "{";
  for (int i = 0; i < 4096; ++i) many += fmt::format("{}\"t{}\":\"int4-row\"", i ? "," : "", i);
  write(dir / "m.safetensors", {blob("w", {1})}, {{"colibri.fmt", many + "}"}});
  EXPECT_TRUE(Checkpoint::open(dir.path()));
  for (const std::string& text :
       {many + ",\"x\":\"int4-row\"}", std::string("[]"), std::string("{\"w\":1}"), std::string("{\"w\":{}}"),
        std::string("\"int4-row\""), std::string("{\"w\":\"a\",\"w\":\"b\"}"), std::string("{\"w\":"), std::string()}) {
    write(dir / "m.safetensors", {blob("w", {1})}, {{"colibri.fmt", text}});
    expect_error(Checkpoint::open(dir.path()), {"m.safetensors", "colibri.fmt"});
  }
}

// ---- Hugging Face tensors

template <class T>
std::vector<T> codes(std::int64_t count, Random& random, std::uint64_t low, std::uint64_t high) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<T>(random.between(static_cast<std::int64_t>(low), static_cast<std::int64_t>(high))));
  return values;
}

TEST(HuggingFace, FloatMatricesKeepTheirBits) {
  TempDir dir;
  Random random(5);
  const auto bf16 = codes<std::uint16_t>(3 * 37, random, 0x3c00, 0x4100);
  const auto f16 = codes<std::uint16_t>(3 * 37, random, 0x0000, 0x7bff);
  Row floats;
  for (int i = 0; i < 3 * 37; ++i) floats.push_back(random.scale());
  write(dir / "model.safetensors", {blob("odd", {1}),
                                    f32("f32", {3, 37}, floats),
                                    {"f16", DType::kF16, {3, 37}, bytes_of(f16)},
                                    {"bf16", DType::kBF16, {3, 37}, bytes_of(bf16)}});
  const Checkpoint checkpoint = open_folder(dir.path());
  Row expected_f16, expected_bf16;
  for (const auto code : f16) expected_f16.push_back(f32_from_f16(code));
  for (const auto code : bf16) expected_bf16.push_back(f32_from_bf16(code));
  const std::tuple<const char*, WeightFormat, Row> kCases[] = {{"f32", WeightFormat::kF32, floats},
                                                               {"f16", WeightFormat::kF16, expected_f16},
                                                               {"bf16", WeightFormat::kBF16, expected_bf16}};
  for (const auto& [name, format, expected] : kCases) {
    const auto source = checkpoint.find_matrix(name, 3, 37);
    ASSERT_TRUE(source) << source.error().message;
    EXPECT_EQ(source->matrix.format, format);
    EXPECT_EQ(source->scales.bytes, 0u);
    EXPECT_EQ(load(checkpoint, *source).weights(), expected) << name;
    const auto all = checkpoint.read_floats(name, 3 * 37);
    ASSERT_TRUE(all) << all.error().message;
    EXPECT_EQ(Row(all->span().begin(), all->span().end()), expected) << name;
  }
}

// 1.0 everywhere, so that the weights are the scales; BF16 scales are widened.
TEST(HuggingFace, Fp8WithInverseScalesInF32AndBf16) {
  TempDir dir;
  const std::int64_t rows = 257, cols = 129;
  const NamedTensor ones{
      "w", DType::kF8E4M3, {rows, cols}, std::vector<std::byte>(static_cast<std::size_t>(rows * cols), std::byte{0x38})};
  const Row values = {1, 2, 3, 4, 5, 6};
  const std::vector<std::uint16_t> narrow = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};
  for (const bool bf16 : {false, true}) {
    const NamedTensor scale =
        bf16 ? NamedTensor{"w_scale_inv", DType::kBF16, {3, 2}, bytes_of(narrow)} : f32("w_scale_inv", {3, 2}, values);
    write(dir / "model.safetensors", {ones, scale});
    const Checkpoint checkpoint = open_folder(dir.path());
    const auto source = checkpoint.find_matrix("w", rows, cols);
    ASSERT_TRUE(source) << source.error().message;
    EXPECT_EQ(source->matrix.format, WeightFormat::kF8Block128);
    EXPECT_EQ(source->scales_are_bf16, bf16);
    const Row weights = load(checkpoint, *source).weights();
    for (std::int64_t i = 0; i < rows * cols; ++i)
      ASSERT_EQ(weights[static_cast<std::size_t>(i)], values[static_cast<std::size_t>(i / cols / 128 * 2 + i % cols / 128)]) << i;
  }
}

TEST(HuggingFace, StackedExperts) {
  TempDir dir;
  Row values;
  for (int i = 0; i < 3 * 8 * 5; ++i) values.push_back(static_cast<float>(i));
  std::vector<std::uint16_t> bf16;
  for (const float value : values) bf16.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
  write(dir / "model.safetensors", {f32("f", {3, 8, 5}, values), {"b", DType::kBF16, {3, 8, 5}, bytes_of(bf16)}});
  const Checkpoint checkpoint = open_folder(dir.path());
  for (const char* name : {"f", "b"}) {
    const auto up = checkpoint.find_stacked(name, 3, 8, 5, 2, 4, 4);  // the second half of the last expert
    ASSERT_TRUE(up) << up.error().message;
    EXPECT_EQ(load(checkpoint, *up).weights(), Row(values.begin() + (2 * 8 + 4) * 5, values.end())) << name;
  }
  expect_error(checkpoint.find_stacked("f", 3, 8, 6, 0, 0, 1), {"model.safetensors", "'f'", "[3, 8, 5]", "[3, 8, 6]"});
  expect_error(checkpoint.find_stacked("f", 3, 8, 5, 3, 0, 1), {"item 3"});
  expect_error(checkpoint.find_stacked("f", 3, 8, 5, 0, 5, 4), {"rows 5 to 9"});
  expect_error(checkpoint.find_stacked("f", 3, 8, 5, -1, 0, 4), {"item -1"});
  expect_error(checkpoint.find_stacked("g", 3, 8, 5, 0, 0, 4), {"'g'", "[3, 8, 5]", "missing"});
}

// Gate and up of 192 rows each: the boundary lies inside a block of 128 rows.
TEST(HuggingFace, StackedFp8ExpertsStartInsideABlock) {
  TempDir dir;
  const std::int64_t items = 2, rows = 384, cols = 130;
  const NamedTensor ones{"w",
                         DType::kF8E4M3,
                         {items, rows, cols},
                         std::vector<std::byte>(static_cast<std::size_t>(items * rows * cols), std::byte{0x38})};
  Row values;
  for (int i = 0; i < 2 * 3 * 2; ++i) values.push_back(static_cast<float>(i + 1));
  write(dir / "model.safetensors", {ones, f32("w_scale_inv", {items, 3, 2}, values)});
  const Checkpoint checkpoint = open_folder(dir.path());
  for (const std::int64_t first : {0, 192, 100}) {
    const auto source = checkpoint.find_stacked("w", items, rows, cols, 1, first, 192);
    ASSERT_TRUE(source) << source.error().message;
    const LoadedMatrix loaded = load(checkpoint, *source);
    EXPECT_EQ(loaded.matrix.row_origin, first);
    const Row weights = loaded.weights();
    for (std::int64_t i = 0; i < 192 * cols; ++i)
      ASSERT_EQ(weights[static_cast<std::size_t>(i)],
                values[static_cast<std::size_t>(6 + (first + i / cols) / 128 * 2 + i % cols / 128)])
          << first << " " << i;
  }
}

TEST(Container, ReadsFromSeveralThreads) {
  TempDir dir;
  Random random(11);
  std::vector<NamedTensor> tensors;
  std::vector<PackedMatrix> packed;
  for (int i = 0; i < 8; ++i) {
    packed.push_back(pack(WeightFormat::kInt4Grouped, 64, 128, 64, random));
    tensors.push_back(blob("w" + std::to_string(i), packed.back().bytes));
    tensors.push_back(scales("w" + std::to_string(i), packed.back().scales));
  }
  write(dir / "m.safetensors", tensors);
  const Checkpoint checkpoint = open_folder(dir.path());
  std::vector<int> right(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < right.size(); ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 8 * 4; ++i) {
        const std::size_t which = (i + t) % 8;
        const auto source = checkpoint.find_matrix("w" + std::to_string(which), 64, 128);
        right[t] += source && load(checkpoint, *source).weights() == packed[which].weights;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(4, 32));
}

// A tensor that starts past 4 GiB of a sparse file.
TEST(Container, OffsetsPast32Bits) {
  TempDir dir;
  const std::uint64_t far = (5ull << 30) + 24;
  const std::string header = fmt::format(
      R"({{"pad":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}},"w":{{"dtype":"F32","shape":[1,2],"data_offsets":[{0},{1}]}}}})",
      far, far + 8);
  const std::filesystem::path path = dir / "big.safetensors";
  write_file(path, length_prefix(header.size()) + header);
  std::filesystem::resize_file(path, 8 + header.size() + far);
  std::ofstream(path, std::ios::binary | std::ios::app).write("\0\0\x80\x3f\0\0\0\x40", 8);
  const Checkpoint checkpoint = open_folder(dir.path());
  const auto source = checkpoint.find_matrix("w", 1, 2);
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ(source->data.offset, 8 + header.size() + far);
  EXPECT_EQ(load(checkpoint, *source).weights(), (Row{1, 2}));
}

}  // namespace
}  // namespace colibri

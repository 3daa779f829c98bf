// Damaged and malicious checkpoints: each kind gives an error that names shard and tensor, and never anything worse.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "format/matrix_block.h"
#include "format_test_util.h"

namespace colibri {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the helpers of this room's tests

Result<SafetensorsHeader> parse(std::string_view json, std::uint64_t data_bytes = 64) {
  return parse_safetensors_header(json, 8 + json.size() + data_bytes, 3);
}

std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
}

TEST(Header, AGoodOne) {
  const std::string json =
      R"({"__metadata__":{"format":"pt","note":"x"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
      R"("a":{"data_offsets":[0,8],"shape":[],"dtype":"I64"},"e":{"dtype":"F32","shape":[0,7],"data_offsets":[20,20]}}   )";
  const auto header = parse(json, 20);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->data_start, 8 + json.size());
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"note", "x"}}));
  ASSERT_EQ(header->tensors.size(), 3u);
  const TensorInfo& b = header->tensors[0];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, DType::kBF16);
  EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(b.range.shard, 3);
  EXPECT_EQ(b.range.offset, header->data_start + 8);
  EXPECT_EQ(b.range.bytes, 12u);
  EXPECT_TRUE(header->tensors[1].shape.empty());
  EXPECT_EQ(header->tensors[2].range.bytes, 0u);
  EXPECT_TRUE(parse("{}", 0));
}

TEST(Header, EveryDtypeByNameAndSize) {
  const std::tuple<const char*, DType, int> kTypes[] = {
      {"F32", DType::kF32, 4}, {"F16", DType::kF16, 2},   {"BF16", DType::kBF16, 2},     {"F8_E4M3", DType::kF8E4M3, 1},
      {"U8", DType::kU8, 1},   {"I8", DType::kI8, 1},     {"I32", DType::kI32, 4},       {"I64", DType::kI64, 8},
      {"U64", DType::kU64, 8}, {"BOOL", DType::kBool, 1}, {"F8_E8M0", DType::kF8E8M0, 1}};
  for (const auto& [name, type, bytes] : kTypes) {
    const auto header = parse(entry(name, "[3]", fmt::format("[0,{}]", 3 * bytes)));
    ASSERT_TRUE(header) << header.error().message;
    EXPECT_EQ(header->tensors[0].dtype, type);
    EXPECT_EQ(dtype_name(type), name);
    EXPECT_EQ(dtype_bytes(type), static_cast<std::size_t>(bytes));
  }
  for (const char* spelling : {"F8_E4M3FN", "F8_E4M3_FN"})
    EXPECT_EQ(parse(entry(spelling, "[3]", "[0,3]"))->tensors[0].dtype, DType::kF8E4M3);
  for (const char* unknown : {"F64", "F8_E5M2", "C64", "f32", "", "I16"})
    expect_error(parse(entry(unknown, "[1]", "[0,4]")), {"'w'", "dtype", unknown});
}

TEST(Header, OffsetsOutsideTheData) {
  expect_error(parse(entry("U8", "[65]", "[0,65]")), {"'w'", "[0, 65]", "64 bytes"});
  expect_error(parse(entry("U8", "[4]", "[64,68]")), {"'w'", "[64, 68]", "64 bytes"});
  expect_error(parse(entry("U8", "[4]", "[18446744073709551612,18446744073709551615]")), {"'w'", "18446744073709551612"});
  EXPECT_TRUE(parse(entry("U8", "[64]", "[0,64]")));
}

TEST(Header, OffsetsBackwards) { expect_error(parse(entry("U8", "[0]", "[8,4]")), {"'w'", "[8, 4]", "backwards"}); }

TEST(Header, SizeAndShapeDisagree) {
  expect_error(parse(entry("F32", "[2,3]", "[0,20]")), {"'w'", "F32 [2, 3]", "24 bytes", "20"});
  expect_error(parse(entry("U8", "[5]", "[0,4]")), {"'w'", "U8 [5]", "5 bytes", "4"});
  expect_error(parse(entry("F32", "[]", "[0,8]")), {"'w'", "4 bytes", "8"});
  expect_error(parse(entry("F32", "[0]", "[0,4]")), {"'w'", "0 bytes", "4"});
}

TEST(Header, ShapeProductsThatOverflow) {
  // Each product is 0 or small modulo 2^64.
  expect_error(parse(entry("F32", "[4611686018427387904]", "[0,0]")), {"'w'", "4611686018427387904", "too large"});
  expect_error(parse(entry("U8", "[4294967296,4294967296]", "[0,0]")), {"'w'", "too large"});
  expect_error(parse(entry("F16", "[6148914691236517206,3]", "[0,4]")), {"'w'", "too large"});
  expect_error(parse(entry("U8", "[18446744073709551615]", "[0,4]")), {"'w'", "18446744073709551615"});
  expect_error(parse(entry("U8", "[99999999999999999999]", "[0,4]")), {"'w'"});
  expect_error(parse(entry("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]")), {"'w'", "8 dimensions"});
}

TEST(Header, OverlapsNameBothTensors) {
  const auto two = [](std::string_view a, std::string_view b) {
    return parse(fmt::format(
        R"({{"x":{{"dtype":"U8","shape":[8],"data_offsets":{}}},"y":{{"dtype":"U8","shape":[8],"data_offsets":{}}}}})", a, b));
  };
  EXPECT_TRUE(two("[0,8]", "[8,16]"));
  EXPECT_TRUE(two("[40,48]", "[8,16]"));  // holes are harmless
  for (const auto& [a, b] : {std::pair("[0,8]", "[7,15]"), std::pair("[7,15]", "[0,8]"), std::pair("[0,8]", "[0,8]")})
    expect_error(two(a, b), {"'x'", "'y'", "overlap"});
}

TEST(Header, NegativeNumbersFloatsAndOtherTypesWhereIntegersBelong) {
  for (const char* value : {"-1", "1.0", "1e2", "-0", "\"1\"", "null", "true", "[1]", "{}"}) {
    expect_error(parse(entry("U8", fmt::format("[{}]", value), "[0,1]")), {"'w'", "shape"});
    expect_error(parse(entry("U8", "[1]", fmt::format("[0,{}]", value))), {"'w'", "data_offsets"});
  }
}

TEST(Header, WrongTypesOfEveryField) {
  for (const char* value : {"1", "null", "true", "{}", "[]"})
    expect_error(parse(fmt::format(R"({{"w":{{"dtype":{},"shape":[1],"data_offsets":[0,1]}}}})", value)), {"'w'", "dtype"});
  for (const char* value : {"1", "null", "\"x\"", "{}"}) {
    expect_error(parse(entry("U8", value, "[0,1]")), {"'w'", "shape"});
    expect_error(parse(entry("U8", "[1]", value)), {"'w'", "data_offsets"});
  }
  for (const char* value : {"1", "null", "\"x\"", "[]", "-1", "1.5", "false"}) {
    expect_error(parse(fmt::format(R"({{"w":{}}})", value)), {"'w'"});
    expect_error(parse(fmt::format(R"({{"__metadata__":{}}})", value)), {"__metadata__"});
  }
  for (const char* value : {"1", "null", "[]", "{}", "true"})
    expect_error(parse(fmt::format(R"({{"__metadata__":{{"k":{}}}}})", value)), {"__metadata__", "'k'"});
}

TEST(Header, MissingRepeatedAndUnknownKeys) {
  expect_error(parse(R"({"w":{}})"), {"'w'", "dtype, shape and data_offsets"});
  expect_error(parse(R"({"w":{"dtype":"U8","shape":[1]}})"), {"'w'", "dtype shape"});
  expect_error(parse(R"({"w":{"shape":[1],"data_offsets":[0,1]}})"), {"'w'"});
  expect_error(parse(R"({"w":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})"), {"'w'", "shape", "twice"});
  expect_error(parse(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":1}})"), {"'w'", "'extra'"});
  expect_error(parse(entry("U8", "[1]", "[0]")), {"'w'", "data_offsets", "two", "1"});
  expect_error(parse(entry("U8", "[1]", "[0,1,2]")), {"'w'", "data_offsets", "two"});
  expect_error(parse(R"({"__metadata__":{"a":"1","a":"2"}})"), {"__metadata__", "'a'", "twice"});
  expect_error(parse(R"({"__metadata__":{},"__metadata__":{}})"), {"__metadata__", "twice"});
}

TEST(Header, DuplicateTensorInOneFile) {
  const std::string w = R"("w":{"dtype":"U8","shape":[1],"data_offsets":)";
  expect_error(parse("{" + w + "[0,1]}," + R"("v":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)" + w + "[1,2]}}"),
               {"'w'", "twice"});
}

TEST(Header, TextThatIsNoHeader) {
  for (const std::string& text :
       {std::string("{"), std::string("{\"w\""), std::string("{} {}"), std::string("{}x"), std::string("{'w':1}"),
        std::string("{\"w\":}"), std::string("{,}"), std::string("{\"a\":{},}")})
    expect_error(parse(text), {});
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string(" {}"), std::string("\xef\xbb\xbf{}"), std::string("null")})
    expect_error(parse(text), {"'{'"});
  expect_error(parse(std::string("{}\0{", 4)), {"NUL"});
  expect_error(parse(std::string("{}\0\0\0\0", 6)), {"NUL"});
}

TEST(Header, DeepNesting) {
  expect_error(parse("{\"w\":" + std::string(1 << 20, '[')), {"'w'"});
  expect_error(parse(entry("U8", std::string(1 << 20, '['), "[0,1]")), {"'w'", "shape"});
  std::string objects = "{";
  for (int i = 0; i < 100000; ++i) objects += "\"w\":{";
  expect_error(parse(objects), {"'w'"});
}

TEST(Header, InvalidUtf8Names) {
  for (const char* name : {"\xff", "a\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xc3"})
    expect_error(parse(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}})", name)), {"UTF-8"});
  expect_error(parse(R"({"\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})"), {"UTF-8"});
  EXPECT_EQ(parse(R"({"\u00e9\ud83d\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})")->tensors[0].name,
            "\xc3\xa9\xf0\x9f\x98\x80");
}

TEST(Header, NamesInMessagesAreEscapedAndShort) {
  expect_error(parse(R"({"a\u001b[2J\n":{"dtype":"U9","shape":[1],"data_offsets":[0,1]}})"), {"'a\\x1b[2J\\x0a'"});
  const auto longest = parse("{\"" + std::string(4096, 'n') + R"(":{"dtype":"U9"}})");
  ASSERT_FALSE(longest);
  EXPECT_LT(longest.error().message.size(), 500u);
  expect_error(parse("{\"" + std::string(4097, 'n') + R"(":{"dtype":"U8"}})"), {"4097 bytes"});
  expect_error(parse(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})"), {"0 bytes"});
}

// ---- whole files

TEST(File, BadLengths) {
  TempDir dir;
  const std::string header = entry("U8", "[4]", "[0,4]");
  const std::pair<std::string, std::string_view> kFiles[] = {
      {"", "0 bytes"},
      {"1234567", "7 bytes"},
      {length_prefix(0), "'{'"},
      {length_prefix(1), "1 bytes"},
      {length_prefix(header.size() + 5) + header + "1234", std::string_view("expected at most")},
      {length_prefix(std::numeric_limits<std::uint64_t>::max()) + header, "18446744073709551615"},
      {length_prefix(std::uint64_t{1} << 63) + header, "9223372036854775808"},
      {length_prefix(header.size() - 1) + header + "1234", "JSON"},
      {length_prefix(header.size() + 2) + header + "123456", "JSON"},
      {std::string(4096, 'x'), "expected at most"}};
  for (const auto& [bytes, part] : kFiles) {
    write_file(dir / "out-00001.safetensors", bytes);
    expect_error(Checkpoint::open(dir.path()), {"out-00001.safetensors", part});
  }
}

TEST(File, HeaderLargerThanTheLimitIsNotRead) {
  TempDir dir;
  const std::filesystem::path path = dir / "m.safetensors";
  write_file(path, length_prefix((512u << 20) + 1) + "{");
  std::filesystem::resize_file(path, std::uint64_t{2} << 30);  // sparse
  expect_error(Checkpoint::open(dir.path()), {"m.safetensors", "536870913", "536870912"});
  write_file(path, length_prefix(512u << 20));
  std::filesystem::resize_file(path, std::uint64_t{2} << 30);
  expect_error(Checkpoint::open(dir.path()), {"m.safetensors", "'{'"});
}

TEST(File, TruncatedShard) {
  TempDir dir;
  const std::string whole = shard(entry("F32", "[4]", "[0,16]"), 16);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    write_file(dir / "out-00001.safetensors", whole.substr(0, bytes));
    expect_error(Checkpoint::open(dir.path()), {"out-00001.safetensors"});
  }
  write_file(dir / "out-00001.safetensors", whole);
  EXPECT_TRUE(Checkpoint::open(dir.path()));
}

TEST(File, TruncatedAfterItWasOpened) {
  TempDir dir;
  const std::filesystem::path path = dir / "out-00001.safetensors";
  write_file(path, shard(entry("F32", "[4,4]", "[0,64]"), 64));
  const Checkpoint checkpoint = open_folder(dir.path());
  const auto source = checkpoint.find_matrix("w", 4, 4);
  ASSERT_TRUE(source) << source.error().message;
  std::filesystem::resize_file(path, source->data.offset + 60);
  AlignedBytes memory(Checkpoint::matrix_bytes(*source));
  expect_error(checkpoint.read_matrix(*source, memory.data()), {"out-00001.safetensors", "4 more bytes"});
  expect_error(checkpoint.read_floats("w", 16), {"out-00001.safetensors"});
}

TEST(Folder, MissingEmptyOrNotAFolder) {
  TempDir dir;
  expect_error(Checkpoint::open(dir / "nothing"), {(dir / "nothing").string(), "no such directory"});
  expect_error(Checkpoint::open(dir.path()), {dir.path().string(), "no *.safetensors"});
  write_file(dir / "file", "x");
  expect_error(Checkpoint::open(dir / "file"), {"file", "directory"});
}

TEST(Folder, WhatIsAndIsNotAShard) {
  TempDir dir;
  const auto tensor = [](char name) {
    return shard(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}})", name), 1);
  };
  write_file(dir / "out-00007.safetensors", tensor('b'));
  write_file(dir / "model-a.safetensors", tensor('a'));
  for (const char* other :
       {"expected.safetensors", "contract.safetensors", "._model-a.safetensors", "model.safetensors.part", "safetensors"})
    write_file(dir / other, "rubbish");
  const Checkpoint checkpoint = open_folder(dir.path());
  ASSERT_EQ(checkpoint.shards().size(), 2u);
  EXPECT_EQ(checkpoint.shards()[0].path.filename(), "model-a.safetensors");
  EXPECT_EQ(checkpoint.shards()[1].path.filename(), "out-00007.safetensors");
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.tensors()[0].name, "a");
  EXPECT_EQ(checkpoint.find("b")->range.shard, 1);
  EXPECT_EQ(checkpoint.find("c"), nullptr);
}

TEST(Folder, ShardThatIsNoRegularFile) {
  TempDir dir;
  std::filesystem::create_directory(dir / "m.safetensors");
  expect_error(Checkpoint::open(dir.path()), {"m.safetensors", "regular file"});
  std::filesystem::remove(dir / "m.safetensors");
  std::filesystem::create_symlink(dir / "gone", dir / "m.safetensors");
  expect_error(Checkpoint::open(dir.path()), {"m.safetensors", "cannot be opened"});
}

TEST(Folder, DuplicateTensorAcrossShardsNamesBoth) {
  TempDir dir;
  write_file(dir / "one.safetensors", shard(entry("U8", "[1]", "[0,1]"), 1));
  write_file(dir / "two.safetensors", shard(entry("U8", "[2]", "[0,2]"), 2));
  expect_error(Checkpoint::open(dir.path()), {"'w'", "one.safetensors", "two.safetensors"});
}

// ---- tensors

class Tensors : public testing::Test {
 protected:
  Checkpoint with(const std::vector<NamedTensor>& tensors) {
    const auto written = write_safetensors(dir_ / "out-00001.safetensors", tensors);
    if (!written) throw std::runtime_error(written.error().message);
    return open_folder(dir_.path());
  }
  static NamedTensor raw(const std::string& name, DType type, std::vector<std::int64_t> shape) {
    NamedTensor tensor{name, type, std::move(shape), {}};
    tensor.bytes.resize(static_cast<std::size_t>(tensor.count()) * dtype_bytes(type));
    return tensor;
  }
  template <class Source>
  static Result<Matrix> read(const Checkpoint& checkpoint, const Source& source) {
    AlignedBytes memory(Checkpoint::matrix_bytes(*source));
    return checkpoint.read_matrix(*source, memory.data());
  }

 private:
  TempDir dir_;
};

TEST_F(Tensors, Missing) {
  const Checkpoint c = with({raw("w", DType::kU8, {128}), raw("f", DType::kF8E4M3, {2, 2})});
  expect_error(c.find_matrix("x", 2, 3), {"'x'", "[2, 3]", "missing", "2 tensors"});
  expect_error(c.find_matrix("w", 4, 64), {"'w.qs'", "U8", "missing"});
  expect_error(c.find_matrix("f", 2, 2), {"'f_scale_inv'", "[1, 1]", "missing"});
  expect_error(c.read_floats("x", 7), {"'x'", "7", "missing"});
}

TEST_F(Tensors, WrongShapeOrType) {
  const Checkpoint c = with({raw("w", DType::kBF16, {4, 6}), raw("flat", DType::kF32, {24}), raw("i", DType::kI64, {4, 6}),
                             raw("b", DType::kBool, {4, 6}), raw("e", DType::kF8E8M0, {4, 6})});
  expect_error(c.find_matrix("w", 6, 4), {"out-00001.safetensors", "'w'", "BF16 [4, 6]", "[6, 4]"});
  expect_error(c.find_matrix("flat", 4, 6), {"out-00001.safetensors", "'flat'", "F32 [24]", "[4, 6]"});
  for (const char* name : {"i", "b", "e"}) {
    expect_error(c.find_matrix(name, 4, 6), {"out-00001.safetensors", name, "dtype", "expected F32"});
    expect_error(c.read_floats(name, 24), {"out-00001.safetensors", name, "dtype", "expected F32"});
  }
  expect_error(c.read_floats("flat", 25), {"out-00001.safetensors", "'flat'", "[24]", "25"});
  expect_error(c.read_floats("flat", -1), {"'flat'"});
}

TEST_F(Tensors, ImpossibleShapesAskedFor) {
  const Checkpoint c = with({raw("w", DType::kU8, {128}), raw("w.qs", DType::kF32, {4})});
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{0, 64},
                                   {4, 0},
                                   {-4, -64},
                                   {std::int64_t{1} << 40, 1},
                                   {std::int64_t{1} << 31, std::int64_t{1} << 31},
                                   {INT64_MAX, INT64_MAX}})
    expect_error(c.find_matrix("w", rows, cols), {"'w'", "cannot exist"});
  expect_error(c.find_stacked("w", std::int64_t{1} << 31, std::int64_t{1} << 31, 64, 0, 0, 1), {"cannot exist"});
  EXPECT_TRUE(c.find_matrix("w", 4, 64));
}

TEST_F(Tensors, BlobBytesThatFitNothing) {
  const Checkpoint c = with({raw("w", DType::kU8, {130}), raw("w.qs", DType::kF32, {4})});
  expect_error(c.find_matrix("w", 4, 64),
               {"out-00001.safetensors", "'w'", "130 bytes", "16 bytes", "[4, 64]", "int4-row 128 + 16"});
}

TEST_F(Tensors, BlobScalesOfAnotherType) {
  const Checkpoint c = with({raw("h", DType::kU8, {128}), raw("h.qs", DType::kF16, {4}), raw("e", DType::kU8, {256}),
                             raw("e.qs", DType::kF8E8M0, {1}), raw("u", DType::kU8, {256}), raw("u.qs", DType::kU8, {1})});
  expect_error(c.find_matrix("h", 4, 64), {"out-00001.safetensors", "'h.qs'", "F16", "expected F32"});
  expect_error(c.find_matrix("e", 4, 64), {"'e.qs'", "UE8M0"});
  expect_error(c.find_matrix("u", 4, 64), {"'u.qs'", "UE8M0"});
}

TEST_F(Tensors, Fp8ScalesOfAnotherTypeOrShape) {
  const Checkpoint c =
      with({raw("a", DType::kF8E4M3, {130, 2}), raw("a_scale_inv", DType::kF8E8M0, {2, 1}), raw("b", DType::kF8E4M3, {130, 2}),
            raw("b_scale_inv", DType::kF16, {2, 1}), raw("d", DType::kF8E4M3, {130, 2}), raw("d_scale_inv", DType::kF32, {1, 1}),
            raw("s", DType::kF8E4M3, {3, 130, 2}), raw("s_scale_inv", DType::kF32, {4, 1})});
  expect_error(c.find_matrix("a", 130, 2), {"'a_scale_inv'", "F8_E8M0"});
  expect_error(c.find_matrix("b", 130, 2), {"'b_scale_inv'", "F16", "F32 or BF16"});
  expect_error(c.find_matrix("d", 130, 2), {"'d_scale_inv'", "[1, 1]", "[2, 1]"});
  expect_error(c.find_stacked("s", 3, 130, 2, 0, 0, 130), {"'s_scale_inv'", "[4, 1]", "[3, 2, 1]"});
}

TEST_F(Tensors, ScalesThatAreNotFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const Checkpoint c = with({blob("w", std::vector<std::uint8_t>(128)),
                               scales("w", {1, 2, bad, 4}),
                               raw("f", DType::kF8E4M3, {2, 2}),
                               {"f_scale_inv", DType::kBF16, {1, 1}, bytes_of(std::vector<std::uint16_t>{0x7fc0})},
                               f32("norm", {2}, {1, bad})});
    expect_error(read(c, c.find_matrix("w", 4, 64)), {"out-00001.safetensors", "'w.qs'", "scale 2", "finite"});
    expect_error(read(c, c.find_matrix("f", 2, 2)), {"out-00001.safetensors", "'f_scale_inv'", "scale 0", "finite"});
    expect_error(c.read_floats("norm", 2), {"out-00001.safetensors", "'norm'", "element 1", "finite"});
  }
}

// Many matrices read together: each as if it were read alone, and one that cannot be read is named.
TEST_F(Tensors, ABlockOfMatrices) {
  std::vector<std::uint8_t> codes(128);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(17 * i);
  const Checkpoint c = with({blob("w", codes), scales("w", {1, 2, 3, 4}), f32("x", {2, 3}, {1, 2, 3, 4, 5, 6}),
                             blob("bad", codes), scales("bad", {1, NAN, 3, 4})});
  std::vector<MatrixRead> reads;
  std::vector<Matrix> targets(13);
  for (Matrix& target : targets) {
    auto source = reads.size() % 2 == 0 ? c.find_matrix("w", 4, 64) : c.find_matrix("x", 2, 3);
    ASSERT_TRUE(source) << source.error().message;
    reads.push_back({*source, &target});
  }
  ThreadTeam team(3);
  auto block = read_matrix_block(c, reads, team);
  ASSERT_TRUE(block) << block.error().message;
  EXPECT_EQ(block->size(), matrix_block_bytes(reads));
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Matrix& m = targets[i];
    AlignedBytes alone(Checkpoint::matrix_bytes(reads[i].source));
    const auto expected = c.read_matrix(reads[i].source, alone.data());
    ASSERT_TRUE(expected);
    ASSERT_EQ(m.rows, expected->rows);
    std::vector<float> row(static_cast<std::size_t>(m.cols)), expected_row(row);
    for (std::int64_t r = 0; r < m.rows; ++r) {
      dequantize_row(m, r, row.data());
      dequantize_row(*expected, r, expected_row.data());
      EXPECT_EQ(row, expected_row) << i << " row " << r;
    }
  }
  auto bad = c.find_matrix("bad", 4, 64);
  ASSERT_TRUE(bad) << bad.error().message;
  reads[5].source = *bad;
  expect_error(read_matrix_block(c, reads, team), {"out-00001.safetensors", "'bad.qs'", "scale 1", "finite"});
}

// ---- damage at random

// What a parsed header promises, checked again with plain arithmetic.
void expect_consistent(const SafetensorsHeader& header, std::uint64_t file_bytes) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const TensorInfo& t : header.tensors) {
    ASSERT_GE(t.range.offset, header.data_start);
    ASSERT_LE(t.range.offset, file_bytes);
    ASSERT_LE(t.range.bytes, file_bytes - t.range.offset);
    long double bytes = static_cast<long double>(dtype_bytes(t.dtype));
    for (const std::int64_t extent : t.shape) bytes *= static_cast<long double>(extent);
    ASSERT_EQ(bytes, static_cast<long double>(t.range.bytes));
    ranges.emplace_back(t.range.offset, t.range.offset + t.range.bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) ASSERT_LE(ranges[i - 1].second, ranges[i].first);
}

TEST(Mutation, FlippedBytesOfRealHeaders) {
  Random random(2026);
  int accepted = 0, refused = 0;
  for (const char* name : {"glm-dsa-tiny-mixed/out-mtp-00003.safetensors", "glm-dsa-tiny-g64/out-idx-00002.safetensors",
                           "glm-dsa-tiny/expected.safetensors"}) {
    const std::string file = read_file(std::filesystem::path(COLIBRI_SOURCE_DIR) / "tests/oracle/cases" / name);
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    const std::string header = file.substr(8, length);
    ASSERT_TRUE(parse_safetensors_header(header, file.size(), 0)) << name;
    for (int round = 0; round < 1500; ++round) {
      std::string damaged = header;
      const auto place = [&] {
        return static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(damaged.size()) - 1));
      };
      for (std::int64_t flips = random.between(1, 3); flips > 0; --flips) {
        const std::size_t at = place();
        switch (random.between(0, 3)) {
          case 0: damaged[at] = static_cast<char>(damaged[at] ^ (1 << random.between(0, 7))); break;
          case 1: damaged[at] = static_cast<char>(random.between(0, 255)); break;
          case 2: damaged[at] = "0123456789[]{},:\"-.e "[random.between(0, 20)]; break;
          default: damaged.erase(at, static_cast<std::size_t>(random.between(1, 9))); break;
        }
      }
      if (const auto parsed = parse_safetensors_header(damaged, file.size(), 0)) {
        expect_consistent(*parsed, file.size());
        ++accepted;
      } else {
        EXPECT_FALSE(parsed.error().message.empty());
        ++refused;
      }
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GT(accepted, 0);  // a changed letter in a name is not an error here
  EXPECT_GT(refused, 1000);
}

TEST(Mutation, FlippedBytesOfAWholeCheckpoint) {
  TempDir dir;
  Random random(99);
  const PackedMatrix p = pack(WeightFormat::kInt4Grouped, 6, 130, 64, random);
  const auto written =
      write_safetensors(dir / "m.safetensors", std::vector{blob("w", p.bytes), scales("w", p.scales), f32("n", {3}, {1, 2, 3})},
                        {{"colibri.fmt", R"({"w":"int4-grouped"})"}});
  ASSERT_TRUE(written) << written.error().message;
  const std::string file = read_file(dir / "m.safetensors");
  int read = 0, refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string damaged = file;
    const std::int64_t header_only = round % 2 ? 300 : static_cast<std::int64_t>(file.size());
    damaged[static_cast<std::size_t>(random.between(0, header_only - 1))] ^= static_cast<char>(1 << random.between(0, 7));
    if (round % 5 == 0) damaged.resize(static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(file.size()))));
    write_file(dir / "m.safetensors", damaged);
    const auto checkpoint = Checkpoint::open(dir.path());
    const auto source = checkpoint ? checkpoint->find_matrix("w", 6, 130) : Result<MatrixSource>(pass(checkpoint.error()));
    if (source) {
      AlignedBytes memory(Checkpoint::matrix_bytes(*source));
      const auto matrix = checkpoint->read_matrix(*source, memory.data());
      if (matrix) {
        std::vector<float> row(130);
        for (std::int64_t o = 0; o < 6; ++o) dequantize_row(*matrix, o, row.data());
        ++read;
        continue;
      }
      EXPECT_NE(matrix.error().message.find("m.safetensors"), std::string::npos) << matrix.error().message;
    } else {
      EXPECT_NE(source.error().message.find(dir.path().string()), std::string::npos) << source.error().message;
    }
    ++refused;
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace colibri

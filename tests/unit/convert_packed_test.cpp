// The packed layout: where things lie, what a reader gets, and what it refuses.
#include "format/packed.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "convert/matrix_units.h"
#include "convert/output_file.h"
#include "convert/shard_plan.h"
#include "format/file.h"
#include "format_test_util.h"

namespace colibri {
namespace {

using test::Random;

constexpr std::int64_t kInner = 192, kHidden = 320;

struct Parts {
  Matrix gate, up, down;
};
Parts parts(const TargetFormat& gate, const TargetFormat& up, const TargetFormat& down, std::int64_t inner = kInner,
            std::int64_t hidden = kHidden) {
  return {describe_matrix(gate, inner, hidden), describe_matrix(up, inner, hidden), describe_matrix(down, hidden, inner)};
}
PackedLayout layout_of(const Parts& p) { return make_packed_layout(p.gate, p.up, p.down); }

const TargetFormat kFormats[] = {{WeightFormat::kF32, 0},     {WeightFormat::kBF16, 0},         {WeightFormat::kInt8Row, 0},
                                 {WeightFormat::kInt4Row, 0}, {WeightFormat::kInt4Grouped, 64}, {WeightFormat::kInt4Grouped, 48},
                                 {WeightFormat::kInt2Row, 0}, {WeightFormat::kInt3G64, 64},     {WeightFormat::kF8Block128, 128}};

// A record of random bytes with finite scales.
std::vector<std::byte> random_record(const PackedLayout& layout, std::string_view name, Random& random) {
  std::vector<std::byte> record(layout.record_bytes);
  for (std::byte& b : record) b = static_cast<std::byte>(random.next() & 0xff);
  for (const PackedMatrix& part : layout.parts)
    for (std::uint64_t i = 0; i < part.scale_bytes / 4; ++i) {
      const float scale = random.scale();
      std::memcpy(record.data() + part.scale_offset + 4 * i, &scale, 4);
    }
  seal_packed_record(layout, name, record);
  return record;
}

// A shard with these records and one plain tensor.
void write_shard(const std::filesystem::path& dir, const std::vector<std::pair<std::string, PackedLayout>>& experts,
                 std::vector<std::vector<std::byte>>* contents = nullptr) {
  std::vector<PlannedUnit> units;
  PlannedUnit plain;
  plain.tensors.push_back(planned_tensor("model.norm.weight", DType::kF32, {5}));
  units.push_back(plain);
  for (const auto& [name, layout] : experts) {
    PlannedUnit unit;
    unit.record = layout;
    unit.tensors.push_back(planned_tensor(name, DType::kU8, {static_cast<std::int64_t>(layout.record_bytes)}));
    units.push_back(unit);
  }
  const auto shards = plan_shards(units, {.tool = "test 1", .source = "a test"});
  ASSERT_EQ(shards.size(), 1u);
  auto file = OutputFile::create(dir / shards[0].file_name, shards[0].file_bytes);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_TRUE(file->write(0, std::as_bytes(std::span(shards[0].header))));
  Random random(7);
  for (const PlannedUnit& unit : shards[0].units) {
    if (!unit.record) continue;
    const auto record = random_record(*unit.record, unit.tensors[0].name, random);
    if (contents) contents->push_back(record);
    ASSERT_TRUE(file->write(unit.tensors[0].offset, record));
  }
  ASSERT_TRUE(file->commit());
}

PackedShard metadata_of(const PackedLayout& layout) { return {"test 1", "a test", {layout}, {{"a.0.packed", 0}}}; }

TEST(PackedLayout, PartsAreAlignedInOrderAndInside) {
  for (const TargetFormat& gate : kFormats)
    for (const TargetFormat& down : kFormats) {
      const PackedLayout layout = layout_of(parts(gate, gate, down, 33, 95));
      EXPECT_EQ(layout.record_bytes % kRecordAlignment, 0u);
      std::uint64_t end = 0;
      for (const PackedMatrix& part : layout.parts) {
        EXPECT_EQ(part.data_offset % 64, 0u);
        EXPECT_EQ(part.scale_offset % 64, 0u);
        EXPECT_GE(part.data_offset, end);
        EXPECT_GE(part.scale_offset, part.data_offset + part.data_bytes);
        end = part.scale_offset + part.scale_bytes;
        EXPECT_EQ(part.data_bytes,
                  static_cast<std::uint64_t>(format_bytes(part.matrix.format, part.matrix.rows, part.matrix.cols)));
      }
      EXPECT_LE(end + kRecordTrailerBytes, layout.record_bytes);
      EXPECT_LT(layout.record_bytes, end + kRecordTrailerBytes + kRecordAlignment);
    }
  // GLM-5.2: 21,233,664 bytes of weights and scales per expert.
  const TargetFormat g64{WeightFormat::kInt4Grouped, 64};
  EXPECT_EQ(layout_of(parts(g64, g64, g64, 2048, 6144)).record_bytes, 21233664u + kRecordAlignment);
}

TEST(PackedRecord, EveryChangedByteIsNoticed) {
  const TargetFormat int2{WeightFormat::kInt2Row, 0};
  const PackedLayout layout = layout_of(parts(int2, int2, int2, 16, 32));
  Random random(1);
  std::vector<std::byte> record = random_record(layout, "x.7.packed", random);
  ASSERT_TRUE(check_packed_record(record, "x.7.packed"));
  for (std::size_t i = 0; i < record.size(); ++i) {
    record[i] ^= std::byte{1};
    EXPECT_FALSE(check_packed_record(record, "x.7.packed")) << "byte " << i;
    record[i] ^= std::byte{1};
  }
  test::expect_error(check_packed_record(record, "x.8.packed"), {"'x.8.packed'", "another expert"});
  test::expect_error(check_packed_record(std::span(record).first(record.size() - 1), "x.7.packed"), {"trailer is missing"});
  test::expect_error(check_packed_record(std::span(record).first(10), "x.7.packed"), {"10 bytes"});
  // Padding is zeros, so that the same weights give the same file.
  const PackedMatrix& down = layout.parts[2];
  for (std::uint64_t i = down.scale_offset + down.scale_bytes; i < record.size() - kRecordTrailerBytes; ++i)
    ASSERT_EQ(record[i], std::byte{0}) << i;
}

TEST(PackedIndex, FindsExpertsOfEveryFormat) {
  const test::TempDir dir;
  std::vector<std::pair<std::string, PackedLayout>> experts;
  for (std::size_t i = 0; i < std::size(kFormats); ++i)
    experts.emplace_back(packed_expert_name("l.", static_cast<std::int64_t>(i)),
                         layout_of(parts(kFormats[i], kFormats[(i + 1) % 9], kFormats[(i + 4) % 9])));
  std::vector<std::vector<std::byte>> contents;
  write_shard(dir.path(), experts, &contents);
  const Checkpoint checkpoint = test::open_folder(dir.path());
  const auto index = PackedIndex::open(checkpoint);
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(index->size(), std::size(kFormats));
  for (std::size_t i = 0; i < experts.size(); ++i) {
    const auto found = index->find("l.", static_cast<std::int64_t>(i), kInner, kHidden);
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_TRUE(found->has_value());
    const PackedExpert& expert = **found;
    EXPECT_EQ(expert.record.offset % kRecordAlignment, 0u);
    std::vector<std::byte> record(expert.record.bytes);
    ASSERT_TRUE(checkpoint.read(expert.record, record.data()));
    EXPECT_TRUE(record == contents[i]);
    EXPECT_TRUE(check_packed_record(record, expert.name));
    const MatrixSource* sources[] = {&expert.gate, &expert.up, &expert.down};
    for (std::size_t p = 0; p < 3; ++p) {
      const PackedMatrix& part = experts[i].second.parts[p];
      const TargetFormat& format = kFormats[p == 0 ? i : (i + (p == 1 ? 1 : 4)) % 9];
      const test::LoadedMatrix loaded = test::load(checkpoint, *sources[p]);
      EXPECT_EQ(loaded.matrix.format, format.format);
      EXPECT_EQ(loaded.matrix.rows, p == 2 ? kHidden : kInner);
      EXPECT_EQ(loaded.matrix.cols, p == 2 ? kInner : kHidden);
      EXPECT_EQ(std::memcmp(loaded.matrix.data, record.data() + part.data_offset, part.data_bytes), 0);
      if (part.scale_bytes > 0) {
        EXPECT_EQ(std::memcmp(loaded.matrix.scales, record.data() + part.scale_offset, part.scale_bytes), 0);
      }
    }
  }
  // Not packed, or not of this shape.
  const auto missing = index->find("l.", 99, kInner, kHidden);
  ASSERT_TRUE(missing);
  EXPECT_FALSE(missing->has_value());
  test::expect_error(index->find("l.", 0, kInner + 1, kHidden),
                     {"out-00001.safetensors", "'l.0.packed'", "gate is [192, 320]", "[193, 320]"});
}

TEST(PackedIndex, IsAnOrdinarySafetensorsFile) {
  const test::TempDir dir;
  const TargetFormat int8{WeightFormat::kInt8Row, 0};
  write_shard(dir.path(), {{"l.0.packed", layout_of(parts(int8, int8, int8))}});
  const auto tensors = read_safetensors(dir / "out-00001.safetensors");
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_TRUE(tensors->contains("l.0.packed"));
  EXPECT_TRUE(tensors->contains("model.norm.weight"));
  // No byte outside a tensor: the format's own library insists on it.
  const auto file = InputFile::open(dir / "out-00001.safetensors");
  const auto header = read_safetensors_header(*file, 0);
  std::uint64_t bytes = header->data_start;
  for (const TensorInfo& tensor : header->tensors) {
    bytes += tensor.range.bytes;
    EXPECT_EQ(tensor.range.offset % 64, 0u) << tensor.name;
  }
  EXPECT_EQ(bytes, file->bytes());
}

TEST(ShardPlan, OddSizesArePaddedByTensorsAndShardsStaySmall) {
  std::vector<PlannedUnit> units(7);
  for (std::size_t i = 0; i < units.size(); ++i)
    units[i].tensors = {planned_tensor(fmt::format("t{}", i), DType::kU8, {static_cast<std::int64_t>(100 * i + 1)}),
                        planned_tensor(fmt::format("t{}.qs", i), DType::kF32, {3})};
  const auto shards = plan_shards(units, {.max_bytes = 1000, .tool = {}, .source = {}});
  EXPECT_GT(shards.size(), 2u);
  std::set<std::string> names;
  for (const PlannedShard& shard : shards) {
    std::uint64_t start = 0, end = shard.header.size();
    const auto header = parse_safetensors_header(std::span(shard.header).subspan(8), shard.file_bytes, 0);
    ASSERT_TRUE(header) << header.error().message;
    for (const TensorInfo& t : header->tensors) {
      EXPECT_TRUE(names.insert(t.name).second) << t.name;
      EXPECT_EQ(t.range.offset, end);
      if (!t.name.starts_with("colibri.padding.")) {
        EXPECT_EQ(t.range.offset % 64, 0u);
      }
      start = t.range.offset;
      end = start + t.range.bytes;
    }
    EXPECT_EQ(end, shard.file_bytes);
    EXPECT_LE(end - header->data_start, 1000u);
  }
  for (const char* name : {"t0", "t0.qs", "t6", "t6.qs"}) EXPECT_TRUE(names.contains(name));
}

// ---- hostile metadata

TEST(PackedMetadata, RoundTrip) {
  const PackedLayout layout =
      layout_of(parts({WeightFormat::kInt4Grouped, 64}, {WeightFormat::kF8Block128, 128}, {WeightFormat::kBF16, 0}));
  const auto parsed = parse_packed_metadata(packed_metadata_text(metadata_of(layout)));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->tool, "test 1");
  EXPECT_EQ(parsed->source, "a test");
  EXPECT_EQ(parsed->records, (std::map<std::string, std::size_t>{{"a.0.packed", 0}}));
  ASSERT_EQ(parsed->layouts.size(), 1u);
  EXPECT_EQ(parsed->layouts[0].record_bytes, layout.record_bytes);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(parsed->layouts[0].parts[i].scale_offset, layout.parts[i].scale_offset);
    EXPECT_EQ(parsed->layouts[0].parts[i].matrix.group, layout.parts[i].matrix.group);
  }
}

TEST(PackedMetadata, WrongValuesAreNamed) {
  using nlohmann::json;
  const PackedLayout layout =
      layout_of(parts({WeightFormat::kInt4Grouped, 64}, {WeightFormat::kInt8Row, 0}, {WeightFormat::kInt3G64, 64}));
  const json good = json::parse(packed_metadata_text(metadata_of(layout)));
  const auto with = [&](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    return parse_packed_metadata(changed.dump());
  };
  test::expect_error(with("/version", 2), {"version 2"});
  test::expect_error(with("/version", "1"), {"version"});
  test::expect_error(with("/tool", 1), {"tool", "text"});
  test::expect_error(with("/layouts", 1), {"layouts", "list"});
  test::expect_error(with("/layouts/0", 1), {"layouts[0]"});
  test::expect_error(with("/layouts/0/gate", nullptr), {"layouts[0].gate"});
  test::expect_error(with("/layouts/0/gate/format", "int5"), {"layouts[0].gate.format", "int5"});
  test::expect_error(with("/layouts/0/gate/group", 0), {"layouts[0].gate.group"});
  test::expect_error(with("/layouts/0/gate/group", -64), {"layouts[0].gate.group"});
  test::expect_error(with("/layouts/0/up/group", 64), {"layouts[0].up.group", "int8-row"});
  test::expect_error(with("/layouts/0/up/row_origin", 1), {"layouts[0].up.row_origin"});
  test::expect_error(with("/layouts/0/gate/shape", json::array({192, 0})), {"layouts[0].gate.shape"});
  test::expect_error(with("/layouts/0/gate/shape", json::array({192, 1ll << 62})), {"layouts[0].gate.shape"});
  test::expect_error(with("/layouts/0/gate/shape", json::array({192})), {"layouts[0].gate.shape", "two numbers"});
  test::expect_error(with("/layouts/0/gate/shape", json::array({192, 320.5})), {"layouts[0].gate.shape"});
  test::expect_error(with("/layouts/0/gate/shape", json::array({190, 320})), {"layouts[0].gate.weights"});
  test::expect_error(with("/layouts/0/down/weights/0", 64), {"layouts[0].down.weights", "expected"});
  test::expect_error(with("/layouts/0/down/scales/1", UINT64_MAX), {"layouts[0].down.scales"});
  test::expect_error(with("/layouts/0/record_bytes", 1), {"layouts[0].record_bytes"});
  test::expect_error(with("/records", json::array()), {"records", "object"});
  test::expect_error(with("/records/a.0.packed", 1), {"'a.0.packed'", "1 layouts"});
  test::expect_error(with("/records/a.0.packed", -1), {"'a.0.packed'"});
  test::expect_error(parse_packed_metadata("[]"), {"object"});
  test::expect_error(parse_packed_metadata("{"), {"object"});
}

// A file whose metadata and tensors do not agree.
TEST(PackedIndex, TensorsMustBeWhatTheMetadataSays) {
  const TargetFormat int2{WeightFormat::kInt2Row, 0};
  const PackedLayout layout = layout_of(parts(int2, int2, int2, 16, 32));
  const std::string metadata = nlohmann::json(packed_metadata_text(metadata_of(layout))).dump();
  const auto open = [&](const std::string& tensors, std::size_t pad, std::size_t data) {
    const test::TempDir dir;
    std::string header = "{\"__metadata__\":{\"colibri.packed\":" + metadata + "}" + tensors + "}";
    header.resize(pad - 8, ' ');
    test::write_file(dir / "m.safetensors", test::shard(header, data));
    return PackedIndex::open(test::open_folder(dir.path()));
  };
  ASSERT_EQ(layout.record_bytes, 16384u);
  EXPECT_TRUE(open(R"(,"a.0.packed":{"dtype":"U8","shape":[16384],"data_offsets":[0,16384]})", 16384, 16384));
  test::expect_error(open(R"(,"b":{"dtype":"U8","shape":[16384],"data_offsets":[0,16384]})", 16384, 16384),
                     {"m.safetensors", "'a.0.packed'", "does not hold"});
  test::expect_error(open(R"(,"a.0.packed":{"dtype":"U8","shape":[16384],"data_offsets":[0,16384]})", 8192, 16384),
                     {"'a.0.packed'", "multiple of 16384"});
  test::expect_error(open(R"(,"a.0.packed":{"dtype":"U8","shape":[16383],"data_offsets":[0,16383]})", 16384, 16383),
                     {"'a.0.packed'", "16384 bytes"});
  test::expect_error(open(R"(,"a.0.packed":{"dtype":"F32","shape":[4096],"data_offsets":[0,16384]})", 16384, 16384),
                     {"'a.0.packed'", "F32"});
  // A record that the metadata does not mention has no layout.
  const auto index = open(
      R"(,"a.0.packed":{"dtype":"U8","shape":[16384],"data_offsets":[0,16384]},"a.1.packed":{"dtype":"U8","shape":[16384],"data_offsets":[16384,32768]})",
      16384, 32768);
  ASSERT_TRUE(index);
  test::expect_error(index->find("a.", 1, 16, 32), {"'a.1.packed'", "does not describe"});
}

}  // namespace
}  // namespace colibri

// Conversions of the tree's models: weights, resumption, refusals, and what verification finds.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <cmath>

#include "convert/census.h"
#include "convert/convert.h"
#include "convert/verify.h"
#include "format/file.h"
#include "format_test_util.h"

namespace colibri {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = COLIBRI_SOURCE_DIR;
const fs::path kCases = kRoot / "tests/oracle/cases";

ConvertReport convert(const fs::path& from, const fs::path& to, const ConvertOptions& options, int threads = 2) {
  WriteOptions write;
  write.threads = threads;
  auto report = convert_model(from, to, options, write);
  if (!report) throw std::runtime_error(report.error().message);
  return std::move(*report);
}

std::map<std::string, std::string> contents(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(dir)) files[entry.path().filename().string()] = test::read_file(entry.path());
  return files;
}

// A model directory and all its matrices by name, wherever they are stored.
struct Opened {
  Checkpoint checkpoint;
  ModelConfig config;
  PackedIndex packed;
  std::map<std::string, MatrixSource> matrices;
  std::map<std::string, TensorClass> classes;
};
Opened open_model(const fs::path& dir) {
  Opened m{test::open_folder(dir), *ModelConfig::load(dir), {}, {}, {}};
  m.packed = *PackedIndex::open(m.checkpoint);
  for (const LayerCensus& layer : model_census(m.config, find_parts(m.checkpoint, m.config))) {
    for (const TensorSpec& spec : layer.dense)
      if (spec.rows > 0) {
        m.matrices[spec.name] = *m.checkpoint.find_matrix(spec.name, spec.rows, spec.cols);
        m.classes[spec.name] = spec.tensor_class;
      }
    for (const ExpertGroup& group : layer.experts)
      for (std::int64_t e = 0; e < m.config.experts; ++e) {
        const ExpertSources s = *find_expert(m.checkpoint, m.packed, m.config, group.prefix, e);
        for (const auto& [which, source] : {std::pair{"gate", &s.gate}, {"up", &s.up}, {"down", &s.down}}) {
          const std::string name = fmt::format("{}{}.{}", group.prefix, e, which);
          m.matrices[name] = *source;
          m.classes[name] = group.tensor_class;
        }
      }
  }
  return m;
}

// Every row decoded: integers and block scales, bit for bit.
std::vector<float> decoded(const Checkpoint& checkpoint, const MatrixSource& source) {
  const test::LoadedMatrix loaded = test::load(checkpoint, source);
  const auto width = static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(loaded.matrix.cols), 32));
  std::vector<float> all(static_cast<std::size_t>(loaded.matrix.rows * (width + width / 32)));
  for (std::int64_t o = 0; o < loaded.matrix.rows; ++o)
    decode_row(loaded.matrix, o, all.data() + o * width, all.data() + loaded.matrix.rows * width + o * width / 32);
  return all;
}

void expect_same_weights(const fs::path& a_dir, const fs::path& b_dir) {
  const Opened a = open_model(a_dir), b = open_model(b_dir);
  ASSERT_EQ(a.matrices.size(), b.matrices.size());
  for (const auto& [name, source] : a.matrices)
    EXPECT_EQ(decoded(a.checkpoint, source), decoded(b.checkpoint, b.matrices.at(name))) << name;
}

ConvertOptions keep(bool packed = true) {
  ConvertOptions options;
  options.keep_weights = true;
  options.packed = packed;
  options.shard_bytes = 300 << 10;
  return options;
}

// ---- --pack

class PackedModel : public testing::TestWithParam<const char*> {};

TEST_P(PackedModel, HasTheSameWeights) {
  const fs::path source = kRoot / GetParam();
  const test::TempDir dir;
  const ConvertReport report = convert(source, dir / "packed", keep());
  for (const QuantizationError& e : report.written.errors) EXPECT_EQ(e.weight_squares, 0);
  const Opened packed = open_model(dir / "packed");
  const std::int64_t groups = std::count(packed.config.sparse.begin(), packed.config.sparse.end(), true) + 1;
  EXPECT_EQ(packed.packed.size(), static_cast<std::size_t>(groups * packed.config.experts));
  expect_same_weights(source, dir / "packed");
  const auto verified = verify_model(dir / "packed", {});
  ASSERT_TRUE(verified) << verified.error().message;
  EXPECT_EQ(verified->problems, std::vector<std::string>{});
  EXPECT_EQ(verified->records, packed.packed.size());
  // And back: the plain layout again, from the packed one.
  convert(dir / "packed", dir / "plain", keep(false));
  expect_same_weights(source, dir / "plain");
  EXPECT_EQ(open_model(dir / "plain").packed.size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Tree, PackedModel,
                         testing::Values("models/demo", "tests/oracle/cases/glm-dsa-tiny", "tests/oracle/cases/glm-dsa-tiny-g64",
                                         "tests/oracle/cases/glm-dsa-tiny-i4row", "tests/oracle/cases/glm-dsa-tiny-mixed",
                                         "tests/oracle/cases/glm-odd-dims"),
                         [](const auto& test) {
                           std::string name = fs::path(test.param).filename().string();
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// ---- quantising

TEST(Convert, QuantisesEveryClassAsAsked) {
  const test::TempDir dir;
  for (const char* format : {"int8", "int4", "int4-g32", "int4-g64", "int3-g64", "int2", "bf16", "f32"})
    for (const bool packed : {true, false}) {
      ConvertOptions options;
      options.experts = *parse_target_format(format);
      options.packed = packed;
      const fs::path to = dir / fmt::format("{}-{}", format, packed);
      const ConvertReport report = convert(kCases / "glm-dsa-tiny", to, options);
      const Opened before = open_model(kCases / "glm-dsa-tiny"), after = open_model(to);
      std::map<TensorClass, std::pair<double, double>> sums;
      for (const auto& [name, source] : before.matrices) {
        const MatrixSource& stored = after.matrices.at(name);
        const TensorClass c = before.classes.at(name);
        const WeightFormat expected = c == TensorClass::kRouter    ? WeightFormat::kF32
                                      : c == TensorClass::kExperts ? options.experts->format
                                                                   : WeightFormat::kInt8Row;
        const bool one_group = stored.matrix.format == WeightFormat::kInt4Row && expected == WeightFormat::kInt4Grouped;
        EXPECT_TRUE(stored.matrix.format == expected || (one_group && stored.matrix.cols <= options.experts->group)) << name;
        const std::vector<float> want = test::load(before.checkpoint, source).weights();
        const std::vector<float> have = test::load(after.checkpoint, stored).weights();
        for (std::size_t i = 0; i < want.size(); ++i) {
          const double d = static_cast<double>(have[i]) - want[i];
          sums[c].first += d * d;
          sums[c].second += static_cast<double>(want[i]) * want[i];
        }
      }
      for (const auto& [c, sum] : sums) {
        const double measured = std::sqrt(sum.first / sum.second);
        EXPECT_NEAR(report.written.errors[static_cast<std::size_t>(c)].relative_rms(), measured, 1e-6 * measured + 1e-12)
            << class_name(c);
        EXPECT_FALSE(report.formats[static_cast<std::size_t>(c)].empty()) << class_name(c);
      }
      const auto verified = verify_model(to, {});
      ASSERT_TRUE(verified);
      EXPECT_EQ(verified->problems, std::vector<std::string>{}) << format;
    }
}

TEST(Convert, IntegersStayUnlessAskedOtherwise) {
  const test::TempDir dir;
  convert(kCases / "glm-dsa-tiny-i4row", dir / "same", {});
  expect_same_weights(kCases / "glm-dsa-tiny-i4row", dir / "same");
  ConvertOptions options;
  options.experts = *parse_target_format("int2");
  options.mtp = false;
  const ConvertReport report = convert(kCases / "glm-dsa-tiny-g64", dir / "other", options);
  EXPECT_GT(report.written.errors[static_cast<std::size_t>(TensorClass::kExperts)].relative_rms(), 0.1);
  EXPECT_EQ(report.written.errors[static_cast<std::size_t>(TensorClass::kAttention)].weight_squares, 0);
  const Opened other = open_model(dir / "other");
  for (const auto& [name, source] : other.matrices) {
    if (other.classes.at(name) == TensorClass::kExperts) {
      EXPECT_EQ(source.matrix.format, WeightFormat::kInt2Row) << name;
    }
    EXPECT_NE(other.classes.at(name), TensorClass::kMtpExperts);
  }
  EXPECT_FALSE(report.notices.empty()) << "the MTP layer's tensors were left out without a word";
}

// An FP8 checkpoint with stacked experts, as newer Hugging Face models come, made from the tiny model.
void write_fp8_model(const fs::path& dir) {
  const fs::path source = kCases / "glm-dsa-tiny";
  fs::create_directories(dir);
  fs::copy_file(source / "config.json", dir / "config.json");
  const Opened m = open_model(source);
  test::Random random(5);
  std::vector<NamedTensor> tensors;
  const auto fp8 = [&](const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
    for (std::uint8_t& c : codes) c = static_cast<std::uint8_t>(random.between(0, 1) * 128 + random.between(0, 0x60));
    tensors.push_back({name, DType::kF8E4M3, shape, test::bytes_of(codes)});
    std::vector<std::int64_t> blocks = shape;
    std::int64_t scale_count = shape.size() == 3 ? shape[0] : 1;
    for (std::size_t i = shape.size() - 2; i < shape.size(); ++i) scale_count *= blocks[i] = ceil_div(shape[i], 128);
    std::vector<float> scales(static_cast<std::size_t>(scale_count));
    for (float& s : scales) s = random.scale() / 256;
    tensors.push_back(test::f32(name + "_scale_inv", blocks, scales));
  };
  for (const LayerCensus& layer : model_census(m.config, find_parts(m.checkpoint, m.config))) {
    for (const TensorSpec& spec : layer.dense) {
      if (spec.rows > 0 && spec.tensor_class != TensorClass::kRouter && spec.tensor_class != TensorClass::kEmbedding) {
        fp8(spec.name, {spec.rows, spec.cols});
      } else {
        const TensorInfo& t = *m.checkpoint.find(spec.name);
        NamedTensor copy{t.name, t.dtype, t.shape, std::vector<std::byte>(t.range.bytes)};
        ASSERT_TRUE(m.checkpoint.read(t.range, copy.bytes.data()));
        tensors.push_back(std::move(copy));
      }
    }
    for (const ExpertGroup& group : layer.experts) {
      fp8(group.prefix + "gate_up_proj", {m.config.experts, 2 * m.config.moe_intermediate_size, m.config.hidden_size});
      fp8(group.prefix + "down_proj", {m.config.experts, m.config.hidden_size, m.config.moe_intermediate_size});
    }
  }
  ASSERT_TRUE(write_safetensors(dir / "model.safetensors", tensors));
}

TEST(Convert, Fp8AndStackedExperts) {
  const test::TempDir dir;
  write_fp8_model(dir / "fp8");
  convert(dir / "fp8", dir / "packed", keep());
  expect_same_weights(dir / "fp8", dir / "packed");
  // Gate and up share blocks of 128 rows here, so the up halves begin inside one.
  WriteOptions write;
  test::expect_error(convert_model(dir / "fp8", dir / "plain", keep(false), write), {"up_proj", "--layout packed"});
  ConvertOptions options;
  options.experts = *parse_target_format("int8");
  const ConvertReport report = convert(dir / "fp8", dir / "int8", options);
  const Opened before = open_model(dir / "fp8"), after = open_model(dir / "int8");
  for (const auto& [name, source] : before.matrices) {
    const std::vector<float> want = test::load(before.checkpoint, source).weights();
    const std::vector<float> have = test::load(after.checkpoint, after.matrices.at(name)).weights();
    float largest = 0, worst = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      largest = std::max(largest, std::abs(want[i]));
      worst = std::max(worst, std::abs(want[i] - have[i]));
    }
    EXPECT_LE(worst, largest / 250) << name;
    EXPECT_GT(largest, 0) << name;
  }
  EXPECT_LT(report.written.errors[static_cast<std::size_t>(TensorClass::kExperts)].relative_rms(), 0.02);
}

TEST(Convert, AWeightThatIsNoNumberIsNamed) {
  const test::TempDir dir;
  fs::create_directories(dir / "m");
  fs::copy_file(kCases / "glm-dsa-tiny/config.json", dir / "m/config.json");
  auto tensors = read_safetensors(kCases / "glm-dsa-tiny/model.safetensors");
  ASSERT_TRUE(tensors);
  std::vector<NamedTensor> list;
  const std::string name = "model.layers.2.self_attn.o_proj.weight";
  for (auto& [key, tensor] : *tensors) {
    if (key == name) std::fill_n(tensor.bytes.begin() + static_cast<std::ptrdiff_t>(tensor.bytes.size() / 2), 4, std::byte{0xff});
    list.push_back(tensor);
  }
  ASSERT_TRUE(write_safetensors(dir / "m/model.safetensors", list));
  test::expect_error(convert_model(dir / "m", dir / "out", {}, {}), {name, "not a finite number"});
  const auto verified = verify_model(dir / "m", {});
  ASSERT_TRUE(verified);
  ASSERT_EQ(verified->problems.size(), 1u);
  EXPECT_NE(verified->problems[0].find(name), std::string::npos);
}

// ---- interruption

TEST(Convert, ThreadsDoNotChangeTheBytes) {
  const test::TempDir dir;
  ConvertOptions options;
  options.shard_bytes = 200 << 10;
  convert(kCases / "glm-dsa-tiny", dir / "a", options, 1);
  convert(kCases / "glm-dsa-tiny", dir / "b", options, 3);
  const auto a = contents(dir / "a");
  EXPECT_GT(a.size(), 4u);
  EXPECT_EQ(a, contents(dir / "b"));
}

// The process is killed, without a chance to tidy up, after the n-th piece; then the same conversion runs again.
TEST(Convert, AKilledRunIsContinuedToTheSameBytes) {
  const test::TempDir dir;
  ConvertOptions options;
  options.shard_bytes = 200 << 10;
  int pieces = 0;
  WriteOptions write;
  write.threads = 1;
  write.progress = [&](const WriteProgress&) { return ++pieces > 0; };
  const auto whole = convert_model(kCases / "glm-dsa-tiny", dir / "whole", options, write);
  ASSERT_TRUE(whole) << whole.error().message;
  ASSERT_GT(whole->written.shards, 3u);
  const auto expected = contents(dir / "whole");
  bool kept_some = false;
  for (const int at : {1, pieces / 4, pieces / 2, pieces * 3 / 4, pieces}) {
    const fs::path to = dir / fmt::format("killed-{}", at);
    const pid_t child = fork();
    if (child == 0) {
      std::atomic<int> left{at};
      WriteOptions doomed;
      doomed.threads = 2;
      doomed.progress = [&](const WriteProgress&) {
        if (--left == 0) ::_exit(9);
        return true;
      };
      (void)convert_model(kCases / "glm-dsa-tiny", to, options, doomed);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 9);
    EXPECT_FALSE(fs::exists(to / "config.json")) << "an unfinished directory looks like a model";
    // Other options must not be mixed in.
    ConvertOptions other = options;
    other.experts = *parse_target_format("int8");
    test::expect_error(convert_model(kCases / "glm-dsa-tiny", to, other, {}), {"--experts", "default", "int8-row"});
    const auto resumed = convert_model(kCases / "glm-dsa-tiny", to, options, {});
    ASSERT_TRUE(resumed) << resumed.error().message;
    kept_some = kept_some || resumed->written.shards_kept > 0;
    EXPECT_EQ(contents(to), expected) << "killed after piece " << at;
    for (std::size_t c = 0; c < resumed->written.errors.size(); ++c)
      EXPECT_EQ(resumed->written.errors[c].difference_squares, whole->written.errors[c].difference_squares);
  }
  EXPECT_TRUE(kept_some);
}

TEST(Convert, StopsWhenAskedAndContinues) {
  const test::TempDir dir;
  ConvertOptions options;
  options.shard_bytes = 200 << 10;
  WriteOptions write;
  std::atomic<int> pieces = 0;
  std::uint64_t last = 0;
  write.progress = [&](const WriteProgress& p) {
    EXPECT_LE(p.bytes_done, p.bytes_total);
    EXPECT_GE(p.bytes_done, last);
    last = p.bytes_done;
    return ++pieces < 20;
  };
  const auto stopped = convert_model(kCases / "glm-dsa-tiny", dir / "out", options, write);
  ASSERT_TRUE(stopped) << stopped.error().message;
  EXPECT_TRUE(stopped->written.stopped);
  EXPECT_FALSE(convert(kCases / "glm-dsa-tiny", dir / "out", options).written.stopped);
  EXPECT_TRUE(fs::exists(dir / "out/config.json"));
  // A finished directory is not written over.
  test::expect_error(convert_model(kCases / "glm-dsa-tiny", dir / "out", options, {}), {"already holds"});
}

TEST(Convert, AnotherModelsFilesAreNotReplaced) {
  const test::TempDir dir;
  for (const char* file : {"config.json", "model.safetensors"}) {
    const fs::path to = dir / fmt::format("has-{}", file);
    fs::create_directory(to);
    test::write_file(to / file, "mine");
    test::expect_error(convert_model(kCases / "glm-dsa-tiny", to, {}, {}), {"already holds", file});
    const auto text = read_text(to / file, 100);
    ASSERT_TRUE(text);
    EXPECT_EQ(*text, "mine");
  }
}

TEST(Convert, RefusesWhatCannotWork) {
  const test::TempDir dir;
  WriteOptions write;
  write.available_bytes = 1 << 20;
  test::expect_error(convert_model(kCases / "glm-dsa-tiny", dir / "out", {}, write), {"the disk has 0.00 GB free", "needed"});
  for (const auto& entry : fs::directory_iterator(dir / "out")) EXPECT_NE(entry.path().extension(), ".safetensors");
  EXPECT_TRUE(convert_model(kCases / "glm-dsa-tiny", dir / "out", {}, {})) << "more space must help";
  test::expect_error(convert_model(kCases / "glm-dsa-tiny", kCases / "glm-dsa-tiny", {}, {}), {"same directory"});
  test::expect_error(convert_model(dir / "nothing", dir / "x", {}, {}), {"nothing"});
  ConvertOptions both = keep();
  both.dense = *parse_target_format("int8");
  test::expect_error(convert_model(kCases / "glm-dsa-tiny", dir / "x", both, {}), {"--pack", "--dense"});
  EXPECT_FALSE(fs::exists(dir / "x"));
}

// ---- verification

void flip(const fs::path& file, std::uint64_t at) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(static_cast<std::streamoff>(at));
  const int byte = f.get();
  f.seekp(static_cast<std::streamoff>(at));
  f.put(static_cast<char>(byte ^ 16));
  ASSERT_TRUE(f.good());
}

TEST(Verify, NamesTheDamagedRecords) {
  const test::TempDir dir;
  convert(kCases / "glm-dsa-tiny-g64", dir / "m", keep());
  const Opened m = open_model(dir / "m");
  const std::vector<PackedExpert> all = m.packed.all();
  const PackedExpert &first = all[3], &second = all[all.size() - 2];
  flip(m.checkpoint.shards()[static_cast<std::size_t>(first.record.shard)].path, first.up.data.offset + 77);
  flip(m.checkpoint.shards()[static_cast<std::size_t>(second.record.shard)].path, second.record.offset + second.record.bytes - 1);
  std::uint64_t seen = 0;
  VerifyOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    seen = done;
    return done <= total;
  };
  const auto report = verify_model(dir / "m", options);
  ASSERT_TRUE(report);
  ASSERT_EQ(report->problems.size(), 2u);
  std::string text = report->problems[0] + report->problems[1];
  for (const PackedExpert* e : {&first, &second}) EXPECT_NE(text.find("'" + e->name + "'"), std::string::npos) << text;
  EXPECT_NE(text.find("checksum"), std::string::npos);
  EXPECT_EQ(report->records, all.size());
  EXPECT_EQ(seen, report->bytes);
}

TEST(Verify, PlainContainers) {
  for (const char* name : {"glm-dsa-tiny", "glm-dsa-tiny-g64", "glm-dsa-tiny-mixed", "glm-odd-dims", "glm-dense-attn"}) {
    const auto report = verify_model(kCases / name, {});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->problems, std::vector<std::string>{}) << name;
    EXPECT_GT(report->arrays, 10u);
  }
  // A scale that is no number, and an expert that is not there.
  const test::TempDir dir;
  fs::create_directories(dir / "m");
  for (const auto& entry : fs::directory_iterator(kCases / "glm-dsa-tiny-g64"))
    fs::copy_file(entry.path(), dir / "m" / entry.path().filename());
  const Opened m = open_model(dir / "m");
  const std::string damaged = "model.layers.2.mlp.experts.5.up_proj.weight";
  const TensorInfo& scales = *m.checkpoint.find(damaged + ".qs");
  std::fstream f(m.checkpoint.shards()[static_cast<std::size_t>(scales.range.shard)].path,
                 std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(static_cast<std::streamoff>(scales.range.offset + 12));
  f.write("\x00\x00\xc0\x7f", 4);
  f.close();
  auto report = verify_model(dir / "m", {});
  ASSERT_TRUE(report);
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_NE(report->problems[0].find(damaged), std::string::npos) << report->problems[0];
  EXPECT_NE(report->problems[0].find("element 3"), std::string::npos) << report->problems[0];

  auto tensors = read_safetensors(dir / "m/out-00001.safetensors");
  ASSERT_TRUE(tensors);
  std::vector<NamedTensor> rest;
  for (auto& [key, tensor] : *tensors)
    if (!key.starts_with("model.layers.2.mlp.experts.5.up_proj")) rest.push_back(tensor);
  ASSERT_TRUE(write_safetensors(dir / "m/out-00001.safetensors", rest));
  report = verify_model(dir / "m", {});
  ASSERT_TRUE(report);
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_NE(report->problems[0].find(damaged), std::string::npos);
  EXPECT_NE(report->problems[0].find("missing"), std::string::npos);
}

}  // namespace
}  // namespace colibri

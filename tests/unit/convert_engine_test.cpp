// What src/convert writes, run by the engine: packed models give the contract's bits, synthetic ones stay in range.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "convert/convert.h"
#include "convert/synth.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/oracle.h"
#include "experts/trace.h"
#include "format/packed.h"
#include "format/synthetic_routing.h"
#include "format_test_util.h"
#include "synth_test_util.h"

namespace colibri {
namespace {

namespace fs = std::filesystem;
using test::make;
using test::tiny;
const fs::path kRoot = COLIBRI_SOURCE_DIR;

void expect_oracle(const fs::path& source, const fs::path& dir) {
  for (const char* file : {"expected.safetensors", "contract.safetensors"})
    fs::copy_file(source / file, dir / file, fs::copy_options::overwrite_existing);
  EngineOptions options;
  options.model = dir;
  options.threads = 2;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  const auto report = check_against_oracle(**engine);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->passed());
  EXPECT_EQ(report->contract_bits_differ, 0);
  EXPECT_GT(report->contract_values, 0);
}

class PackedOracle : public testing::TestWithParam<const char*> {};

TEST_P(PackedOracle, GivesTheContractsBits) {
  const fs::path source = kRoot / GetParam();
  const test::TempDir dir;
  ConvertOptions options;
  options.keep_weights = true;
  options.shard_bytes = 300 << 10;
  const auto report = convert_model(source, dir / "m", options, {});
  ASSERT_TRUE(report) << report.error().message;
  expect_oracle(source, dir / "m");
}

INSTANTIATE_TEST_SUITE_P(Tree, PackedOracle,
                         testing::Values("models/demo", "tests/oracle/cases/glm-dsa-tiny", "tests/oracle/cases/glm-dsa-tiny-g64",
                                         "tests/oracle/cases/glm-dsa-tiny-mixed", "tests/oracle/cases/glm-odd-dims"),
                         [](const auto& test) {
                           std::string name = fs::path(test.param).filename().string();
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Runs some tokens through the model and returns the logits of the last.
std::vector<float> run(const fs::path& dir, double* largest_state = nullptr) {
  EngineOptions options;
  options.model = dir;
  options.threads = 2;
  options.context = 64;
  auto engine = Engine::open(options);
  if (!engine) throw std::runtime_error(engine.error().message);
  Model& model = (*engine)->model();
  KvCache cache = model.make_cache();
  constexpr std::int64_t kRows = 40;
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < kRows; ++i) ids.push_back(static_cast<std::int32_t>(i * 37 % 300));
  const auto d = static_cast<std::size_t>((*engine)->config().hidden_size);
  double largest = 0;
  const auto forward =
      model.forward(StepPhase::kPrefill, ids, ContiguousRows::make(cache, 0, kRows).value(), [&](std::int64_t, const float* x) {
        double squares = 0;
        for (std::size_t i = 0; i < kRows * d; ++i) squares += static_cast<double>(x[i]) * x[i];
        largest = std::max(largest, std::sqrt(squares / static_cast<double>(kRows * d)));
      });
  if (!forward) throw std::runtime_error(forward.error().message);
  if (largest_state) *largest_state = largest;
  std::vector<float> logits(static_cast<std::size_t>((*engine)->config().vocab_size));
  const auto result = model.logits(kRows - 1, 1, logits.data());
  if (!result) throw std::runtime_error(result.error().message);
  return logits;
}

TEST(Synth, RunsAndStaysInRange) {
  const test::TempDir dir;
  make(dir / "m", tiny(6));
  double largest = 0;
  const std::vector<float> logits = run(dir / "m", &largest);
  EXPECT_LT(largest, 10) << "activations grow";
  EXPECT_GT(largest, 0.5) << "activations vanish";
  double squares = 0;
  for (const float v : logits) squares += static_cast<double>(v) * v;
  const double rms = std::sqrt(squares / static_cast<double>(logits.size()));
  EXPECT_GT(rms, 1);
  EXPECT_LT(rms, 10);
}

TEST(Synth, PlainLayoutHoldsTheSameWeights) {
  const test::TempDir dir;
  SynthOptions plain = tiny();
  plain.packed = false;
  make(dir / "packed", tiny());
  make(dir / "plain", plain);
  const Checkpoint checkpoint = test::open_folder(dir / "plain");
  EXPECT_TRUE(checkpoint.find("model.layers.1.mlp.experts.0.gate_proj.weight"));
  EXPECT_EQ(run(dir / "packed"), run(dir / "plain"));
}

TEST(Synth, EveryExpertFormatAndMtp) {
  for (const char* format : {"int8", "int4", "int4-g32", "int3-g64", "int2", "bf16"}) {
    const test::TempDir dir;
    SynthOptions options = tiny(1);
    options.experts = *parse_target_format(format);
    options.mtp = true;
    make(dir / "m", options);
    double largest = 0;
    run(dir / "m", &largest);
    EXPECT_LT(largest, 5) << format;
    const Checkpoint checkpoint = test::open_folder(dir / "m");
    const auto index = PackedIndex::open(checkpoint);
    ASSERT_TRUE(index) << index.error().message;
    const auto mtp = index->find("model.layers.2.mlp.experts.", 0, 64, 128);
    ASSERT_TRUE(mtp && mtp->has_value());
    EXPECT_EQ((*mtp)->gate.matrix.format, WeightFormat::kInt8Row);
  }
}

// What a session of 30 prompt tokens and 6 generated ones asked for, by the trace of the run.
struct Recorded {
  Trace trace;
  std::vector<std::int32_t> ids;
};
Recorded record(EngineOptions options, const fs::path& file) {
  options.threads = 2;
  options.context = 64;
  options.trace = file;
  auto engine = Engine::open(options);
  if (!engine) throw std::runtime_error(engine.error().message);
  Session session(**engine);
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 30; ++i) prompt.push_back(i * 37 % 300);
  GenerateOptions generate_options;
  generate_options.max_tokens = 6;
  generate_options.sampling.temperature = 0;
  Recorded recorded;
  const auto stats = generate(session, prompt, generate_options, [&](std::int32_t id) {
    recorded.ids.push_back(id);
    return true;
  });
  if (!stats) throw std::runtime_error(stats.error().message);
  if (auto done = (*engine)->finish_trace(); !done) throw std::runtime_error(done.error().message);
  auto trace = read_trace(file);
  if (!trace) throw std::runtime_error(trace.error().message);
  recorded.trace = std::move(*trace);
  return recorded;
}

// What the routing model itself says those steps need.
Trace expected_trace(const fs::path& model, const Trace& recorded) {
  RoutingOptions o{**load_synthetic_routing(model)};
  o.layers = recorded.model.layers;
  o.experts = recorded.model.experts;
  o.top_k = recorded.model.top_k;
  std::vector<std::int64_t> sparse;
  for (const LayerAccess& a : recorded.steps.front().accesses) sparse.push_back(a.layer);
  RoutingRun run;
  run.prefill = 30;
  run.chunk_rows = recorded.steps.front().rows;
  run.decode = static_cast<std::int64_t>(recorded.steps.size()) - (30 + run.chunk_rows - 1) / run.chunk_rows;
  return trace_of(RoutingModel(o), sparse, run);
}

void expect_same_accesses(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t s = 0; s < a.steps.size(); ++s) {
    ASSERT_EQ(a.steps[s].accesses.size(), b.steps[s].accesses.size()) << "step " << s;
    for (std::size_t i = 0; i < a.steps[s].accesses.size(); ++i) {
      const LayerAccess &x = a.steps[s].accesses[i], &y = b.steps[s].accesses[i];
      EXPECT_EQ(x.layer, y.layer);
      EXPECT_EQ(x.needed, y.needed) << "step " << s << " layer " << x.layer;
      EXPECT_EQ(x.rows, y.rows) << "step " << s << " layer " << x.layer;
      EXPECT_EQ(x.predicted, y.predicted) << "step " << s << " layer " << x.layer;
    }
  }
}

TEST(SyntheticRouting, TheEngineFollowsIt) {
  const test::TempDir dir;
  SynthOptions synth = tiny(4);
  synth.routing->seed = 9;
  make(dir / "m", synth);
  EngineOptions options;
  options.model = dir / "m";
  const Recorded whole = record(options, dir / "a");
  expect_same_accesses(whole.trace, expected_trace(dir / "m", whole.trace));
  options.prefill_chunk = 7;
  const Recorded chunks = record(options, dir / "b");
  expect_same_accesses(chunks.trace, expected_trace(dir / "m", chunks.trace));
  EXPECT_EQ(whole.ids, chunks.ids);
  options.expert_slots = 8;
  const Recorded streamed = record(options, dir / "c");
  expect_same_accesses(chunks.trace, streamed.trace);
  EXPECT_EQ(whole.ids, streamed.ids);
}

TEST(SyntheticRouting, WithoutItTheRoutersChoose) {
  const test::TempDir dir;
  SynthOptions synth = tiny();
  synth.routing.reset();
  make(dir / "m", synth);
  EngineOptions options;
  options.model = dir / "m";
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  EXPECT_EQ((*engine)->routing(), nullptr);
}

// Reads every expert through the streaming source; the first error, or nothing.
std::string streamed_error(const fs::path& model, bool verify, bool direct) {
  EngineOptions options;
  options.model = model;
  options.threads = 2;
  options.context = 256;
  options.expert_slots = 20;
  options.verify = verify;
  options.disk.direct = direct;
  auto engine = Engine::open(options);
  if (!engine) return engine.error().message;
  Session session(**engine);
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 200; ++i) prompt.push_back(i * 37 % 300);
  const auto done = session.prefill(prompt);
  return done ? std::string() : done.error().message;
}

TEST(Verify, FindsADamagedRecordWhileStreaming) {
  const test::TempDir dir;
  make(dir / "m", tiny());
  for (const bool direct : {false, true}) EXPECT_EQ(streamed_error(dir / "m", true, direct), "");
  const Checkpoint checkpoint = test::open_folder(dir / "m");
  const auto index = PackedIndex::open(checkpoint);
  ASSERT_TRUE(index) << index.error().message;
  // One bit of a weight of every expert of layer 1: only a checksum can tell.
  std::string shard;
  for (const PackedExpert& expert : index->all()) {
    if (expert.name.find("layers.1.") == std::string::npos) continue;
    shard = checkpoint.shards()[static_cast<std::size_t>(expert.record.shard)].path.string();
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(expert.up.data.offset + 5);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(file.good());
  }
  ASSERT_FALSE(shard.empty());
  for (const bool direct : {false, true}) {
    EXPECT_EQ(streamed_error(dir / "m", false, direct), "");
    const std::string found = streamed_error(dir / "m", true, direct);
    EXPECT_NE(found.find("checksum"), std::string::npos) << found;
    EXPECT_NE(found.find("model.layers.1.mlp.experts."), std::string::npos) << found;
    EXPECT_NE(found.find(".safetensors"), std::string::npos) << found;
  }
}

TEST(StandInExperts, AskForTheSameAndReadNothing) {
  const test::TempDir dir;
  make(dir / "m", tiny(3));
  EngineOptions options;
  options.model = dir / "m";
  options.expert_slots = 12;
  const Recorded real = record(options, dir / "a");
  options.stand_in_experts = true;
  expect_same_accesses(record(options, dir / "b").trace, real.trace);
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  EXPECT_TRUE((*engine)->stand_ins());
  EXPECT_EQ((*engine)->streaming(), nullptr);
}

}  // namespace
}  // namespace colibri

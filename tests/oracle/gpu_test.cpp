// Whole models on a GPU: the bits of the CPU, whether experts are in memory or arrive, in prompts, answers, MTP rows and
// batches of several sequences, and whatever fails. On Linux the GPU is the software device, on macOS the system's.
#include <gtest/gtest.h>

#if !defined(__APPLE__)
#include <dlfcn.h>
#endif

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "engine/oracle.h"
#include "softmetal/soft_metal.h"
#include "whole_runs.h"

namespace colibri {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::prompt_of;
using test::run;
const fs::path kRoot = COLIBRI_SOURCE_DIR;
const fs::path kDemo = kRoot / "models/demo";
const std::vector<std::string> kCases = {"glm-dense-attn",     "glm-dsa-tiny",       "glm-dsa-tiny-g64",
                                         "glm-dsa-tiny-i4row", "glm-dsa-tiny-mixed", "glm-odd-dims"};

EngineOptions options_for(const fs::path& model, GpuChoice gpu = GpuChoice::kMetal) {
  EngineOptions options;
  options.model = model;
  options.threads = 2;
  options.context = 512;
  options.gpu = gpu;
  return options;
}

std::unique_ptr<Engine> open(const EngineOptions& options) {
  auto engine = Engine::open(options);
  if (!engine) throw std::runtime_error(engine.error().message);
  if (options.gpu == GpuChoice::kMetal && !(*engine)->model().gpu())
    throw std::runtime_error((*engine)->notices().empty() ? "no GPU" : (*engine)->notices().back());
  return std::move(*engine);
}

std::vector<std::int32_t> demo_prompt(std::size_t tokens) { return prompt_of(kDemo, "ids.long", tokens); }

class GpuOracle : public testing::TestWithParam<std::string> {};

// Logits, hidden states layer by layer, greedy tokens and MTP logits against transformers, and bit for bit against the
// independent engine of the contract; positions past the indexer's top-k among them.
TEST_P(GpuOracle, CasesAgreeWithTheReferenceToTheBit) {
  for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{3}}) {
    EngineOptions options = options_for(kRoot / "tests/oracle/cases" / GetParam());
    options.prefill_chunk = chunk;
    const auto engine = open(options);
    const auto report = check_against_oracle(*engine);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->passed()) << GetParam();
    EXPECT_EQ(report->contract_bits_differ, 0) << GetParam();
    EXPECT_GT(report->contract_values, 0);
    const GpuCounters counters = engine->model().gpu()->counters();
    EXPECT_GT(counters.blocks, 0u);
    EXPECT_EQ(counters.redone, 0u) << engine->model().gpu()->faults().describe();
  }
}

TEST_P(GpuOracle, CasesAgreeWithHalfOfTheExpertsMissing) {
  EngineOptions options = options_for(kRoot / "tests/oracle/cases" / GetParam());
  const auto whole = open(options);
  const ModelConfig& config = whole->config();
  const auto sparse = std::count(config.sparse.begin(), config.sparse.end(), true);
  options.expert_slots = std::max<std::int64_t>(sparse * config.experts / 2, config.experts_per_token);
  const auto engine = open(options);
  ASSERT_TRUE(engine->streaming());
  const auto report = check_against_oracle(*engine);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->passed()) << GetParam();
  EXPECT_EQ(report->contract_bits_differ, 0) << GetParam();
  EXPECT_EQ(engine->model().gpu()->counters().redone, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, GpuOracle, testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(GpuModel, DemoModelWritesTheCpusText) {
  const std::vector<std::int32_t> prompt = demo_prompt(70);
  const Outcome cpu = run(*open(options_for(kDemo, GpuChoice::kOff)), prompt, 6);
  for (const std::int64_t chunk : {7, 64}) {
    EngineOptions options = options_for(kDemo);
    options.prefill_chunk = chunk;
    EXPECT_EQ(run(*open(options), prompt, 6), cpu) << chunk;
  }
}

TEST(GpuModel, SameBitsForEveryCacheAndTile) {
  const std::vector<std::int32_t> prompt = demo_prompt(20);
  const Outcome cpu = run(*open(options_for(kDemo, GpuChoice::kOff)), prompt, 4);
  for (const std::int64_t slots : {3, 20, 72}) {
    for (const bool prefetch : {false, true}) {
      EngineOptions options = options_for(kDemo);
      options.expert_slots = slots;
      options.prefetch = prefetch;
      options.gpu_tile_from = prefetch ? 2 : 1000;
      const auto engine = open(options);
      ASSERT_TRUE(engine->streaming());
      EXPECT_EQ(run(*engine, prompt, 4), cpu) << slots << " slots, prefetch " << prefetch;
      EXPECT_EQ(engine->model().gpu()->counters().redone, 0u);
    }
  }
}

// The logits of two rows of one sequence and three of another, after earlier ones of both.
enum class Form : std::uint8_t { kContiguous, kRaggedOfOne, kRaggedOfBoth };
std::vector<float> logits_of_two_sequences(Engine& engine, std::span<const std::int32_t> prompt, Form form) {
  Model& model = engine.model();
  KvCache a = model.make_cache(), b = model.make_cache();
  const auto vocab = static_cast<std::size_t>(engine.config().vocab_size);
  std::vector<float> out;
  const auto step = [&](std::span<const std::int32_t> ids, const AnyRows& rows) {
    const auto end = model.forward(StepPhase::kPrefill, ids, rows);
    if (!end) throw std::runtime_error(end.error().message);
    std::vector<float> logits(ids.size() * vocab);
    const auto done = model.logits(0, rows.count(), logits.data());
    if (!done) throw std::runtime_error(done.error().message);
    out.insert(out.end(), logits.begin(), logits.end());
  };
  const auto rows = [](KvCache& cache, std::int64_t first, std::int64_t count) {
    return ContiguousRows::make(cache, first, count).value();
  };
  step(prompt.first(17), rows(a, 0, 17));
  step(prompt.subspan(5, 3), rows(b, 0, 3));
  out.clear();
  const ContiguousRows of_a = rows(a, 17, 2), of_b = rows(b, 3, 3);
  const std::vector<std::int32_t> ids = {prompt[17], prompt[18], prompt[8], prompt[9], prompt[10]};
  const auto alone = [&](std::span<const std::int32_t> own, const ContiguousRows& at) {
    if (form == Form::kContiguous) return step(own, at);
    step(own, RaggedRows::make({at}).value());
  };
  if (form == Form::kRaggedOfBoth) {
    step(ids, RaggedRows::make({of_a, of_b}).value());
  } else {
    alone(std::span(ids).first(2), of_a);
    alone(std::span(ids).subspan(2), of_b);
  }
  return out;
}

// Rows of two sequences in one step, at positions that have nothing to do with each other; some see more than the top-k.
TEST(GpuModel, RaggedBatchesHaveTheBitsOfEachSequenceAlone) {
  for (const fs::path& dir : {kDemo, kRoot / "tests/oracle/cases/glm-dsa-tiny-g64"}) {
    const auto cpu = open(options_for(dir, GpuChoice::kOff)), gpu = open(options_for(dir));
    const std::vector<std::int32_t> prompt = prompt_of(dir, dir == kDemo ? "ids.long" : "input_ids", 24);
    const std::vector<float> alone = logits_of_two_sequences(*cpu, prompt, Form::kContiguous);
    for (const Form form : {Form::kContiguous, Form::kRaggedOfOne, Form::kRaggedOfBoth}) {
      EXPECT_TRUE(logits_of_two_sequences(*cpu, prompt, form) == alone) << dir << ", form " << static_cast<int>(form);
      EXPECT_TRUE(logits_of_two_sequences(*gpu, prompt, form) == alone) << dir << " on the GPU, form " << static_cast<int>(form);
    }
    EXPECT_EQ(gpu->model().gpu()->counters().redone, 0u);
  }
}

TEST(GpuModel, ATokenIsOneCommandBufferALayerAndOneWait) {
  const auto engine = open(options_for(kDemo));
  Session session(*engine);
  ASSERT_TRUE(session.prefill(demo_prompt(10)));
  for (int token = 0; token < 3; ++token) {
    const GpuCounters before = engine->model().gpu()->counters();
    ASSERT_TRUE(session.append(100 + token));
    const GpuCounters now = engine->model().gpu()->counters().since(before);
    const auto layers = static_cast<std::uint64_t>(engine->config().layers);
    EXPECT_EQ(now.encoded.command_buffers, layers + 1);  // and the head
    EXPECT_EQ(now.encoded.waits, 1u);
    EXPECT_EQ(now.blocks, layers);
    // Counted on the demo model: a change of these is a change of what a token costs a GPU.
    EXPECT_LE(now.encoded.dispatches, 191u);
    EXPECT_LE(now.encoded.barriers, 144u);
  }
}

TEST(GpuModel, AStreamedLayerIsAtMostThreeCommandBuffersAndTwoWaits) {
  EngineOptions options = options_for(kDemo);
  options.expert_slots = 24;
  const auto engine = open(options);
  Session session(*engine);
  ASSERT_TRUE(session.prefill(demo_prompt(10)));
  const ModelConfig& config = engine->config();
  const auto sparse = static_cast<std::uint64_t>(std::count(config.sparse.begin(), config.sparse.end(), true));
  const auto dense = static_cast<std::uint64_t>(config.layers) - sparse;
  for (int token = 0; token < 4; ++token) {
    const GpuCounters before = engine->model().gpu()->counters();
    ASSERT_TRUE(session.append(100 + token));
    const GpuCounters now = engine->model().gpu()->counters().since(before);
    EXPECT_LE(now.encoded.command_buffers, 3 * sparse + dense + 1);
    EXPECT_LE(now.encoded.waits, 2 * sparse + 1);
    EXPECT_EQ(now.blocks, sparse + dense);
  }
}

#if !defined(__APPLE__)

// The software device's faults, armed for one test.
class GpuFaults : public testing::Test {
 protected:
  void SetUp() override {
    cpu_ = run(*open(options_for(kDemo, GpuChoice::kOff)), prompt_, kTokens);
    engine_ = open(options_for(kDemo));
    arm_ = reinterpret_cast<decltype(arm_)>(::dlsym(library(), "soft_metal_arm"));
    disarm_ = reinterpret_cast<decltype(disarm_)>(::dlsym(library(), "soft_metal_disarm"));
    ASSERT_TRUE(arm_ && disarm_);
    disarm_();
  }
  void TearDown() override {
    if (disarm_) disarm_();
  }
  // Loaded by the engine already; the same library is found again by any of its functions' addresses.
  static void* library() {
    static void* handle = [] {
      const char* path = std::getenv("COLI_SOFT_METAL");
      return ::dlopen(path ? path : COLIBRI_SOFT_METAL_LIBRARY, RTLD_NOW);
    }();
    return handle;
  }
  const gpu::FaultLog& faults() const { return engine_->model().gpu()->faults(); }

  static constexpr std::int64_t kTokens = 3;
  const std::vector<std::int32_t> prompt_ = demo_prompt(12);
  Outcome cpu_;
  std::unique_ptr<Engine> engine_;
  void (*arm_)(SoftMetalFault, int, int) = nullptr;
  void (*disarm_)() = nullptr;
};

TEST_F(GpuFaults, ABlockThatFailsIsTheCpusAndCountedByReason) {
  const struct {
    SoftMetalFault armed;
    gpu::Fault counted;
  } kinds[] = {{kSoftMetalError, gpu::Fault::kError},
               {kSoftMetalTimeout, gpu::Fault::kTimeout},
               {kSoftMetalMemory, gpu::Fault::kMemory},
               {kSoftMetalResidency, gpu::Fault::kResidency}};
  std::uint64_t redone = 0;
  for (const auto& kind : kinds) {
    for (const int after : {0, 6, 20}) {
      const std::uint64_t before = faults().count(kind.counted);
      arm_(kind.armed, after, 1);
      EXPECT_EQ(run(*engine_, prompt_, kTokens), cpu_) << gpu::fault_name(kind.counted) << " after " << after;
      EXPECT_EQ(faults().count(kind.counted), before + 1) << faults().describe();
      EXPECT_TRUE(faults().on());
      disarm_();
    }
    const std::uint64_t now = engine_->model().gpu()->counters().redone;
    EXPECT_GT(now, redone);
    redone = now;
  }
}

TEST_F(GpuFaults, TwoInARowAreBorneThreeSwitchTheGpuOff) {
  // The third layer fails with everything that was handed over after it, and so does the first one submitted again.
  arm_(kSoftMetalError, 2, 6);
  EXPECT_EQ(run(*engine_, prompt_, kTokens), cpu_);
  EXPECT_TRUE(faults().on());
  EXPECT_TRUE(faults().verdict().empty());
  EXPECT_EQ(faults().total(), 2u);
  arm_(kSoftMetalError, 4, -1);
  EXPECT_EQ(run(*engine_, prompt_, kTokens), cpu_);
  EXPECT_FALSE(faults().on());
  EXPECT_EQ(faults().total(), 2u + 3u);
  EXPECT_NE(faults().verdict().find("switched off"), std::string::npos);
  disarm_();
  const GpuCounters before = engine_->model().gpu()->counters();
  EXPECT_EQ(run(*engine_, prompt_, kTokens), cpu_);
  EXPECT_EQ(engine_->model().gpu()->counters().since(before).encoded.command_buffers, 0u);
}

TEST_F(GpuFaults, StreamedLayersFailAsHarmlessly) {
  EngineOptions options = options_for(kDemo);
  options.expert_slots = 20;
  engine_ = open(options);
  for (const int after : {0, 1, 2, 3, 5, 8, 13, 21}) {
    arm_(kSoftMetalError, after, 1);
    EXPECT_EQ(run(*engine_, prompt_, kTokens), cpu_) << after;
    EXPECT_TRUE(faults().on());
    disarm_();
  }
  EXPECT_EQ(faults().count(gpu::Fault::kError), 8u);
}

TEST_F(GpuFaults, KernelsThatDoNotCompileLeaveTheWorkToTheCpu) {
  arm_(kSoftMetalCompile, 0, -1);
  EXPECT_EQ(run(*engine_, prompt_, kTokens), cpu_);
  EXPECT_FALSE(faults().on());
  EXPECT_EQ(faults().count(gpu::Fault::kCompile), 3u);
}

TEST_F(GpuFaults, MemoryThatIsRefusedLeavesTheModelToTheCpu) {
  arm_(kSoftMetalAllocation, 0, -1);
  auto engine = Engine::open(options_for(kDemo));
  disarm_();
  ASSERT_TRUE(engine) << engine.error().message;
  EXPECT_EQ((*engine)->model().gpu(), nullptr);
  ASSERT_FALSE((*engine)->notices().empty());
  EXPECT_NE((*engine)->notices().back().find("is not used"), std::string::npos) << (*engine)->notices().back();
  EXPECT_EQ(run(**engine, prompt_, kTokens), cpu_);
}

// A cache that the device refuses is no reason to stop: its layers are computed by the CPU.
TEST_F(GpuFaults, ACacheThatIsRefusedIsTheCpus) {
  arm_(kSoftMetalAllocation, 0, 1);
  EXPECT_EQ(run(*engine_, prompt_, kTokens), cpu_);
  EXPECT_EQ(faults().count(gpu::Fault::kResidency), static_cast<std::uint64_t>(gpu::FaultLog::kInARow)) << faults().describe();
  EXPECT_FALSE(faults().on());
}

TEST_F(GpuFaults, WithoutAResidencySetEveryRegionIsDeclared) {
  arm_(kSoftMetalResidencySet, 0, -1);
  const auto engine = open(options_for(kDemo));
  EXPECT_FALSE(engine->device()->info().residency_set);
  EXPECT_EQ(run(*engine, prompt_, kTokens), cpu_);
  EXPECT_EQ(engine->model().gpu()->counters().redone, 0u);
}

#endif

// A GPU that alone makes numbers that are not finite is counted like one that fails, and switched off.
TEST(GpuModel, AGpuThatMiscalculatesIsCountedAndSwitchedOff) {
  auto device = gpu::open_metal();
  if (!device) device = gpu::open_software_metal();
  ASSERT_TRUE(device) << device.error().message;
  const auto engine = open(options_for(kDemo, GpuChoice::kOff));
  const std::vector<std::int32_t> prompt = demo_prompt(6);
  const Outcome cpu = run(*engine, prompt, 2);
  auto& weights = const_cast<ModelWeights&>(engine->weights());
  std::vector<float> norms;
  for (LayerWeights& layer : weights.layers) norms.push_back(std::exchange(layer.post_attention_norm[5], std::nanf("")));
  ASSERT_TRUE(engine->model().use_gpu(**device, weights, {}));  // takes copies of the norms
  for (std::size_t i = 0; i < norms.size(); ++i) weights.layers[i].post_attention_norm[5] = norms[i];
  EXPECT_EQ(run(*engine, prompt, 2), cpu);
  const gpu::FaultLog& faults = engine->model().gpu()->faults();
  EXPECT_EQ(faults.count(gpu::Fault::kError), static_cast<std::uint64_t>(gpu::FaultLog::kInARow)) << faults.describe();
  EXPECT_FALSE(faults.on());
}

// A NaN is found on the GPU, and its weight named as the CPU names it; the GPU is not to blame.
TEST(GpuModel, AWeightThatIsNoNumberIsNamed) {
  const auto engine = open(options_for(kDemo));
  const Matrix& damaged = engine->weights().layers[2].attention.o;
  ASSERT_NE(damaged.scales, nullptr);
  const_cast<float*>(damaged.scales)[3] = std::nanf("");
  Session session(*engine);
  const auto done = session.prefill(demo_prompt(4));
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find("model.layers.2.self_attn.o_proj"), std::string::npos) << done.error().message;
  EXPECT_EQ(engine->model().gpu()->faults().total(), 0u);
}

}  // namespace
}  // namespace colibri

// coli info, oracle and bench.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "child.h"

namespace colibri {
namespace {

using nlohmann::json;

const std::string kCases = COLIBRI_SOURCE_DIR "/tests/oracle/cases/";

json parse(const ChildResult& result) {
  json parsed = json::parse(result.out, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << result.out << result.err;
  return parsed;
}

TEST(Info, DemoModel) {
  const ChildResult result = run_coli({"info", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const json out = parse(result);
  EXPECT_EQ(out["runnable"], true);
  EXPECT_EQ(out["shards"], 3);
  EXPECT_EQ(out["config"]["model_type"], "glm_moe_dsa");
  EXPECT_EQ(out["parameters"], 48247080);  // the model's card says 48.3 million, small tensors included
  std::uint64_t bytes = 0, expert_bytes = 0;
  for (const json& part : out["parts"]) {
    bytes += part["bytes"].get<std::uint64_t>();
    if (part["part"] == "routed experts") expert_bytes += part["bytes"].get<std::uint64_t>();
    EXPECT_NE(part["format"], "u8") << part;
    EXPECT_NE(part["part"], "other") << part;
  }
  EXPECT_EQ(out["bytes"], bytes);
  EXPECT_EQ(out["expert_bytes"], expert_bytes);
  const ChildResult text = run_coli({"info", demo_model()});
  EXPECT_EQ(text.exit_code, 0);
  for (const char* part : {"glm_moe_dsa", "int4-grouped g64", "int8-row", "routed experts"})
    EXPECT_NE(text.out.find(part), std::string::npos) << text.out;
}

TEST(Info, HuggingFaceAndContainerCasesHoldTheSameNetwork) {
  const json hub = parse(run_coli({"info", kCases + "glm-dsa-tiny", "--json"}));
  const json container = parse(run_coli({"info", kCases + "glm-dsa-tiny-mixed", "--json"}));
  EXPECT_EQ(hub["parameters"], container["parameters"]);
  EXPECT_GT(hub["bytes"], container["bytes"]);
}

TEST(Info, AFamilyItCannotRunIsStillDescribed) {
  const auto dir = std::filesystem::temp_directory_path() / ("coli_info_" + std::to_string(getpid()));
  std::filesystem::create_directory(dir);
  std::filesystem::copy_file(kCases + "glm-dsa-tiny/model.safetensors", dir / "model.safetensors");
  std::ofstream(dir / "config.json") << R"({"model_type": "banana"})";
  const ChildResult result = run_coli({"info", dir.string(), "--json"});
  std::filesystem::remove_all(dir);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json out = parse(result);
  EXPECT_EQ(out["runnable"], false);
  EXPECT_NE(std::string(out["notes"][0]).find("banana"), std::string::npos);
  EXPECT_GT(out["parameters"], 0);
}

TEST(Info, AModelWhoseWeightsDoNotFitItsConfigIsNotRunnable) {
  const auto dir = std::filesystem::temp_directory_path() / ("coli_info_shape_" + std::to_string(getpid()));
  std::filesystem::create_directory(dir);
  std::filesystem::copy_file(kCases + "glm-odd-dims/model.safetensors", dir / "model.safetensors");
  json config = json::parse(std::ifstream(kCases + "glm-odd-dims/config.json"));
  config["intermediate_size"] = config["intermediate_size"].get<int>() + 1;
  std::ofstream(dir / "config.json") << config;
  const ChildResult result = run_coli({"info", "--model", dir.string(), "--json"});  // the option means the same as the word
  std::filesystem::remove_all(dir);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json out = parse(result);
  EXPECT_EQ(out["runnable"], false);
  EXPECT_NE(std::string(out["notes"][0]).find("colibri cannot run this model"), std::string::npos) << out["notes"];
}

TEST(Info, Errors) {
  const ChildResult result = run_coli({"info", "/no/such/model"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err.rfind("coli: no model directory /no/such/model", 0), 0U) << result.err;
}

TEST(Oracle, CaseAgreesAndDumps) {
  const auto dump = std::filesystem::temp_directory_path() / ("coli_dump_" + std::to_string(getpid()));
  const ChildResult result = run_coli({"oracle", kCases + "glm-dsa-tiny", "--json", "--dump", dump.string()});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  const json out = parse(result);
  EXPECT_EQ(out["passed"], true);
  EXPECT_EQ(out["contract_bits_differ"], 0);
  EXPECT_EQ(out["greedy_equal"], out["greedy_total"]);
  EXPECT_EQ(out["argmax_equal"], out["positions"]);
  EXPECT_LT(out["max_rel_logit_err"], 5e-6);
  EXPECT_GE(out["mtp_max_rel_err"], 0);
  EXPECT_GT(std::filesystem::file_size(dump), 1000U);
  std::filesystem::remove(dump);
}

TEST(Oracle, DisagreementFails) {
  const ChildResult result = run_coli({"oracle", kCases + "glm-dsa-tiny", "--tolerance", "0"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("DOES NOT AGREE"), std::string::npos);
}

TEST(Oracle, TfWithRunChecksTheModel) {
  ChildOptions options;
  options.environment = {{"TF", "1"}, {"DEBUG_LOGITS", "1"}};
  const ChildResult result = run_coli({"run", "--model", kCases + "glm-odd-dims"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("\nagrees\n"), std::string::npos) << result.out;
}

TEST(Oracle, WithoutReferenceItSaysSo) {
  const auto dir = std::filesystem::temp_directory_path() / ("coli_oracle_" + std::to_string(getpid()));
  std::filesystem::create_directory(dir);
  for (const char* name : {"model.safetensors", "config.json"})
    std::filesystem::copy_file(kCases + "glm-odd-dims/" + name, dir / name);
  const ChildResult result = run_coli({"oracle", dir.string()});
  std::filesystem::remove_all(dir);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("expected.safetensors"), std::string::npos) << result.err;
}

TEST(Oracle, TakesTheModelAsAnOptionToo) { EXPECT_EQ(run_coli({"oracle", "--model", kCases + "glm-odd-dims"}).exit_code, 0); }

TEST(Bench, SizesThatDoNotFitAreNamed) {
  const std::vector<std::string> few = {
      "bench", "--model", kCases + "glm-odd-dims", "--ctx", "8", "--prompt", "2,9", "--depth", "4", "--tokens", "8", "--repeat",
      "1",     "--json"};
  const ChildResult some = run_coli(few);
  EXPECT_EQ(some.exit_code, 0) << some.err;
  EXPECT_EQ(parse(some)["prompt"].size(), 1U);
  EXPECT_NE(some.err.find("--prompt 9 is left out"), std::string::npos) << some.err;
  EXPECT_NE(some.err.find("--depth 4 is left out"), std::string::npos) << some.err;
  const ChildResult none = run_coli({"bench", "--model", kCases + "glm-odd-dims", "--ctx", "8", "--prompt", "9", "--depth", "9"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_EQ(none.out, "");
}

TEST(Bench, AnInterruptStopsAPrompt) {
  if (!can_watch_signals()) GTEST_SKIP() << kNoProc;
  ChildOptions options;
  options.interrupts_when_caught = 1;
  const ChildResult result =
      run_coli({"bench", "--prompt", "4096", "--prefill-chunk", "8", "--isa", "scalar", "--threads", "1"}, options);
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_EQ(result.out, "");
}

TEST(Bench, PrintsSpeedsForEachSize) {
  const ChildResult result = run_coli({"bench", "--model", kCases + "glm-odd-dims", "--prompt", "1,4", "--depth", "2", "--tokens",
                                       "2", "--repeat", "1", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json out = parse(result);
  EXPECT_EQ(out["prompt"].size(), 2U);
  EXPECT_EQ(out["generation"].size(), 1U);
  EXPECT_GT(out["generation"][0]["tok_s"], 0);
  EXPECT_GT(out["read_gb_s"], 0);
  EXPECT_GT(out["fma_gflop_s"], 0);
}

}  // namespace
}  // namespace colibri

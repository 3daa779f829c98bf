// coli replay on traces of the demo model.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "child.h"
#include "temp_dir.h"

namespace colibri {
namespace {

using nlohmann::json;

class Replay : public testing::Test {
 protected:
  Replay() {
    const ChildResult run = run_coli({"run", "--trace", trace_, "--seed", "3", "-n", "12", "Once upon a time"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
  }

  static json parse(const ChildResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    json parsed = json::parse(result.out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << result.out;
    return parsed;
  }

  const TempDir dir_;
  const std::string trace_ = dir_ / "trace";
};

TEST_F(Replay, ComparesPoliciesWithTheOptimum) {
  const json out = parse(run_coli({"replay", trace_, "--slots", "36,72", "--json"}));
  EXPECT_EQ(out["experts"], 144);
  EXPECT_EQ(out["experts_of_one_step"], 18);
  ASSERT_EQ(out["sizes"].size(), 2U);
  for (const json& size : out["sizes"]) {
    EXPECT_EQ(size["caches"][0]["cache"], "lru");
    for (const json& cache : size["caches"]) {
      const auto total = [](const json& hits) {
        return std::uint64_t(hits["decode"]["hits"]) + std::uint64_t(hits["prefill"]["hits"]);
      };
      EXPECT_LE(total(cache), total(size["optimum"])) << cache;
      EXPECT_EQ(cache["decode"]["needed"], size["optimum"]["decode"]["needed"]);
      EXPECT_GT(cache["decode"]["needed"], 0);
    }
  }
  const ChildResult text = run_coli({"replay", trace_});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("optimum (Belady)"), std::string::npos) << text.out;
}

TEST_F(Replay, TheBoundLiesBetweenTheSlowerPartAndTheSum) {
  const json out = parse(run_coli({"replay", trace_, "--overlap", "--disk", "0.5", "--json"}));
  ASSERT_EQ(out["sizes"].size(), 2U);  // with and without reading ahead
  for (const json& size : out["sizes"]) {
    const json& decode = size["decode"];
    EXPECT_GT(decode["steps"], 0);
    EXPECT_GE(double(decode["wall_ms"]), double(decode["max_of_both_ms"]) - 1e-9);
    EXPECT_LE(double(decode["wall_ms"]), double(decode["compute_ms"]) + double(decode["disk_ms"]) + 1e-9);
  }
  const ChildResult text = run_coli({"replay", trace_, "--overlap", "--disk", "0.5"});
  EXPECT_NE(text.out.find("decode, reading ahead"), std::string::npos) << text.out;
}

TEST_F(Replay, Errors) {
  EXPECT_EQ(run_coli({"replay", trace_, "--overlap"}).exit_code, 2);
  EXPECT_EQ(run_coli({"replay", trace_, "--overlap", "--disk", "1", "--policy", "none"}).exit_code, 1);
  EXPECT_EQ(run_coli({"replay", dir_ / "absent"}).exit_code, 1);
  std::ofstream(dir_ / "noise") << "no trace at all";
  const ChildResult noise = run_coli({"replay", dir_ / "noise"});
  EXPECT_EQ(noise.exit_code, 1);
  EXPECT_NE(noise.err.find("noise"), std::string::npos) << noise.err;
  std::ofstream(dir_ / "usage") << "1 2 three\n";
  const ChildResult usage = run_coli({"replay", trace_, "--usage", dir_ / "usage"});
  EXPECT_EQ(usage.exit_code, 1);
  EXPECT_NE(usage.err.find("usage"), std::string::npos) << usage.err;
}

}  // namespace
}  // namespace colibri

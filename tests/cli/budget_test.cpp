// A model larger than the memory it is given.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "child.h"
#include "temp_dir.h"

namespace colibri {
namespace {

using nlohmann::json;

json json_of(const ChildResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  json parsed = json::parse(result.out, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << result.out;
  return parsed;
}

// Some 230 MB of experts, of which a budget of 230 MB in all holds a part.
TEST(Budget, PeakMemoryStaysWithinIt) {
  const TempDir dir;
  const std::string model = dir / "m";
  ASSERT_EQ(run_coli({"synth",   "--like",  "glm-5.2", "--layers",       "3",       "--hidden", "512",
                      "--heads", "4",       "--vocab", "1000",           "--width", "512",      "--expert-count",
                      "64",      "--top-k", "8",       "--expert-width", "1408",    "--out",    model})
                .exit_code,
            0);
  const auto run = [&](const char* ram, const char* direct) {
    return json_of(run_coli({"run", "--model", model, "--raw", "a b c d e f g h", "--temp", "0", "-n", "24", "--ctx", "256",
                             "--ram", ram, "--direct", direct, "--json"}));
  };
  const json roomy = run("4", "off");
  EXPECT_FALSE(roomy.contains("experts")) << "everything fits: nothing is streamed";
  for (const char* direct : {"off", "on"}) {
    const json tight = run("0.23", direct);
    ASSERT_TRUE(tight.contains("experts")) << "the experts do not fit";
    EXPECT_GT(tight["experts"]["per_token"]["read"], 0);
    EXPECT_EQ(tight["experts"]["per_token"]["needed"], 24);  // 3 layers, 8 each
    EXPECT_EQ(tight["logits_hash"], roomy["logits_hash"]);
    EXPECT_EQ(tight["memory_budget_bytes"], 230000000);
    const double peak = tight["peak_memory_bytes"];
    EXPECT_LE(peak, 1.03 * 230e6) << "direct " << direct;
    EXPECT_LT(peak, roomy["peak_memory_bytes"]);
  }
}

}  // namespace
}  // namespace colibri

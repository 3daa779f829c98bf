// coli selftest on the software device: the page that the owner of a Mac will paste.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "child.h"

namespace colibri {
namespace {

using nlohmann::json;

TEST(Selftest, EveryBitOfEveryKernelAgrees) {
  const ChildResult result = run_coli({"selftest", "--quick"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.err, "");
  std::istringstream lines(result.out);
  int checks = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 200U) << line;
    if (line.find(" differing") == std::string::npos) continue;
    ++checks;
    EXPECT_NE(line.find(" values, 0 differing"), std::string::npos) << line;
  }
  EXPECT_GE(checks, 23) << result.out;
  for (const char* part : {"products, int4-grouped", "attention, 2,049 on", "indexer, selection", "router", "routed experts",
                           ": equal", "reading memory", "submit to known end", "result: every bit agrees"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
#if !defined(__APPLE__)
  EXPECT_LT(result.out.find("SOFTWARE DEVICE"), 100U) << result.out;
  EXPECT_NE(result.out.find("ON THE SOFTWARE DEVICE: these times say nothing about any GPU"), std::string::npos) << result.out;
#endif
}

TEST(Selftest, WithoutAGpuNothingIsCalledRight) {
  const ChildResult result = run_coli({"selftest", "--gpu", "off"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("NO GPU WAS CHECKED"), std::string::npos) << result.out;
}

TEST(Selftest, BadInputIsNamed) {
  const auto expect_error = [](const std::vector<std::string>& arguments, int exit_code, const std::string& part) {
    const ChildResult result = run_coli(arguments);
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  expect_error({"selftest", "--gpu", "fast"}, 2, "--gpu");
  expect_error({"selftest", "page"}, 2, "page");
  expect_error({"selftest", "--model", "/no/such/model"}, 1, "/no/such/model");
}

#if !defined(__APPLE__)

// One command buffer that fails, a GPU that fails while the model runs, kernels that do not compile, memory that is refused:
// each is named on the page, and the page is not a success.
TEST(Selftest, FaultsAreReported) {
  const auto page = [](const std::string& fault) {
    const ChildResult result = run_coli({"selftest", "--quick", "--json"}, {.environment = {{"COLI_SOFT_METAL_FAULT", fault}}});
    EXPECT_EQ(result.exit_code, 1) << fault << "\n" << result.out;
    json parsed = json::parse(result.out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << result.out << result.err;
    EXPECT_EQ(parsed["passed"], false);
    return parsed;
  };
  const json one = page("timeout:2:1");
  int failed = 0;
  for (const json& check : one["checks"]) {
    if (check["passed"]) continue;
    ++failed;
    EXPECT_NE(std::string(check["error"]).find("timeout"), std::string::npos) << check;
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(one["model"]["passed"], true);

  const json uncompiled = page("compile:0:1000");
  EXPECT_FALSE(uncompiled["checks"].empty());
  for (const json& check : uncompiled["checks"])
    EXPECT_NE(std::string(check["error"]).find("compile"), std::string::npos) << check;

  const json refused = page("allocation:0:1");
  EXPECT_TRUE(refused["checks"].empty());
  EXPECT_NE(std::string(refused["device_error"]).find("memory"), std::string::npos) << refused["device_error"];
}

TEST(Selftest, AMissingSoftwareDeviceIsNamed) {
  const ChildResult result = run_coli({"selftest"}, {.environment = {{"COLI_SOFT_METAL", "/no/such/library.so"}}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("software Metal device"), std::string::npos) << result.err;
}

#endif

}  // namespace
}  // namespace colibri

// coli convert, verify and synth.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "child.h"
#include "temp_dir.h"

namespace colibri {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const std::string kCases = COLIBRI_SOURCE_DIR "/tests/oracle/cases/";

json parse(const ChildResult& result) {
  json parsed = json::parse(result.out, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << result.out << result.err;
  return parsed;
}

TEST(Convert, QuantisesAndTheResultIsWholeAndRuns) {
  const TempDir dir;
  const ChildResult result = run_coli(
      {"convert", kCases + "glm-dsa-tiny", dir / "m", "--experts", "int4-g64", "--dense", "int8", "--io", "int8", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  bool experts = false;
  const json report = parse(result);
  for (const json& part : report["parts"])
    if (part["part"] == "routed experts") {
      experts = true;
      EXPECT_GT(part["relative_rms"], 0.01);
      EXPECT_LT(part["relative_rms"], 0.2);
    }
  EXPECT_TRUE(experts);
  const ChildResult verified = run_coli({"verify", dir / "m"});
  EXPECT_EQ(verified.exit_code, 0) << verified.out;
  EXPECT_NE(verified.out.find("\nwhole\n"), std::string::npos) << verified.out;
  const json info = parse(run_coli({"info", dir / "m", "--json"}));
  EXPECT_EQ(info["parameters"], parse(run_coli({"info", kCases + "glm-dsa-tiny", "--json"}))["parameters"]);
  for (const json& part : info["parts"])
    if (part["part"] == "routed experts") {
      EXPECT_NE(std::string(part["format"]).find("packed"), std::string::npos) << part;
    }
}

TEST(Convert, PackedDemoModelAnswersLikeThePlainOne) {
  const TempDir dir;
  const ChildResult result = run_coli({"convert", demo_model(), dir / "m", "--pack"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("as it was"), std::string::npos) << result.out;
  const std::vector<std::string> prompt = {"--temp", "0", "-n", "12", "Once upon a time"};
  const auto answer = [&](const std::string& model) {
    std::vector<std::string> arguments = {"run", "--model", model};
    arguments.insert(arguments.end(), prompt.begin(), prompt.end());
    const ChildResult run = run_coli(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out;
  };
  const std::string plain = answer(demo_model());
  EXPECT_FALSE(plain.empty());
  EXPECT_EQ(answer(dir / "m"), plain);
}

TEST(Info, AGroupSizeWithoutFastKernelsIsNoted) {
  const TempDir dir;
  ASSERT_EQ(run_coli({"convert", kCases + "glm-dsa-tiny-g64", dir / "m", "--pack"}).exit_code, 0);
  const auto noted = [&] { return run_coli({"info", dir / "m"}).out.find("int4-grouped g72 runs slowly") != std::string::npos; };
  EXPECT_FALSE(noted());
  // Rows of 128 columns have two scales with groups of 64 and of 72 alike, so the rest of the file still fits.
  for (const auto& entry : fs::directory_iterator(dir / "m")) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream in(entry.path(), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    in.close();
    const std::string group = R"(\"group\":)";
    for (std::size_t at = 0; (at = bytes.find(group + "64", at)) != std::string::npos;) bytes.replace(at + group.size(), 2, "72");
    std::ofstream(entry.path(), std::ios::binary) << bytes;
  }
  EXPECT_TRUE(noted()) << run_coli({"info", dir / "m"}).out;
}

TEST(Convert, Errors) {
  const TempDir dir;
  ChildResult result = run_coli({"convert", kCases + "glm-dsa-tiny", dir / "m", "--experts", "int5"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("int4-g64"), std::string::npos) << result.err;
  result = run_coli({"convert", kCases + "glm-dsa-tiny", dir / "m", "--layout", "tight"});
  EXPECT_EQ(result.exit_code, 2);
  result = run_coli({"convert", kCases + "glm-dsa-tiny", dir / "m", "--pack", "--dense", "int8"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("--pack"), std::string::npos) << result.err;
  EXPECT_FALSE(fs::exists(dir / "m"));
}

TEST(Verify, ADamagedRecordFails) {
  const TempDir dir;
  ASSERT_EQ(run_coli({"synth", "--like", "tiny", "--layers", "2", "--out", dir / "m"}).exit_code, 0);
  ASSERT_EQ(run_coli({"verify", dir / "m"}).exit_code, 0);
  {
    std::fstream file(dir / "m" + "/out-00001.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3 * 16384 + 100);  // header, then records of more than this
    file.write("damage", 6);
    ASSERT_TRUE(file.good());
  }
  const ChildResult text = run_coli({"verify", dir / "m"});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_NE(text.out.find("NOT WHOLE: 1 problems"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find(".packed'"), std::string::npos) << text.out;
  const json out = parse(run_coli({"verify", dir / "m", "--json"}));
  EXPECT_EQ(out["whole"], false);
  EXPECT_EQ(out["problems"].size(), 1U);
}

TEST(Synth, WritesAModelThatRunsAndSaysWhatItIs) {
  const TempDir dir;
  const ChildResult made = run_coli({"synth", "--like", "tiny", "--layers", "2", "--vocab", "400", "--expert-count", "12",
                                     "--seed", "9", "--out", dir / "m", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_GT(parse(made)["bytes"], 100000);
  const json info = parse(run_coli({"info", dir / "m", "--json"}));
  EXPECT_EQ(info["config"]["vocab_size"], 400);
  EXPECT_EQ(info["config"]["experts"], 12);
  EXPECT_NE(std::string(info["notes"][0]).find("synthetic"), std::string::npos) << info["notes"];
  const ChildResult run = run_coli({"run", "--model", dir / "m", "-n", "8", "--seed", "1", "Hello"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_FALSE(run.out.empty());
  // Not twice into the same place.
  const ChildResult again = run_coli({"synth", "--like", "tiny", "--out", dir / "m"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.err.find("already holds"), std::string::npos) << again.err;
}

}  // namespace
}  // namespace colibri

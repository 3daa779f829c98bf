// Every reference case, with every kernel table this machine has: within 5e-6 of transformers, and bit for bit what an
// independent engine of the contract computed.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <functional>

#include "engine/oracle.h"
#include "format/safetensors.h"

namespace colibri {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = COLIBRI_SOURCE_DIR;

std::string describe(const OracleReport& r) {
  return fmt::format("positions {} logits {:.2e} argmax {} greedy {}/{} mtp {:.2e} contract bits {} of {}", r.positions,
                     r.max_rel_logit_err, r.argmax_equal, r.greedy_equal, r.greedy_total, r.mtp_max_rel_err,
                     r.contract_bits_differ, r.contract_values);
}

class OracleCase : public testing::TestWithParam<std::string> {};

TEST_P(OracleCase, AgreesWithTransformersAndTheContract) {
  const fs::path dir = GetParam() == "demo" ? kRoot / "models/demo" : kRoot / "tests/oracle/cases" / GetParam();
  for (const Kernels* kernels : available_kernels()) {
    EngineOptions options;
    options.model = dir;
    options.isa = kernels->name;
    options.threads = 2;
    auto engine = Engine::open(options);
    ASSERT_TRUE(engine) << engine.error().message;
    auto report = check_against_oracle(**engine);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->passed()) << kernels->name << ": " << describe(*report);
    EXPECT_EQ(report->contract_bits_differ, 0) << kernels->name;
    EXPECT_GT(report->contract_values, 0);
    EXPECT_GT(report->greedy_total, 0);
    if (GetParam() != "demo") {
      EXPECT_EQ(report->hidden_rel_err.size(), static_cast<std::size_t>((*engine)->config().layers + 1));
      EXPECT_GE(report->mtp_max_rel_err, 0) << "the MTP layer was not compared";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OracleCase,
                         testing::Values("glm-dsa-tiny", "glm-dsa-tiny-g64", "glm-dsa-tiny-i4row", "glm-dsa-tiny-mixed",
                                         "glm-dense-attn", "glm-odd-dims", "demo"),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

// The check must notice what it is for: one wrong value in a reference.
TEST(Oracle, NoticesADifference) {
  const fs::path source = kRoot / "tests/oracle/cases/glm-odd-dims";
  const fs::path dir = fs::temp_directory_path() / fmt::format("colibri-oracle-{}", ::getpid());
  fs::create_directories(dir);
  for (const char* file : {"config.json", "model.safetensors", "expected.safetensors", "contract.safetensors"})
    fs::copy_file(source / file, dir / file, fs::copy_options::overwrite_existing);
  auto tensors = read_safetensors(dir / "contract.safetensors");
  ASSERT_TRUE(tensors);
  std::vector<NamedTensor> changed;
  for (auto& [name, tensor] : *tensors) {
    if (name == "logits") tensor.bytes[5 * 4] ^= std::byte{1};
    changed.push_back(tensor);
  }
  ASSERT_TRUE(write_safetensors(dir / "contract.safetensors", changed));
  EngineOptions options;
  options.model = dir;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  const fs::path dump_file = dir.string() + "-dump.safetensors", link = dir.string() + "-link.safetensors";
  EXPECT_FALSE(check_against_oracle(**engine, dir / "dump.safetensors")) << "a dump would become part of the model";
  fs::create_symlink(dump_file, link);
  auto report = check_against_oracle(**engine, link);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->contract_bits_differ, 1);
  EXPECT_FALSE(report->passed());
  auto dump = read_safetensors(dump_file);
  ASSERT_TRUE(dump) << dump.error().message;
  EXPECT_TRUE(dump->contains("logits") && dump->contains("hidden") && dump->contains("mtp_logits"));
  EXPECT_TRUE(fs::is_symlink(link));
  for (const fs::path& path : {dir, dump_file, link}) fs::remove_all(path);
}

// What cannot be compared is an error, not agreement.
TEST(Oracle, ReferencesThatCannotBeComparedAreErrors) {
  const fs::path source = kRoot / "tests/oracle/cases/glm-dsa-tiny-g64";
  const fs::path dir = fs::temp_directory_path() / fmt::format("colibri-oracle-parts-{}", ::getpid());
  const auto check = [&](const std::function<void()>& damage) -> std::string {
    fs::remove_all(dir);
    fs::copy(source, dir);
    damage();
    EngineOptions options;
    options.model = dir;
    auto engine = Engine::open(options);
    if (!engine) return engine.error().message;
    auto report = check_against_oracle(**engine);
    return report ? "agrees" : report.error().message;
  };
  const auto retype = [&](const char* file, const char* tensor, bool remove) {
    auto tensors = read_safetensors(dir / file);
    ASSERT_TRUE(tensors);
    std::vector<NamedTensor> changed;
    for (auto& [name, value] : *tensors) {
      if (name == tensor && remove) continue;
      if (name == tensor) value.dtype = DType::kF32;
      changed.push_back(value);
    }
    ASSERT_TRUE(write_safetensors(dir / file, changed));
  };
  EXPECT_EQ(check([] {}), "agrees");
  EXPECT_NE(check([&] { fs::remove(dir / "out-mtp-00003.safetensors"); }).find("MTP"), std::string::npos);
  EXPECT_NE(check([&] { retype("expected.safetensors", "greedy", false); }).find("greedy"), std::string::npos);
  EXPECT_NE(check([&] { retype("expected.safetensors", "input_ids", false); }).find("input_ids"), std::string::npos);
  EXPECT_NE(check([&] { retype("contract.safetensors", "logits", true); }).find("logits"), std::string::npos);
  fs::remove_all(dir);
}

}  // namespace
}  // namespace colibri

// One weight that is infinite or not a number, in any tensor of a model, ends the run with an error that names shard and
// tensor.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/session.h"
#include "format/safetensors.h"

namespace colibri {
namespace {

namespace fs = std::filesystem;

// A copy of a model that can be written to.
class Damage : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path source = fs::path(COLIBRI_SOURCE_DIR) / "tests/oracle/cases/glm-dsa-tiny";
    dir_ = fs::temp_directory_path() / fmt::format("colibri-damage-{}", ::getpid());
    fs::create_directories(dir_);
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(source / file, dir_ / file, fs::copy_options::overwrite_existing);
    auto expected = read_safetensors(source / "expected.safetensors");
    ASSERT_TRUE(expected) << expected.error().message;
    ids_ = expected->at("input_ids").ints();
    auto checkpoint = Checkpoint::open(dir_);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    tensors_ = checkpoint->tensors();
  }
  ~Damage() override { fs::remove_all(dir_); }

  // Writes the elements from `first` on and returns what was there. values: bits of a BF16.
  std::vector<std::uint16_t> write(const TensorInfo& tensor, std::int64_t first, const std::vector<std::uint16_t>& values) {
    const std::size_t each = dtype_bytes(tensor.dtype);
    std::fstream file(dir_ / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    std::vector<std::uint16_t> before(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      // The upper half of an F32 is a BF16.
      const auto at =
          static_cast<std::streamoff>(tensor.range.offset + (static_cast<std::uint64_t>(first) + i) * each + each - 2);
      file.seekg(at);
      file.read(reinterpret_cast<char*>(&before[i]), 2);
      file.seekp(at);
      file.write(reinterpret_cast<const char*>(&values[i]), 2);
    }
    EXPECT_TRUE(file.good());
    return before;
  }

  // A whole prompt through all layers and the MTP layer; the error's text, or "sound".
  std::string run(std::int64_t expert_slots) const {
    EngineOptions options;
    options.model = dir_;
    options.threads = 2;
    options.expert_slots = expert_slots;
    auto engine = Engine::open(options);
    if (!engine) return engine.error().message;
    Session session(**engine);
    if (auto done = session.prefill(ids_); !done) return done.error().message;
    Model& model = (*engine)->model();
    const std::vector<float> hidden(model.hidden().begin(), model.hidden().end());
    const auto rows = ContiguousRows::make(session.cache(), 0, static_cast<std::int64_t>(ids_.size()));
    if (auto done = model.mtp_forward(StepPhase::kPrefill, ids_, hidden, rows.value()); !done) return done.error().message;
    return "sound";
  }

  const TensorInfo& tensor(const std::string& name) const {
    for (const TensorInfo& t : tensors_)
      if (t.name == name) return t;
    throw std::runtime_error(name);
  }

  fs::path dir_;
  std::vector<std::int32_t> ids_;
  std::vector<TensorInfo> tensors_;
};

TEST_F(Damage, EveryTensorIsNamed) {
  constexpr std::uint16_t kValues[] = {0x7fc0, 0x7f80, 0xff80};  // NaN, infinity and its opposite
  std::size_t n = 0;
  for (const TensorInfo& t : tensors_) {
    const std::int64_t cols = t.shape.back();
    // In the embedding a row that the prompt uses, elsewhere any.
    const std::int64_t row = t.name == "model.embed_tokens.weight" ? ids_[5] : t.shape.size() > 1 ? t.shape[0] / 2 : 0;
    const auto before = write(t, row * cols + cols / 3, {kValues[n % 3]});
    const std::string message = run(n % 2 == 0 ? 0 : 5);
    write(t, row * cols + cols / 3, before);
    for (const std::string& part : {std::string("model.safetensors: tensor '") + t.name + "'", std::string("finite number"),
                                    std::string("fetch or convert it again")})
      EXPECT_NE(message.find(part), std::string::npos) << t.name << ": " << message;
    ++n;
  }
  EXPECT_GT(n, 180U);
  EXPECT_EQ(run(0), "sound");
}

TEST_F(Damage, TheMessageSaysWhere) {
  const TensorInfo& dense = tensor("model.layers.2.self_attn.q_b_proj.weight");
  const auto before = write(dense, 7 * 96 + 11, {0x7f80});
  const std::string file = (dir_ / "model.safetensors").string();
  EXPECT_EQ(run(0), file +
                        ": tensor 'model.layers.2.self_attn.q_b_proj.weight': the weight in row 7, column 11 is inf, expected a "
                        "finite number; the file is damaged: fetch or convert it again (noticed in layer 2, attention)");
  write(dense, 7 * 96 + 11, before);
  write(tensor("model.layers.1.mlp.experts.3.down_proj.weight"), 64, {0x7fc0});
  for (const std::int64_t slots : {0, 5})
    EXPECT_EQ(run(slots),
              file +
                  ": tensor 'model.layers.1.mlp.experts.3.down_proj.weight': down of expert 3: the weight in row 1, "
                  "column 0 is nan, expected a finite number; the file is damaged: fetch or convert it again (noticed "
                  "in layer 1, experts)");
}

TEST_F(Damage, WeightsThatAreOnlyTooLarge) {
  write(tensor("model.layers.0.self_attn.o_proj.weight"), 0, std::vector<std::uint16_t>(128 * 192, 0x7f70));
  const std::string message = run(0);
  EXPECT_NE(message.find("layer 0, attention: a result is not a finite number although every weight used there is"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace colibri

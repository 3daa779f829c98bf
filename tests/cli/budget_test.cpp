// A model larger than the memory it is given.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "child.h"
#include "control_group.h"
#include "temp_dir.h"

namespace colibri {
namespace {

using nlohmann::json;

json json_of(const ChildResult& result) {
  EXPECT_EQ(result.signal, 0) << "killed: its control group is too small for it";
  EXPECT_EQ(result.exit_code, 0) << result.err;
  json parsed = json::parse(result.out, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << result.out;
  return parsed;
}

#if defined(__linux__)
// Makes whoever reads the files next read them from the disk. False where files live in memory.
bool drop_from_page_cache(const std::filesystem::path& dir) {
  struct statfs system{};
  if (statfs(dir.c_str(), &system) != 0 || system.f_type == TMPFS_MAGIC) return false;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool dropped = fsync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0;
    close(file);
    if (!dropped) return false;
  }
  return true;
}
#endif

// Some 470 MB of experts, of which a budget of 430 MB in all holds a part.
class Budget : public testing::Test {
 protected:
  static constexpr std::uint64_t kBudget = 430000000;
  static constexpr std::uint64_t kBudgetAndMargin = kBudget / 100 * 103;
  static constexpr std::uint64_t kReserve = std::uint64_t{1} << 30;  // of an automatic budget of a few gigabytes

  void SetUp() override {
    ASSERT_EQ(run_coli({"synth",   "--like",  "glm-5.2", "--layers",       "3",       "--hidden", "512",
                        "--heads", "4",       "--vocab", "1000",           "--width", "512",      "--expert-count",
                        "64",      "--top-k", "8",       "--expert-width", "2816",    "--out",    model_})
                  .exit_code,
              0);
    for (int i = 0; i < 16; ++i) prompt_ += "a c ";  // a whole prefill chunk
  }

  std::vector<std::string> run_arguments(std::vector<std::string> more) const {
    std::vector<std::string> all = {"run", "--model", model_,  "--raw", prompt_,           "--temp", "0",
                                    "-n",  "12",      "--ctx", "256",   "--prefill-chunk", "32",     "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  json run_roomy() const { return json_of(run_coli(run_arguments({"--ram", "4"}))); }
  ChildResult run_tight(const char* direct, const ChildOptions& options = {}) const {
    return run_coli(run_arguments({"--ram", "0.43", "--direct", direct}), options);
  }

  const TempDir dir_;
  const std::string model_ = dir_ / "m";
  std::string prompt_;
};

TEST_F(Budget, PeakMemoryStaysWithinIt) {
  const json roomy = run_roomy();
  EXPECT_FALSE(roomy.contains("experts")) << "everything fits: nothing is streamed";
  for (const char* direct : {"off", "on"}) {
    const json tight = json_of(run_tight(direct));
    ASSERT_TRUE(tight.contains("experts")) << "the experts do not fit";
    EXPECT_GT(tight["experts"]["per_token"]["read"], 0);
    EXPECT_EQ(tight["experts"]["per_token"]["needed"], 24);  // 3 layers, 8 each
    EXPECT_EQ(tight["logits_hash"], roomy["logits_hash"]);
    EXPECT_EQ(tight["memory_budget_bytes"], kBudget);
    EXPECT_LE(tight["peak_memory_bytes"], kBudgetAndMargin) << "direct " << direct;
    EXPECT_LT(tight["peak_memory_bytes"], roomy["peak_memory_bytes"]);
  }
}

#if defined(MORE_MEMORY_LIBRARY)
// A process that takes more than was planned gives slots up until it takes what it may. The text stays the same.
TEST_F(Budget, SlotsAreGivenUpForWhatWasNotPlanned) {
  const json tight = json_of(run_tight("on"));
  EXPECT_FALSE(tight["experts"].contains("slots_given_up")) << "memory is not short";
  constexpr std::uint64_t kMore = 180000000;
  const json more =
      json_of(run_tight("on", {.environment = {{"LD_PRELOAD", MORE_MEMORY_LIBRARY}, {"MORE_MEMORY", std::to_string(kMore)}}}));
  EXPECT_EQ(more["logits_hash"], tight["logits_hash"]);
  EXPECT_EQ(more["memory_budget_bytes"], kBudget);
  ASSERT_GT(more["peak_memory_bytes"], kBudgetAndMargin) << "the test did not exceed the budget";
  const json& given_up = more["experts"]["slots_given_up"];
  EXPECT_GT(given_up["most"], 8);
  EXPECT_LT(given_up["most"], given_up["of"]) << "no more than it takes";

  ChildOptions options;
  options.environment = {{"LD_PRELOAD", MORE_MEMORY_LIBRARY}, {"MORE_MEMORY", std::to_string(kMore)}};
  options.input = prompt_ + "\n";
  const ChildResult chat = run_coli({"chat", "--model", model_, "--temp", "0", "-n", "12", "--ctx", "256", "--prefill-chunk",
                                     "32", "--ram", "0.43", "--direct", "on", "--no-usage"},
                                    options);
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_NE(chat.err.find(" slots given up at most"), std::string::npos) << chat.err;
}
#endif

#if defined(__linux__)
// A control group of the budget's size is enough, although what is read through the page cache presses against its limit,
// and what the kernel counts in a group without a limit is not more.
TEST_F(Budget, AControlGroupOfItsSizeHoldsTheProcess) {
  const json roomy = run_roomy();
  for (const char* direct : {"off", "on"}) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, std::string("direct ") + direct);
    std::string why_not;
    const auto limited = ControlGroup::create(kBudgetAndMargin, why_not);
    if (!limited) GTEST_SKIP() << why_not;
    const bool cold = drop_from_page_cache(model_);
    const json tight = json_of(run_tight(direct, {.control_group = limited->members_file()}));
    EXPECT_EQ(limited->kills(), 0);
    EXPECT_EQ(tight["logits_hash"], roomy["logits_hash"]);
    if (cold && direct == std::string("off")) {
      EXPECT_GT(limited->times_at_limit(), 0) << "the test put no pressure on the group";
    }
  }
  // Past the page cache only the process itself and the kernel's memory for it are counted, beside the dense weights' file.
  std::string why_not;
  const auto counting = ControlGroup::create(std::nullopt, why_not);
  if (!counting) GTEST_SKIP() << why_not;
  json_of(run_tight("on", {.control_group = counting->members_file()}));
  const auto peak = counting->peak();
  if (!peak) GTEST_SKIP() << "this system does not tell a group's peak";
  EXPECT_LE(*peak, kBudgetAndMargin);
}

// Without --ram the group's limit decides. What earlier runs in it left in its page cache takes nothing from the budget.
TEST_F(Budget, TheAutomaticOneKeepsToTheControlGroup) {
  const json roomy = run_roomy();
  const std::uint64_t limit = kReserve + kBudget;
  std::string why_not;
  const auto group = ControlGroup::create(limit, why_not);
  if (!group) GTEST_SKIP() << why_not;
  const ChildOptions inside = {.control_group = group->members_file()};
  const bool cold = drop_from_page_cache(model_);
  for (const char* when : {"empty group", "page cache in the group"}) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, when);
    const json plan = json_of(run_coli({"plan", "--model", model_, "--ctx", "256", "--prefill-chunk", "32", "--json"}, inside));
    EXPECT_EQ(plan["budget_source"], "control group limit less a reserve");
    const json automatic = json_of(run_coli(run_arguments({"--direct", "off"}), inside));
    ASSERT_TRUE(automatic.contains("experts")) << "the experts do not fit";
    EXPECT_EQ(automatic["logits_hash"], roomy["logits_hash"]);
    EXPECT_LE(automatic["memory_budget_bytes"], kBudget);
    EXPECT_GE(automatic["memory_budget_bytes"], kBudget - kBudget / 10) << "more than the process that asks is taken off";
    EXPECT_LE(automatic["peak_memory_bytes"], automatic["memory_budget_bytes"].get<double>() * 1.03);
    if (cold) {
      EXPECT_GT(group->page_cache(), kBudget / 2) << "the test left nothing in the group's page cache";
    }
  }
  EXPECT_EQ(group->kills(), 0);
}
#endif

}  // namespace
}  // namespace colibri

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "child.h"
#include "temp_dir.h"

namespace colibri {
namespace {

using nlohmann::json;

constexpr const char* kFox = "Once upon a time, there was a little fox who";

json run_json(std::vector<std::string> arguments, const ChildOptions& options = {}) {
  arguments.insert(arguments.begin(), "run");
  arguments.push_back("--json");
  const ChildResult result = run_coli(arguments, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  json parsed = json::parse(result.out, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << result.out;
  return parsed;
}

// One line on stderr that begins with "coli: " and holds `part`.
void expect_error(const ChildResult& result, int exit_code, const std::string& part) {
  EXPECT_EQ(result.exit_code, exit_code);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.rfind("coli: ", 0), 0U) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
}

TEST(Plan, SaysHowExpertsAreReadAndWhoDecidedThat) {
  const auto disk = [](std::vector<std::string> arguments, const ChildOptions& options) {
    arguments.insert(arguments.begin(), {"plan", "--cache-experts", "30", "--json"});
    const ChildResult result = run_coli(arguments, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const json out = json::parse(result.out, nullptr, false);
    EXPECT_FALSE(out.is_discarded()) << result.out;
    EXPECT_GT(out["forecast"]["expert_bytes_per_token"], 0);
    EXPECT_TRUE(out["forecast"]["disk_tok_s"].is_number() || out["disk"]["gb_per_second"].is_null()) << out;
    return out["disk"];
  };
  const std::string asked = "DIRECT or --direct";
  json found = disk({}, {.environment = {{"DIRECT", "1"}, {"PIPE_WORKERS", "3"}}});
  EXPECT_EQ(found["direct"], true);
  EXPECT_EQ(found["direct_source"], asked);
  EXPECT_EQ(found["in_flight"], 3);
  found = disk({}, {.environment = {{"DIRECT", "0"}}});
  EXPECT_EQ(found["direct"], false);
  EXPECT_EQ(found["direct_source"], asked);
  found = disk({"--direct", "off"}, {.environment = {{"DIRECT", "1"}}});
  EXPECT_EQ(found["direct"], false) << "an option wins over the environment";
  EXPECT_NE(disk({}, {})["direct_source"], asked);
  const ChildResult text = run_coli({"plan", "--cache-experts", "30"});
  EXPECT_NE(text.out.find("forecast"), std::string::npos) << text.out;
  EXPECT_EQ(run_coli({"plan", "--direct", "maybe"}).exit_code, 2);
}

TEST(Run, TheUsageHistoryIsKeptIgnoredOrReported) {
  const TempDir dir;
  const std::string file = dir.path() / "usage";
  const ChildOptions keep{.environment = {{"COLI_USAGE", file}, {"USAGE_SAVE", "1"}}};
  const ChildOptions read{.environment = {{"COLI_USAGE", file}, {"USAGE_SAVE", "0"}}};
  const std::vector<std::string> arguments = {"--cache-experts", "30", "--temp", "0", "-n", "4", kFox};
  std::vector<std::string> without = arguments;
  without.emplace_back("--no-usage");
  const json first = run_json(without, keep);
  EXPECT_FALSE(std::filesystem::exists(file));
  run_json(arguments, read);
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_EQ(run_json(arguments, keep)["logits_hash"], first["logits_hash"]);
  ASSERT_TRUE(std::filesystem::exists(file));
  std::ofstream(file) << "no history\n";
  std::vector<std::string> damaged = arguments;
  damaged.insert(damaged.begin(), "run");
  const ChildResult result = run_coli(damaged, keep);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("usage history"), std::string::npos) << result.err;
  const ChildResult decay = run_coli(damaged, {.environment = {{"COLI_USAGE_DECAY", "2"}}});
  EXPECT_EQ(decay.exit_code, 1);
  EXPECT_NE(decay.err.find("COLI_USAGE_DECAY"), std::string::npos) << decay.err;
}

TEST(Run, GreedyTextIsTheReferences) {
  std::ifstream file(demo_model() + "/expected.json");
  const json expected = json::parse(file)["cases"][0];
  const json out = run_json({expected["prompt"], "--temp", "0", "-n", "24"});
  for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(out["ids"][i], expected["greedy_ids"][i]);
  const std::string text = out["text"];
  EXPECT_EQ(std::string(expected["text"]).rfind(text, 0), 0U) << text;
  EXPECT_EQ(out["decode_tokens"], 24);
  EXPECT_EQ(out["stop_reason"], "max-tokens");
  EXPECT_EQ(std::string(out["logits_hash"]).size(), 16U);
  EXPECT_GT(out["peak_memory_bytes"], 1 << 20);
  // The family's prefix, [gMASK]<sop>, stands before the prompt.
  EXPECT_EQ(out["prompt_tokens"], expected["prompt_ids"].size() + 2);
}

TEST(Run, StreamsTextToStdoutAndStatisticsToStderr) {
  const ChildResult result = run_coli({"run", kFox, "--temp", "0", "-n", "8"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, " lived at the edge of a big forest\n");
  for (const char* part : {"prompt 13 tokens", "answer 8 tokens", "tok/s", "first token after", "peak memory", "logits_hash",
                           "each token of the answer: attention"})
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

TEST(Run, TheAnswersTimesAddUpToItsTime) {
  const TempDir dir;
  const std::string trace = dir / "trace";
  const json out = run_json({kFox, "--temp", "0", "-n", "9", "--trace", trace});
  double sum = 0;
  for (const auto& [phase, ms] : out["answer_ms_per_token"].items()) {
    EXPECT_GE(ms, 0) << phase;
    if (phase != "other") {
      EXPECT_LE(8 * double(ms), 1e3 * double(out["seconds"][phase]) + 1e-3) << phase;
    }
    sum += double(ms);
  }
  EXPECT_NEAR(8 * sum, 1e3 * double(out["decode_seconds"]), 1e-3);
  EXPECT_EQ(run_json({kFox, "--temp", "0", "-n", "1"}).count("answer_ms_per_token"), 0U);  // no step after the prompt

  // A trace's steps hold the computing of their logits.
  std::ifstream lines(trace);
  double tails = 0;
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("step ", 0) == 0) tails += std::stod(line.substr(line.rfind(' ')));
  EXPECT_GT(tails / 1e9, 0.9 * double(out["seconds"]["head"]));
}

TEST(Run, ThreadsChunksAndInstructionSetsGiveTheSameHash) {
  const std::string hash = run_json({kFox, "--temp", "0", "-n", "4", "--threads", "1"})["logits_hash"];
  EXPECT_EQ(run_json({kFox, "--temp", "0", "-n", "4", "--threads", "3", "--prefill-chunk", "2"})["logits_hash"], hash);
  EXPECT_EQ(run_json({kFox, "--temp", "0", "-n", "4", "--isa", "scalar"})["logits_hash"], hash);
  EXPECT_EQ(run_json({kFox, "--temp", "0", "-n", "4"}, {.environment = {{"COLI_NO_OMP_TUNE", "1"}}})["logits_hash"], hash);
}

TEST(Run, SameSeedSameTextAndAFreshOneIsReported) {
  const json first = run_json({kFox, "-n", "12", "--temp", "3", "--top-p", "1"});
  const std::string seed = std::to_string(first["seed"].get<std::uint64_t>());
  const json again = run_json({kFox, "-n", "12", "--temp", "3", "--top-p", "1", "--seed", seed});
  EXPECT_EQ(first["ids"], again["ids"]);
  const json other = run_json({kFox, "-n", "12", "--temp", "3", "--top-p", "1", "--seed", seed + "1"});
  EXPECT_NE(first["ids"], other["ids"]);
}

TEST(Run, RawHonoursSpecialTokensAndPlainDoesNot) {
  const json raw = run_json({"[gMASK]<sop>Hello", "--raw", "--temp", "0", "-n", "2"});
  const json plain = run_json({"Hello", "--temp", "0", "-n", "2"});
  EXPECT_EQ(raw["prompt_ids"], plain["prompt_ids"]);
  EXPECT_EQ(raw["ids"], plain["ids"]);
  const json text = run_json({"[gMASK]<sop>Hello", "--temp", "0", "-n", "2"});
  EXPECT_GT(text["prompt_ids"].size(), plain["prompt_ids"].size());
}

TEST(Run, ChatAsksOneUserTurn) {
  const json out = run_json({"What is the capital of France?", "--chat", "--temp", "0", "-n", "6"});
  const json raw = run_json(
      {"[gMASK]<sop><|user|>What is the capital of France?<|assistant|><think></think>", "--raw", "--temp", "0", "-n", "6"});
  EXPECT_EQ(out["prompt_ids"], raw["prompt_ids"]);
  EXPECT_EQ(out["ids"], raw["ids"]);
}

TEST(Run, PromptFromStdinAndFile) {
  const json direct = run_json({kFox, "--temp", "0", "-n", "2"});
  const json piped = run_json({"-", "--temp", "0", "-n", "2"}, {.input = std::string(kFox) + "\n"});
  EXPECT_EQ(piped["prompt_ids"], direct["prompt_ids"]);
  const TempDir dir;
  std::ofstream(dir.path() / "prompt") << kFox;
  const json file = run_json({"--prompt-file", (dir.path() / "prompt").string(), "--temp", "0", "-n", "2"});
  EXPECT_EQ(file["prompt_ids"], direct["prompt_ids"]);
  EXPECT_EQ(file["ids"], direct["ids"]);
}

TEST(Run, UnusualPrompts) {
  // Invalid UTF-8 goes in as bytes; what comes out is JSON, so it is valid.
  EXPECT_EQ(run_json({"caf\xe9 \xff\xfe", "--temp", "0", "-n", "3"})["decode_tokens"], 3);
  EXPECT_EQ(run_json({"", "--temp", "0", "-n", "3"})["prompt_tokens"], 2);  // the prefix alone
  const json none = run_json({kFox, "-n", "0"});
  EXPECT_EQ(none["decode_tokens"], 0);
  EXPECT_EQ(none["text"], "");
  EXPECT_TRUE(none["first_token_seconds"].is_null());  // nothing was sampled
  EXPECT_TRUE(none["logits_hash"].is_null());
  EXPECT_EQ(run_coli({"run", kFox, "-n", "0"}).err.find("logits_hash"), std::string::npos);
}

TEST(Run, PeakMemoryIsItsOwnNotItsParents) {
  const std::int64_t before = run_json({"Hi", "-n", "1"})["peak_memory_bytes"];
  const std::vector<char> ballast(400U << 20, 1);
  const std::int64_t after = run_json({"Hi", "-n", "1"})["peak_memory_bytes"];
  EXPECT_LT(after, before + (200 << 20)) << ballast.size();
}

TEST(Run, FullContextEndsTheAnswer) {
  const json out = run_json({kFox, "--temp", "0", "--ctx", "16", "-n", "100"});
  EXPECT_EQ(out["stop_reason"], "context-full");
  EXPECT_EQ(out["prompt_tokens"], 13);
  EXPECT_EQ(out["decode_tokens"], 4);  // the last one needs no place: nothing follows it
}

TEST(Run, Errors) {
  expect_error(run_coli({"run", kFox, "--ctx", "4"}), 1, "4");
  expect_error(run_coli({"run", "", "--raw"}), 1, "empty");
  expect_error(run_coli({"run", kFox, "--model", "/no/such/model"}), 1, "/no/such/model");
  expect_error(run_coli({"run", kFox}, {.environment = {{"COLI_MODEL", "/no/such/model"}}}), 1, "/no/such/model");
  expect_error(run_coli({"run", kFox, "--model", COLI_PROGRAM}), 1, "directory");
  expect_error(run_coli({"run", "--prompt-file", "/no/such/file"}), 1, "/no/such/file");
  expect_error(run_coli({"run", kFox, "--isa", "mmx"}), 1, "mmx");
  const TempDir dir;
  expect_error(run_coli({"run", kFox, "--model", dir.path().string()}), 1, dir.path().string());
}

TEST(Run, UsageErrors) {
  expect_error(run_coli({"run"}), 2, "no prompt");
  expect_error(run_coli({"run", kFox, "--temp", "warm"}), 2, "--temp");
  expect_error(run_coli({"run", kFox, "--temp", "nan"}), 2, "--temp");
  expect_error(run_coli({"run", kFox, "--top-p", "1.5"}), 2, "--top-p");
  expect_error(run_coli({"run", kFox, "--max-tokens", "-1"}), 2, "--max-tokens");
  expect_error(run_coli({"run", kFox, "--threads", "100000"}), 2, "--threads");
  expect_error(run_coli({"run", kFox, "--raw", "--chat"}), 2, "--raw");
  expect_error(run_coli({"run", kFox, "--no-such-option"}), 2, "--no-such-option");
  expect_error(run_coli({"dance"}), 2, "dance");
  expect_error(run_coli({"run", kFox, "one", "two", "three"}), 2, "one two three");
  for (const char* seed : {"-1", "18446744073709551616", "010", "", "0x2", "1e3", " 7"})
    expect_error(run_coli({"run", kFox, "--seed", seed}), 2, "--seed");
  for (const char* number : {"0x2", "02", "1.0", "+1"}) {
    expect_error(run_coli({"run", kFox, "--threads", number}), 2, "--threads");
    expect_error(run_coli({"run", kFox, "-n", number}), 2, "--max-tokens");
  }
}

TEST(Run, EndlessPromptsAreRefused) { expect_error(run_coli({"run", "--prompt-file", "/dev/zero"}), 1, "longer than 16 MiB"); }

TEST(Run, ClosedStdinIsNamed) {
  ChildOptions options;
  options.closed = 0;
  expect_error(run_coli({"run", "-"}, options), 1, "stdin");
}

TEST(Run, MoreThreadsThanCpusIsNoted) {
  const ChildResult result = run_coli({"run", "Hi", "-n", "1", "--threads", "256"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("coli: note: 256 threads share"), std::string::npos) << result.err;
}

TEST(Run, AMissingTemplateTokenIsNamed) {
  const TempDir dir;
  for (const auto& entry : std::filesystem::directory_iterator(demo_model()))
    if (entry.path().filename() != "tokenizer.json")
      std::filesystem::create_symlink(entry.path(), dir.path() / entry.path().filename());
  std::ifstream file(demo_model() + "/tokenizer.json");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  for (std::size_t at = 0; (at = text.find("\"<tool_response>\"")) != std::string::npos;) text.replace(at, 3, "\"<T");
  std::ofstream(dir.path() / "tokenizer.json") << text;
  const std::string model = dir.path().string(), problem = "needs the token <tool_response>";
  expect_error(run_coli({"run", "Hi", "--chat", "--model", model}), 1, problem);
  expect_error(run_coli({"chat", "--model", model}), 1, problem);
  const ChildResult plain = run_coli({"run", "Hi", "-n", "1", "--model", model});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_NE(plain.err.find(problem), std::string::npos) << plain.err;
}

// A long prompt as one chunk through the slow kernels: seconds a layer, and an interrupt is looked for twice a layer.
ChildResult interrupt_slow_prompt(int interrupts) {
  const TempDir dir;
  std::ofstream prompt(dir.path() / "prompt");
  for (int i = 0; i < 1900; ++i) prompt << "fox ";
  prompt.close();
  ChildOptions options;
  options.interrupts_when_caught = interrupts;
  return run_coli(
      {"run", "--prompt-file", (dir.path() / "prompt").string(), "--prefill-chunk", "4096", "--isa", "scalar", "--threads", "1"},
      options);
}

TEST(Run, AnInterruptActsWithinAChunk) {
  if (!can_watch_signals()) GTEST_SKIP() << kNoProc;
  const ChildResult result = interrupt_slow_prompt(1);
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_NE(result.err.find("prompt 0 tokens"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("answer 0 tokens"), std::string::npos) << result.err;
}

TEST(Run, ASecondInterruptEndsTheProgram) {
  if (!can_watch_signals()) GTEST_SKIP() << kNoProc;
  const ChildResult result = interrupt_slow_prompt(2);
  EXPECT_EQ(result.signal, SIGINT) << result.err;
}

TEST(Run, InterruptStopsTheAnswer) {
  ChildOptions options;
  options.interrupt_after = " lived";
  // The slow kernels, so that the text lasts until the signal is there.
  const ChildResult result = run_coli({"run", kFox, "--temp", "0", "-n", "2000", "--isa", "scalar", "--threads", "1"}, options);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.out.rfind(" lived", 0), 0U) << result.out;
  EXPECT_NE(result.err.find("ended by cancelled"), std::string::npos) << result.err;
}

const std::vector<std::vector<std::string>> kPrinting = {{"--help"},
                                                         {"run", kFox, "-n", "2000", "--isa", "scalar"},
                                                         {"run", kFox, "-n", "2", "--json"},
                                                         {"info"},
                                                         {"info", "--json"},
                                                         {"run", "--help"}};

TEST(Coli, AClosedOutputIsAFailure) {
  ChildOptions closed;
  closed.closed = 1;
  for (const auto& command : kPrinting) EXPECT_EQ(run_coli(command, closed).exit_code, 1) << command[0];
}

TEST(Coli, LostOutputIsAFailure) {
  ChildOptions full;
  full.stdout_to = "/dev/full";
  if (!std::filesystem::exists(full.stdout_to)) GTEST_SKIP() << "this system has no /dev/full, a disk that is always full";
  for (const auto& command : kPrinting) {
    const ChildResult result = run_coli(command, full);
    EXPECT_EQ(result.exit_code, 1) << command[0];
    EXPECT_NE(result.err.find("coli: writing the output failed: No space left on device"), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("answer"), std::string::npos) << result.err;
  }
  full.input = "Hi\nHi\n";
  const ChildResult chat = run_coli({"chat", "-n", "4"}, full);
  EXPECT_EQ(chat.exit_code, 1);
  EXPECT_NE(chat.err.find("writing the output failed"), std::string::npos) << chat.err;
}

TEST(Coli, HelpAndVersion) {
  const ChildResult help = run_coli({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* word : {"run", "chat", "info", "oracle", "bench", "COLI_MODEL", "COLI_NO_OMP_TUNE", "TF=1", "DEBUG_LOGITS"})
    EXPECT_NE(help.out.find(word), std::string::npos) << word;
  EXPECT_EQ(run_coli({"run", "--help"}).exit_code, 0);
  EXPECT_EQ(run_coli({"--version"}).out.rfind("coli ", 0), 0U);
  EXPECT_EQ(run_coli({}).exit_code, 2);
}

}  // namespace
}  // namespace colibri

#include <gtest/gtest.h>

#include <cstdlib>

#include "child.h"

namespace colibri {
namespace {

ChildResult chat(const std::string& input, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"chat", "--temp", "0", "-n", "12"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  ChildOptions options;
  options.input = input;
  return run_coli(arguments, options);
}

std::string one_turn(const std::string& question) {
  const ChildResult result = run_coli({"run", question, "--chat", "--temp", "0", "-n", "12"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(Chat, AnswersLineByLineFromAPipe) {
  const std::string question = "What is the capital of France?";
  const ChildResult result = chat(question + "\n:q\nnever read\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, one_turn(question));
  EXPECT_NE(result.err.find("coli: 1 answers"), std::string::npos) << result.err;
}

TEST(Chat, ResetForgets) {
  const std::string question = "Tell me a story about a dog.";
  const ChildResult result = chat("Hello!\n:reset\n" + question);  // the last line may lack its end
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, one_turn("Hello!") + one_turn(question));
}

TEST(Chat, SecondTurnComputesOnlyWhatIsNew) {
  // First prompt: [gMASK]<sop><|user|> Hi ! <|assistant|><think></think>. The second turn adds its own part and, when the
  // answer was cut, the answer's last token; without the cache it would be the whole conversation again.
  const ChildResult one = chat("Hi!\n"), two = chat("Hi!\nHi!\n");
  const auto prompt_tokens = [](const ChildResult& result) {
    const std::size_t at = result.err.find("prompt ");
    return at == std::string::npos ? -1 : std::atoi(result.err.c_str() + at + 7);
  };
  const int first = prompt_tokens(one), both = prompt_tokens(two);
  EXPECT_GT(first, 0) << one.err;
  EXPECT_GT(both, first) << two.err;
  EXPECT_LE(both, 2 * first) << two.err;
}

TEST(Chat, TheEndTellsWhatTheExpertCacheDid) {
  const ChildResult streamed = chat("Hi!\nHi!\n", {"--cache-experts", "30", "--no-usage"});
  EXPECT_EQ(streamed.exit_code, 0) << streamed.err;
  EXPECT_NE(streamed.err.find("coli: experts: answer hit "), std::string::npos) << streamed.err;
  EXPECT_NE(streamed.err.find("per token 18.0 experts"), std::string::npos) << "6 layers, 3 each: " << streamed.err;
  EXPECT_EQ(streamed.err.find("slots given up"), std::string::npos) << "memory is not short: " << streamed.err;
  const ChildResult resident = chat("Hi!\nHi!\n");
  EXPECT_EQ(resident.out, streamed.out);
  EXPECT_EQ(resident.err.find("experts:"), std::string::npos) << "nothing is streamed: " << resident.err;
}

TEST(Chat, CommandsAndEmptyLines) {
  const ChildResult result = chat("\n  \n:help\n:nonsense\n");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find(":reset"), std::string::npos);
  EXPECT_NE(result.err.find("unknown command :nonsense"), std::string::npos);
}

TEST(Chat, FullContextIsSaidAndTheConversationGoesOn) {
  const ChildResult result =
      chat("Please tell me a very long story about a dog and a cat and a bird.\n:reset\nHi\n", {"--ctx", "16"});
  EXPECT_EQ(result.exit_code, 0);  // the last request went well
  EXPECT_NE(result.err.find(":reset starts a new one"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("coli: 1 answers"), std::string::npos) << result.err;
}

TEST(Chat, AFailedLastRequestFailsAPipe) {
  const ChildResult result = chat("Please tell me a very long story about a dog and a cat and a bird.\n:q\n", {"--ctx", "16"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
}

TEST(Chat, ClosedStdinIsNotTheModel) {
  ChildOptions options;
  options.closed = 0;
  const ChildResult result = run_coli({"chat"}, options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("coli: reading stdin failed"), std::string::npos) << result.err;
}

TEST(Chat, ThinkingIsAskedFor) {
  const ChildResult result = chat("Hi\n", {"--think"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.find("<think>"), std::string::npos);
}

TEST(Chat, InterruptStopsTheAnswerOnly) {
  ChildOptions options;
  options.input = "Tell me a story about a fox.\n:help\n";
  options.interrupt_after = " ";
  // The slow kernels, so that the answer lasts until the signal is there.
  const ChildResult result = run_coli({"chat", "--temp", "0", "-n", "2000", "--isa", "scalar", "--threads", "1"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("coli: stopped"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find(":reset"), std::string::npos) << result.out;  // :help was still answered
}

}  // namespace
}  // namespace colibri

// coli chat: a conversation, turn by turn.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "command.h"
#include "engine/generate.h"
#include "interrupt.h"
#include "line_reader.h"
#include "loaded_model.h"
#include "options.h"
#include "report.h"

namespace colibri {
namespace {

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system;
  bool think = false;
  std::int64_t max_tokens = 1024;
};

constexpr const char* kHelp =
    "  :reset   forget the conversation\n"
    "  :help    this list\n"
    "  :q       leave (so does Ctrl-D)\n"
    "  Ctrl-C   stop the answer\n";

class Chat {
 public:
  Chat(const ChatFlags& flags, LoadedModel& model)
      : flags_(flags), model_(model), session_(*model.engine), rule_(flags.sampling.rule()) {
    think_end_ = model.tokenizer.token_id("</think>").value_or(-1);
    dim_ = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
    reset();
  }

  void reset() {
    messages_.clear();
    if (!flags_.system.empty()) {
      ChatMessage system;
      system.role = Role::kSystem;
      system.content = flags_.system;
      messages_.push_back(std::move(system));
    }
    session_.truncate(0);
  }

  // One turn: asks, streams the answer, remembers both. After an error, or when nothing was answered, the question is
  // forgotten.
  Result<void> answer(const std::string& question) {
    ChatMessage message;
    message.content = question;
    messages_.push_back(std::move(message));
    auto reply = generate_answer();
    if (reply && *reply) {
      messages_.push_back(std::move(**reply));
    } else {
      messages_.pop_back();
    }
    if (!reply) return pass(std::move(reply).error());
    return {};
  }

  void print_totals() const {
    fmt::print(
        stderr,
        "coli: {} answers; prompt {} tokens, {:.2f} s, {:.1f} tok/s; answers {} tokens, {:.2f} s, {:.1f} tok/s; peak memory "
        "{}{}\n",
        answers_, prompt_tokens_, prompt_seconds_, rate(prompt_tokens_, prompt_seconds_), decode_tokens_, decode_seconds_,
        rate(decode_steps_, decode_seconds_), human_bytes(peak_memory_),
        rule_.temperature > 0 ? fmt::format("; seed {}", rule_.seed) : "");
    if (experts_) fmt::print(stderr, "coli: {}\n", describe_experts(*experts_, experts_->steps_decode));
  }
  bool used() const { return answers_ > 0; }

 private:
  // What the session already holds of ids stays; the rest is to be computed, at least the last one.
  std::span<const std::int32_t> keep_common_prefix(const std::vector<std::int32_t>& ids) {
    const auto& held = session_.tokens();
    const auto common =
        static_cast<std::size_t>(std::mismatch(held.begin(), held.end(), ids.begin(), ids.end()).first - held.begin());
    const std::size_t keep = std::min(common, ids.size() - 1);
    session_.truncate(static_cast<std::int64_t>(keep));
    return std::span(ids).subspan(keep);
  }

  // nullopt: stopped before the first token.
  Result<std::optional<ChatMessage>> generate_answer() {
    ChatOptions chat_options;
    chat_options.thinking = flags_.think;
    const std::vector<std::int32_t> ids = model_.chat->render(model_.tokenizer, messages_, chat_options);
    const std::int64_t context = model_.engine->context();
    if (static_cast<std::int64_t>(ids.size()) > context)
      return fail(
          "the conversation needs {} tokens and the context holds {}: :reset starts a new one, --ctx sets a larger context",
          ids.size(), context);

    GenerateOptions options;
    options.sampling = rule_;
    options.max_tokens = flags_.max_tokens;
    options.stop_ids = model_.stops;
    bool thinking = flags_.think && think_end_ >= 0;
    ChatMessage reply;
    reply.role = Role::kAssistant;
    Utf8Stream stream;
    bool dimmed = false;
    const auto show = [&](std::string piece) {
      if (thinking && !dimmed && !piece.empty()) {
        start_dim();
        dimmed = true;
      }
      if (!thinking && reply.content.empty()) piece.erase(0, std::min(piece.find_first_not_of("\r\n"), piece.size()));
      (thinking ? reply.reasoning : reply.content) += piece;
      write_output(piece);
    };
    const auto going = [] { return !InterruptGuard::interrupted() && std::ferror(stdout) == 0; };
    InterruptGuard::clear();
    auto stats = generate(
        session_, keep_common_prefix(ids), options,
        [&](std::int32_t id) {
          if (!thinking) reply.content_ids.push_back(id);
          if (thinking && id == think_end_) {
            show(stream.finish());
            stream = Utf8Stream();
            thinking = false;
            if (dimmed) end_dim();
            if (!reply.reasoning.empty()) std::fputs("\n\n", stdout);
          } else if (!model_.tokenizer.is_special(id)) {
            show(stream.push(model_.tokenizer.token_bytes(id)));
          }
          return going();
        },
        going);
    show(stream.finish());
    if (thinking && dimmed) end_dim();
    std::fputc('\n', stdout);
    std::fflush(stdout);
    const bool stopped = InterruptGuard::interrupted();
    InterruptGuard::clear();
    if (!stats) return pass(std::move(stats).error());

    add(*stats);
    if (!stats->gpu_verdict.empty() && !std::exchange(told_of_gpu_, true)) print_note(stats->gpu_verdict);
    if (stats->reason == StopReason::kContextFull)
      fmt::print(stderr, "coli: the context of {} tokens is full: :reset starts a new conversation, --ctx sets a larger one\n",
                 context);
    if (stats->reason == StopReason::kMaxTokens)
      fmt::print(stderr, "coli: the answer was cut at {} tokens (--max-tokens)\n", flags_.max_tokens);
    if (stopped) fmt::print(stderr, "coli: stopped\n");
    if (stats->decode_tokens == 0 && stats->reason == StopReason::kCancelled) return std::nullopt;
    return reply;
  }

  void add(const GenerateStats& stats) {
    ++answers_;
    prompt_tokens_ += stats.prompt_tokens;
    prompt_seconds_ += stats.prompt_seconds;
    decode_tokens_ += stats.decode_tokens;
    decode_steps_ += stats.decode_steps;
    decode_seconds_ += stats.decode_seconds;
    peak_memory_ = stats.peak_memory_bytes;
    if (const StreamingExperts* streaming = model_.engine->streaming()) experts_ = streaming->stats();
  }

  void start_dim() const {
    if (dim_) std::fputs("\x1b[2m", stdout);
  }
  void end_dim() const {
    if (dim_) std::fputs("\x1b[0m", stdout);
  }

  const ChatFlags& flags_;
  LoadedModel& model_;
  Session session_;
  numerics::SamplingRule rule_;
  std::vector<ChatMessage> messages_;
  std::int32_t think_end_ = -1;
  bool dim_ = false, told_of_gpu_ = false;
  std::int64_t answers_ = 0, prompt_tokens_ = 0, decode_tokens_ = 0, decode_steps_ = 0;
  double prompt_seconds_ = 0, decode_seconds_ = 0;
  std::uint64_t peak_memory_ = 0;
  std::optional<StreamingStats> experts_;  // since the model was opened, where experts are streamed
};

int chat(const ChatFlags& flags) {
  auto options = flags.engine.engine_options();
  if (!options) return fail_with(options.error());
  auto model = LoadedModel::open(*options);
  if (!model) return fail_with(model.error());
  const ModelConfig& config = model->engine->config();
  if (!model->chat) return fail_with(model->chat.error());
  print_notices(*model->engine);

  const InterruptGuard guard(SecondInterrupt::kIsNotedToo);
  LineReader reader("> ");
  Chat conversation(flags, *model);
  if (reader.interactive())
    fmt::print("{}, {} layers, context {}. :help lists the commands.\n", config.model_type, config.layers,
               with_commas(model->engine->context()));
  int exit_code = kExitOk;  // of the last request: what a script asks for; a person has seen the error
  for (std::string line;;) {
    InterruptGuard::clear();
    const LineReader::Status status = reader.read(line);
    if (status == LineReader::Status::kEnd) {
      if (reader.interactive()) std::fputc('\n', stdout);
      if (const int error = errno; std::ferror(stdin) != 0)
        exit_code = fail_with({fmt::format("reading stdin failed: {}", std::strerror(error))});
      break;
    }
    if (status == LineReader::Status::kInterrupted) {
      if (!reader.interactive()) {
        exit_code = kExitInterrupted;
        break;
      }
      continue;
    }
    const std::size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    const std::string word = line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
    if (word == ":q" || word == ":quit") break;
    if (word == ":help") {
      std::fputs(kHelp, stdout);
    } else if (word == ":reset") {
      conversation.reset();
      if (reader.interactive()) std::fputs("The conversation starts afresh.\n", stdout);
    } else if (word.size() > 1 && word[0] == ':' && word[1] >= 'a' && word[1] <= 'z' && word.find(' ') == std::string::npos) {
      print_error(fmt::format("unknown command {}; :help lists them", word));
    } else if (auto done = conversation.answer(line); !done) {
      exit_code = fail_with(done.error());
      if (reader.interactive()) exit_code = kExitOk;
    } else {
      exit_code = kExitOk;
    }
    if (std::ferror(stdout) != 0) {
      exit_code = kExitFailed;  // main() says why
      break;
    }
  }
  save_usage(*model->engine);
  if (conversation.used() && std::ferror(stdout) == 0) conversation.print_totals();
  return exit_code;
}

}  // namespace

Action declare_chat(CommandLine& line) {
  auto flags = std::make_shared<ChatFlags>();
  flags->engine.declare(line);
  flags->sampling.declare(line);
  line.option("--system", flags->system, "System message that opens the conversation");
  line.flag("--think", flags->think, "Let the model think before it answers");
  line.option("-n,--max-tokens", flags->max_tokens, "Longest answer in tokens").whole(1, 1 << 30).shows_default();
  line.footer(std::string("In the conversation:\n") + kHelp);
  return [flags] { return chat(*flags); };
}

}  // namespace colibri

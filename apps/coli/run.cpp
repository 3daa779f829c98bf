// coli run: continues one prompt, streaming the text.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "checking.h"
#include "command.h"
#include "engine/generate.h"
#include "interrupt.h"
#include "loaded_model.h"
#include "options.h"
#include "report.h"
#include "text/tokenizer.h"

namespace colibri {
namespace {

struct RunFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string prompt, prompt_file;
  bool has_prompt = false;
  bool raw = false, chat = false, think = false, json = false;
  std::string trace;
  std::int64_t max_tokens = 256;
};

// Far more than any context holds; an endless file must not fill the memory.
constexpr std::size_t kMaxPromptBytes = std::size_t{16} << 20;

// The whole of a file or of stdin. One line end at the end is not part of the prompt: editors and echo add it.
Result<std::string> read_prompt(const std::string& path) {
  const bool is_stdin = path == "-";
  const std::string name = is_stdin ? "the prompt from stdin" : "prompt file " + path;
  std::FILE* file = is_stdin ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) return fail("{}: {}", name, std::strerror(errno));
  std::string text;
  char buffer[1 << 14];
  std::size_t n = sizeof buffer;  // fewer: the end, or an error
  while (n == sizeof buffer && text.size() <= kMaxPromptBytes) {
    n = std::fread(buffer, 1, sizeof buffer, file);
    text.append(buffer, n);
  }
  const int error = std::ferror(file) ? errno : 0;
  if (!is_stdin) std::fclose(file);
  if (error != 0) return fail("{}: {}", name, std::strerror(error));
  if (text.size() > kMaxPromptBytes)
    return fail("{} is longer than {} MiB, the most that is read; give a shorter one", name, kMaxPromptBytes >> 20);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

Result<std::vector<std::int32_t>> prompt_ids(const RunFlags& flags, const LoadedModel& model, const std::string& prompt) {
  if (flags.raw) {
    auto ids = model.tokenizer.encode(prompt, true);
    if (ids.empty()) return fail("the prompt is empty; with --raw it needs at least one token");
    return ids;
  }
  if (flags.chat) {
    if (!model.chat) return fail("{}; use run without --chat", model.chat.error().message);
    ChatMessage message;
    message.content = prompt;
    ChatOptions options;
    options.thinking = flags.think;
    return model.chat->render(model.tokenizer, {message}, options);
  }
  std::vector<std::int32_t> ids;
  if (model.chat)
    ids = model.chat->prefix();
  else
    print_note(model.chat.error().message);
  const auto text = model.tokenizer.encode(prompt, false);
  ids.insert(ids.end(), text.begin(), text.end());
  if (ids.empty()) return fail("the prompt is empty; give at least one character");
  return ids;
}

int run(const RunFlags& flags) {
  auto options = flags.engine.engine_options();
  if (!options) return fail_with(options.error());
  if (environment_flag("TF"))
    return run_check(*options, {.json = flags.json, .show_mismatches = environment_flag("DEBUG_LOGITS")});

  if (!flags.has_prompt && flags.prompt_file.empty()) {
    print_error("no prompt: give one, `-` to read it from stdin, or --prompt-file FILE (see coli run --help)");
    return kExitUsage;
  }
  std::string prompt = flags.prompt;
  if (!flags.prompt_file.empty() || prompt == "-") {
    auto text = read_prompt(flags.prompt_file.empty() ? "-" : flags.prompt_file);
    if (!text) return fail_with(text.error());
    prompt = std::move(*text);
  }

  options->trace = flags.trace;
  auto model = LoadedModel::open(*options);
  if (!model) return fail_with(model.error());
  print_notices(*model->engine);
  auto ids = prompt_ids(flags, *model, prompt);
  if (!ids) return fail_with(ids.error());

  GenerateOptions generate_options;
  generate_options.sampling = flags.sampling.rule();
  generate_options.max_tokens = flags.max_tokens;
  generate_options.stop_ids = model->stops;

  std::string text;
  std::vector<std::int32_t> answer;
  Utf8Stream stream;
  const auto show = [&](const std::string& piece) {
    text += piece;
    if (flags.json) return;
    write_output(piece);
  };
  const InterruptGuard guard(SecondInterrupt::kEndsProgram);
  // Text that nobody can read any more is not worth computing; main() reports the failed write.
  const auto going = [] { return !InterruptGuard::interrupted() && std::ferror(stdout) == 0; };
  Session session(*model->engine);
  auto stats = generate(
      session, *ids, generate_options,
      [&](std::int32_t id) {
        answer.push_back(id);
        // Special tokens have no text of their own, but whoever writes them by hand wants to see them.
        if (flags.raw || !model->tokenizer.is_special(id)) show(stream.push(model->tokenizer.token_bytes(id)));
        return going();
      },
      going);
  show(stream.finish());
  if (!flags.json && !text.empty() && text.back() != '\n') std::fputc('\n', stdout);
  std::fflush(stdout);
  save_usage(*model->engine);
  if (!stats) return fail_with(stats.error());
  if (!stats->gpu_verdict.empty()) print_note(stats->gpu_verdict);
  if (auto traced = model->engine->finish_trace(); !traced) return fail_with(traced.error());

  if (std::ferror(stdout) != 0) return kExitFailed;
  const numerics::SamplingRule& rule = generate_options.sampling;
  if (flags.json) {
    nlohmann::json out = to_json(*stats);
    out["text"] = text;
    out["ids"] = answer;
    out["prompt_ids"] = *ids;
    out["seed"] = rule.seed;
    out["temperature"] = rule.temperature;
    out["threads"] = model->engine->threads();
    out["isa"] = model->engine->kernels_name();
    print_json(out);
  } else {
    fmt::print(stderr, "coli: {}{}\n", describe(*stats), rule.temperature > 0 ? fmt::format("; seed {}", rule.seed) : "");
    fmt::print(stderr, "coli: {}\n", describe_phases(*stats));
    if (stats->streamed) fmt::print(stderr, "coli: {}\n", describe_experts(stats->experts, stats->decode_steps));
    if (stats->gpu) fmt::print(stderr, "coli: {}\n", describe_gpu(*stats));
  }
  if (InterruptGuard::interrupted()) return kExitInterrupted;
  return kExitOk;
}

}  // namespace

Action declare_run(CommandLine& line) {
  auto flags = std::make_shared<RunFlags>();
  const OptionRules prompt = line.option("PROMPT", flags->prompt, "Text to continue; - reads it from stdin");
  line.option("--prompt-file", flags->prompt_file, "File that holds the prompt").excludes(prompt);
  flags->engine.declare(line);
  flags->sampling.declare(line);
  line.option("-n,--max-tokens", flags->max_tokens, "Longest answer in tokens").whole(0, 1 << 30).shows_default();
  const OptionRules raw = line.flag("--raw", flags->raw, "Feed the prompt alone, and take special tokens written in it as such");
  const OptionRules chat = line.flag("--chat", flags->chat, "Ask the prompt as one user turn").excludes(raw);
  line.flag("--think", flags->think, "With --chat: let the model think first").needs(chat);
  line.option("--trace", flags->trace, "Record which experts every layer needed to this file");
  line.flag("--json", flags->json, "One JSON object instead of text and statistics");
  return [flags, prompt] {
    flags->has_prompt = prompt.given();
    return run(*flags);
  };
}

}  // namespace colibri

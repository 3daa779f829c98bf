#include "report.h"

#include <array>
#include <cstdio>

#include "command.h"

namespace colibri {

std::string one_line(std::string_view text) {
  std::string line(text);
  for (char& c : line)
    if (c == '\n' || c == '\r') c = ' ';
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

void print_error(std::string_view message) {
  std::fflush(stdout);
  fmt::print(stderr, "coli: {}\n", one_line(message));
}

int fail_with(const Error& error) {
  print_error(error.message);
  return kExitFailed;
}

std::string with_commas(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string human_bytes(std::uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

double rate(std::int64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; }

std::string_view reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kStopToken: return "stop";
    case StopReason::kMaxTokens: return "max-tokens";
    case StopReason::kContextFull: return "context-full";
    case StopReason::kCancelled: return "cancelled";
  }
  return "";
}

std::string describe(const GenerateStats& s) {
  return fmt::format(
      "prompt {} tokens, {:.2f} s, {:.1f} tok/s; answer {} tokens, {:.2f} s, {:.1f} tok/s; first token after {:.2f} s; "
      "peak memory {}; ended by {}; logits_hash {:016x}",
      s.prompt_tokens, s.prompt_seconds, rate(s.prompt_tokens, s.prompt_seconds), s.decode_tokens, s.decode_seconds,
      rate(s.decode_steps, s.decode_seconds), s.first_token_seconds, human_bytes(s.peak_memory_bytes), reason_name(s.reason),
      s.logits_hash);
}

nlohmann::json to_json(const GenerateStats& s) {
  return {
      {"prompt_tokens", s.prompt_tokens},
      {"prompt_seconds", s.prompt_seconds},
      {"prompt_tok_s", rate(s.prompt_tokens, s.prompt_seconds)},
      {"decode_tokens", s.decode_tokens},
      {"decode_seconds", s.decode_seconds},
      {"decode_tok_s", rate(s.decode_steps, s.decode_seconds)},
      {"first_token_seconds", s.first_token_seconds},
      {"peak_memory_bytes", s.peak_memory_bytes},
      {"stop_reason", reason_name(s.reason)},
      {"logits_hash", fmt::format("{:016x}", s.logits_hash)},
  };
}

void print_json(const nlohmann::json& value) {
  const std::string text = value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

}  // namespace colibri

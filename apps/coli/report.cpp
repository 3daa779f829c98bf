#include "report.h"

#include <algorithm>
#include <array>
#include <cerrno>
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
  // Not fmt::print, which throws when stderr cannot be written: there is nobody left to tell.
  std::fputs(fmt::format("coli: {}\n", one_line(message)).c_str(), stderr);
}

void print_note(std::string_view message) { print_error(fmt::format("note: {}", message)); }

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

namespace {

// A first token and a hash of logits exist only when something was sampled.
bool any_sampled(const GenerateStats& s) { return s.decode_tokens > 0 || s.reason == StopReason::kStopToken; }

}  // namespace

std::string describe(const GenerateStats& s) {
  const bool sampled = any_sampled(s);
  return fmt::format(
      "prompt {} tokens, {:.2f} s, {:.1f} tok/s; answer {} tokens, {:.2f} s, {:.1f} tok/s;{} peak memory {} of {}; ended by {}{}",
      s.prompt_tokens, s.prompt_seconds, rate(s.prompt_tokens, s.prompt_seconds), s.decode_tokens, s.decode_seconds,
      rate(s.decode_steps, s.decode_seconds), sampled ? fmt::format(" first token after {:.2f} s;", s.first_token_seconds) : "",
      human_bytes(s.peak_memory_bytes), human_bytes(s.memory_budget_bytes), reason_name(s.reason),
      sampled ? fmt::format("; logits_hash {:016x}", s.logits_hash) : "");
}

namespace {

double share(std::uint64_t part, std::uint64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

double gigabytes_per_second(const ReaderStats& reader) {
  return reader.busy_seconds > 0 ? static_cast<double>(reader.bytes) / reader.busy_seconds / 1e9 : 0;
}

}  // namespace

namespace {

// Of the answer's tokens; what was read includes wrong guesses.
struct PerToken {
  double needed = 0, read = 0, bytes = 0;
};
PerToken experts_per_token(const StreamingStats& experts, std::int64_t answer_steps) {
  if (answer_steps == 0) return {};
  const CacheCounts& d = experts.decode;
  const auto steps = static_cast<double>(answer_steps);
  const double read = static_cast<double>(d.needed - d.hits + d.prefetched + d.unused) / steps;
  return {static_cast<double>(d.needed) / steps, read, read * static_cast<double>(experts.expert_bytes)};
}

// Milliseconds; `other` takes in what lies outside the graph, such as choosing the token.
PhaseTimes answer_ms_per_token(const GenerateStats& s) {
  const double scale = 1e3 / static_cast<double>(std::max<std::int64_t>(s.decode_steps, 1));
  PhaseTimes a = s.answer_phases;
  a.other += s.decode_seconds - a.total();
  for (double* t : {&a.attention, &a.feed_forward, &a.expert_wait, &a.expert_matmul, &a.head, &a.other, &a.gpu}) *t *= scale;
  return a;
}

nlohmann::json json_of(const PhaseTimes& p) {
  return {{"attention", p.attention},
          {"expert_disk", p.expert_wait},
          {"expert_matmul", p.expert_matmul},
          {"dense_and_router", p.feed_forward},
          {"head", p.head},
          {"gpu", p.gpu},
          {"other", p.other}};
}

}  // namespace

std::string describe_phases(const GenerateStats& s) {
  const PhaseTimes& p = s.phases;
  std::string text = fmt::format(
      "time: attention {:.2f} s, expert-disk {:.2f} s, expert-matmul {:.2f} s, dense and router {:.2f} s, head {:.2f} s, other "
      "{:.2f} s{}",
      p.attention, p.expert_wait, p.expert_matmul, p.feed_forward, p.head, p.other,
      s.gpu ? fmt::format(", GPU {:.2f} s", p.gpu) : "");
  if (s.decode_steps > 0) {
    const PhaseTimes a = answer_ms_per_token(s);
    text += fmt::format(
        "\ncoli: each token of the answer: attention {:.1f} ms, expert-disk {:.1f} ms, expert-matmul {:.1f} ms, dense and router "
        "{:.1f} ms, head {:.1f} ms, other {:.1f} ms{}",
        a.attention, a.expert_wait, a.expert_matmul, a.feed_forward, a.head, a.other,
        s.gpu ? fmt::format(", GPU {:.1f} ms", a.gpu) : "");
  }
  return text;
}

std::string describe_experts(const StreamingStats& experts, std::int64_t answer_steps) {
  const CacheCounts& d = experts.decode;
  const std::uint64_t cached = d.hits - d.pinned - d.prefetched;
  const PerToken per_token = experts_per_token(experts, answer_steps);
  std::string text = fmt::format(
      "experts: answer hit {:.1f} % (pinned {:.1f}, cached {:.1f}, prefetched {:.1f}), prompt hit {:.1f} %; {} read, "
      "{:.2f} GB/s; "
      "{} predicted and not needed; per token {:.1f} experts, {:.1f} of them read ({})",
      share(d.hits, d.needed), share(d.pinned, d.needed), share(cached, d.needed), share(d.prefetched, d.needed),
      share(experts.prefill.hits, experts.prefill.needed), human_bytes(experts.reader.bytes),
      gigabytes_per_second(experts.reader), d.unused + experts.prefill.unused, per_token.needed, per_token.read,
      human_bytes(static_cast<std::uint64_t>(per_token.bytes)));
  if (experts.most_given_up > 0)
    text += fmt::format("; memory was short: {} of {} slots given up at most, {} now", experts.most_given_up, experts.slots,
                        experts.given_up);
  if (experts.lost > 0) text += fmt::format(" ({} of these not taken back by the system and not used again)", experts.lost);
  return text;
}

namespace {

// What the GPU's times leave of the waiting: handing work over and hearing of its end.
double expert_overhead(const GpuCounters& g) { return g.expert_wall_seconds - g.expert_kernel_seconds; }

}  // namespace

std::string describe_gpu(const GenerateStats& s) {
  if (!s.gpu) return {};
  const GpuCounters& g = *s.gpu;
  const std::string kernels =
      g.expert_kernel_seconds > 0
          ? fmt::format("attention GPU kernel {:.3f} s, expert GPU kernel {:.3f} s, expert GPU overhead {:.3f} s",
                        g.attention_kernel_seconds, g.expert_kernel_seconds, expert_overhead(g))
          : "attention and experts of a layer in one command buffer";
  return fmt::format(
      "GPU ({}): blocks on GPU {}, experts on GPU {}, fallback CPU {}{}; attention launches {}, {}; setup {:.3f} s, GPU wall "
      "{:.3f} s, kernel {:.3f} s, scatter "
      "{:.3f} s, residency flush {:.3f} s, compiling {:.2f} s; {} command buffers, {} dispatches, {} barriers, {} waits",
      s.gpu_name, g.blocks, g.experts, g.redone, s.gpu_faults.empty() ? "" : ": " + one_line(s.gpu_faults), g.attention_launches,
      kernels, g.setup_seconds, g.wall_seconds, g.kernel_seconds, g.scatter_seconds, s.gpu_residency.flush_seconds,
      g.compile_seconds, g.encoded.command_buffers, g.encoded.dispatches, g.encoded.barriers, g.encoded.waits);
}

nlohmann::json to_json(const GenerateStats& s) {
  nlohmann::json out = {
      {"prompt_tokens", s.prompt_tokens},
      {"prompt_seconds", s.prompt_seconds},
      {"prompt_tok_s", rate(s.prompt_tokens, s.prompt_seconds)},
      {"decode_tokens", s.decode_tokens},
      {"decode_seconds", s.decode_seconds},
      {"decode_tok_s", rate(s.decode_steps, s.decode_seconds)},
      {"first_token_seconds", s.first_token_seconds},
      {"peak_memory_bytes", s.peak_memory_bytes},
      {"memory_budget_bytes", s.memory_budget_bytes},
      {"stop_reason", reason_name(s.reason)},
      {"logits_hash", fmt::format("{:016x}", s.logits_hash)},
      {"seconds", json_of(s.phases)},
  };
  if (s.decode_steps > 0) out["answer_ms_per_token"] = json_of(answer_ms_per_token(s));
  if (s.gpu) {
    const GpuCounters& g = *s.gpu;
    out["gpu"] = {{"name", s.gpu_name},
                  {"blocks", g.blocks},
                  {"experts", g.experts},
                  {"fallback_cpu", g.redone},
                  {"faults", s.gpu_faults},
                  {"switched_off", !s.gpu_verdict.empty()},
                  {"attention_launches", g.attention_launches},
                  {"command_buffers", g.encoded.command_buffers},
                  {"dispatches", g.encoded.dispatches},
                  {"barriers", g.encoded.barriers},
                  {"waits", g.encoded.waits},
                  {"seconds",
                   {{"setup", g.setup_seconds},
                    {"gpu_wall", g.wall_seconds},
                    {"kernel", g.kernel_seconds},
                    {"attention_kernel", g.attention_kernel_seconds},
                    {"expert_kernel", g.expert_kernel_seconds},
                    {"expert_overhead", expert_overhead(g)},
                    {"scatter", g.scatter_seconds},
                    {"residency_flush", s.gpu_residency.flush_seconds},
                    {"compiling", g.compile_seconds}}}};
  }
  if (!any_sampled(s)) out["first_token_seconds"] = out["logits_hash"] = nullptr;
  if (s.streamed) {
    const auto counts = [](const CacheCounts& c) -> nlohmann::json {
      return {{"needed", c.needed},
              {"hits", c.hits},
              {"pinned", c.pinned},
              {"prefetched", c.prefetched},
              {"predicted_unused", c.unused}};
    };
    const PerToken per_token = experts_per_token(s.experts, s.decode_steps);
    out["experts"] = {{"per_token", {{"needed", per_token.needed}, {"read", per_token.read}, {"bytes", per_token.bytes}}},
                      {"prompt", counts(s.experts.prefill)},
                      {"answer", counts(s.experts.decode)},
                      {"bytes_read", s.experts.reader.bytes},
                      {"gb_per_second", gigabytes_per_second(s.experts.reader)},
                      {"answer_bytes_read", s.answer_reads.bytes},
                      {"answer_gb_per_second", gigabytes_per_second(s.answer_reads)}};
    if (s.experts.most_given_up > 0)
      out["experts"]["slots_given_up"] = {
          {"of", s.experts.slots}, {"most", s.experts.most_given_up}, {"now", s.experts.given_up}, {"lost", s.experts.lost}};
  }
  return out;
}

namespace {

int first_output_error = 0;

}  // namespace

void write_output(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if ((!written || std::fflush(stdout) != 0) && first_output_error == 0) first_output_error = errno;
}

int output_error() { return first_output_error; }

void print_json(const nlohmann::json& value) {
  const std::string text = value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
  write_output(text + '\n');
}

}  // namespace colibri

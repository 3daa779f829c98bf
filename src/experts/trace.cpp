#include "experts/trace.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>
#include <string>

#include "format/file.h"

namespace colibri {
namespace {

constexpr std::uint64_t kMaxTraceBytes = std::uint64_t{4} << 30;
constexpr std::int64_t kMaxRows = 1 << 20;
constexpr std::int64_t kMaxNanoseconds = std::int64_t{1} << 53;  // a hundred days

// The words of one line, consumed from the front.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}

  bool empty() {
    skip();
    return rest_.empty();
  }
  std::string_view next() {
    skip();
    const auto end = std::min(rest_.find(' '), rest_.size());
    const auto word = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return word;
  }

 private:
  void skip() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  std::string_view rest_;
};

bool parse_number(std::string_view word, std::int64_t& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size() && !word.empty();
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  Result<Trace> run() {
    if (!next_line() || line_ != "coli-trace 1") return error("expected 'coli-trace 1'; this is not a trace of this version");
    if (!next_line()) return error("expected the 'model' line");
    COLIBRI_CHECK(parse_model());
    seen_.assign(static_cast<std::size_t>(trace_.model.experts), 0);
    while (next_line()) {
      if (line_.empty()) continue;
      Words words(line_);
      const std::string_view word = words.next();
      if (word == "step") {
        COLIBRI_CHECK(parse_step(words));
      } else if (word == "layer") {
        COLIBRI_CHECK(parse_layer(words));
      } else {
        return error("expected a 'step' or 'layer' line");
      }
    }
    return std::move(trace_);
  }

 private:
  bool next_line() {
    if (text_.empty()) return false;
    const auto end = std::min(text_.find('\n'), text_.size());
    line_ = text_.substr(0, end);
    if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    ++number_;
    return true;
  }

  tl::unexpected<Error> error(std::string_view what) const {
    return fail("{}:{}: {}; found {}", name_, number_, what, in_quotes(line_));
  }

  Result<std::int64_t> number(Words& words, std::string_view what, std::int64_t low, std::int64_t high) const {
    std::int64_t value = 0;
    if (!parse_number(words.next(), value) || value < low || value > high)
      return error(fmt::format("expected {} from {} to {}", what, low, high));
    return value;
  }

  Result<void> parse_model() {
    Words words(line_);
    if (words.next() != "model") return error("expected 'model LAYERS EXPERTS TOP_K EXPERT_BYTES'");
    TraceModel& m = trace_.model;
    COLIBRI_TRY(layers, number(words, "a number of layers", 1, kMaxTraceLayers));
    COLIBRI_TRY(experts, number(words, "a number of experts", 1, kMaxTraceExperts));
    COLIBRI_TRY(top_k, number(words, "a number of experts per row", 1, experts));
    COLIBRI_TRY(bytes, number(words, "the bytes of an expert", 1, std::int64_t{1} << 40));
    if (!words.empty()) return error("expected four numbers after 'model'");
    m = {layers, experts, top_k, bytes};
    return {};
  }

  Result<void> parse_step(Words& words) {
    const std::string_view phase = words.next();
    if (phase != "prefill" && phase != "decode") return error("expected 'step prefill' or 'step decode'");
    COLIBRI_TRY(rows, number(words, "a number of rows", 1, kMaxRows));
    COLIBRI_TRY(tail, number(words, "nanoseconds", 0, kMaxNanoseconds));
    if (!words.empty()) return error("expected two numbers after the phase");
    trace_.steps.push_back({phase == "prefill" ? StepPhase::kPrefill : StepPhase::kDecode, rows, tail, {}});
    return {};
  }

  Result<void> parse_layer(Words& words) {
    if (trace_.steps.empty()) return error("expected a 'step' line before the first layer");
    TraceStep& step = trace_.steps.back();
    LayerAccess access;
    COLIBRI_TRY(layer, number(words, "a layer", 0, trace_.model.layers - 1));
    if (!step.accesses.empty() && step.accesses.back().layer >= layer) return error("expected the layers of a step in order");
    COLIBRI_TRY(before, number(words, "nanoseconds", 0, kMaxNanoseconds));
    COLIBRI_TRY(shared, number(words, "nanoseconds", 0, kMaxNanoseconds));
    COLIBRI_TRY(expert, number(words, "nanoseconds", 0, kMaxNanoseconds));
    access = {layer, before, shared, expert, {}, {}, {}};
    if (words.next() != "|") return error("expected '|' before the needed experts");
    COLIBRI_CHECK(parse_needed(words, step.rows, access));
    COLIBRI_CHECK(parse_predicted(words, access));
    step.accesses.push_back(std::move(access));
    return {};
  }

  // Marks an id as part of the current list; false when it was already.
  bool mark(std::int64_t id) { return std::exchange(seen_[static_cast<std::size_t>(id)], stamp_) != stamp_; }

  Result<void> parse_needed(Words& words, std::int64_t step_rows, LayerAccess& access) {
    ++stamp_;
    for (std::string_view word = words.next(); word != "|"; word = words.next()) {
      if (word.empty()) return error("expected '|' after the needed experts");
      const auto star = word.find('*');
      std::int64_t id = -1, rows = 1;
      if (!parse_number(word.substr(0, star), id) || id < 0 || id >= trace_.model.experts)
        return error(fmt::format("expected expert ids from 0 to {}", trace_.model.experts - 1));
      if (star != std::string_view::npos && (!parse_number(word.substr(star + 1), rows) || rows < 1 || rows > step_rows))
        return error(fmt::format("expected 1 to {} rows of an expert", step_rows));
      if (!mark(id)) return error(fmt::format("expected distinct experts, expert {} comes twice", id));
      access.needed.push_back(static_cast<std::int32_t>(id));
      access.rows.push_back(static_cast<std::int32_t>(rows));
    }
    if (access.needed.empty()) return error("expected at least one needed expert");
    return {};
  }

  Result<void> parse_predicted(Words& words, LayerAccess& access) {
    ++stamp_;
    while (!words.empty()) {
      std::int64_t id = -1;
      if (!parse_number(words.next(), id) || id < 0 || id >= trace_.model.experts)
        return error(fmt::format("expected predicted ids from 0 to {}", trace_.model.experts - 1));
      if (!mark(id)) return error(fmt::format("expected distinct predictions, expert {} comes twice", id));
      access.predicted.push_back(static_cast<std::int32_t>(id));
    }
    return {};
  }

  std::string_view text_, name_, line_;
  std::int64_t number_ = 0;
  Trace trace_;
  std::vector<std::uint64_t> seen_;  // per expert: the list it was last part of
  std::uint64_t stamp_ = 0;
};

}  // namespace

Result<Trace> parse_trace(std::string_view text, std::string_view name) { return Parser(text, name).run(); }

Result<Trace> read_trace(const std::filesystem::path& path) {
  COLIBRI_TRY(text, read_text(path, kMaxTraceBytes));
  return parse_trace(text, path.string());
}

void append_trace_header(const TraceModel& model, std::vector<char>& out) {
  fmt::format_to(std::back_inserter(out), "coli-trace 1\nmodel {} {} {} {}\n", model.layers, model.experts, model.top_k,
                 model.expert_bytes);
}

void append_trace_step(const TraceStep& step, std::vector<char>& out) {
  auto to = std::back_inserter(out);
  fmt::format_to(to, "step {} {} {}\n", step.phase == StepPhase::kPrefill ? "prefill" : "decode", step.rows, step.tail_ns);
  for (const LayerAccess& access : step.accesses) {
    fmt::format_to(to, "layer {} {} {} {} |", access.layer, access.before_ns, access.shared_ns, access.expert_ns);
    for (std::size_t i = 0; i < access.needed.size(); ++i) {
      fmt::format_to(to, " {}", access.needed[i]);
      if (access.rows[i] != 1) fmt::format_to(to, "*{}", access.rows[i]);
    }
    fmt::format_to(to, " |");
    for (const std::int32_t id : access.predicted) fmt::format_to(to, " {}", id);
    out.push_back('\n');
  }
}

}  // namespace colibri

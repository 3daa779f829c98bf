#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <new>

#include "text/pattern_syntax.h"
#include "text/utf8.h"

namespace colibri {
namespace {

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContextPtr = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using CompileContextPtr = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;

constexpr std::uint32_t kHeapLimitKiB = 256 * 1024;

template <class T>
T* must(T* allocated) {
  if (allocated == nullptr) throw std::bad_alloc();
  return allocated;
}

}  // namespace

struct Pattern::Code {
  CodePtr code;
};

Pattern::Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Result<Pattern> Pattern::compile(std::string_view oniguruma) {
  COLIBRI_TRY(pattern, to_pcre2_syntax(oniguruma));
  const CompileContextPtr context(must(pcre2_compile_context_create(nullptr)));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  CodePtr code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get()));
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return fail("{} at byte {} of {}", reinterpret_cast<const char*>(message.data()), offset, pattern);
  }
  // Without a just-in-time compiler for this CPU the interpreter gives the same matches, slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  Pattern out;
  out.code_ = std::make_unique<Code>(Code{std::move(code)});
  return out;
}

Pattern Pattern::literal(std::string text) {
  Pattern out;
  out.literal_ = std::move(text);
  return out;
}

void Pattern::find_all(std::string_view text, std::vector<Span>& matches) const {
  matches.clear();
  if (code_ == nullptr) {
    if (literal_.empty()) return;
    for (std::size_t at = text.find(literal_); at != std::string_view::npos; at = text.find(literal_, at + literal_.size())) {
      matches.push_back({at, at + literal_.size()});
    }
    return;
  }
  const MatchDataPtr data(must(pcre2_match_data_create_from_pattern(code_->code.get(), nullptr)));
  const MatchContextPtr context(must(pcre2_match_context_create(nullptr)));
  // Ordinary patterns take a few steps per byte; a pattern that takes exponentially many must not hang the program.
  const std::uint64_t steps = 10'000'000 + std::uint64_t{64} * text.size();
  pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(std::min<std::uint64_t>(steps, UINT32_MAX)));
  pcre2_set_heap_limit(context.get(), kHeapLimitKiB);

  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(data.get());
  std::size_t from = 0;
  while (from <= text.size()) {
    int found = pcre2_match(code_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      // The interpreter keeps its state on the heap and goes deeper.
      found = pcre2_match(code_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                          context.get());
    }
    if (found < 0) return;  // no further match, or past the limits
    const Span match{ovector[0], ovector[1]};
    if (match.begin > match.end || match.begin < from) return;  // only \K in an assertion can do this
    if (match.begin == match.end && !matches.empty() && matches.back().end == match.end) {
      if (from >= text.size()) return;
      from += read_utf8(text.substr(from)).length;
      continue;
    }
    from = match.end;
    matches.push_back(match);
  }
}

}  // namespace colibri

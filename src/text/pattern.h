// A compiled pattern of a pre-tokenizer (PCRE2, UTF-8 with Unicode properties, just-in-time compiled where the CPU allows).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace colibri {

struct Span {
  std::size_t begin = 0, end = 0;  // bytes
};

class Pattern {
 public:
  // The error is PCRE2's complaint and the place in the pattern; the caller adds where the pattern stands.
  static Result<Pattern> compile(std::string_view pattern);
  // Matches exactly this text.
  static Pattern literal(std::string text);
  Pattern();  // matches nothing
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // Every match in `text` (valid UTF-8), from left to right, without overlap. An empty match counts, except right behind the
  // match before it. Where a pattern needs more steps or memory than any sane one would, matching ends there: the rest of
  // the text counts as unmatched.
  void find_all(std::string_view text, std::vector<Span>& matches) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;  // null: literal_
  std::string literal_;
};

}  // namespace colibri

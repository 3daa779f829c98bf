#include "text/unicode_classes.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>

#include "text/utf8.h"

namespace colibri {
namespace {

// Letters, marks, decimal and letter numbers, connectors and the two joiners (Unicode's UTS 18, \w).
bool is_word(std::uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return c == 0x200C || c == 0x200D;
  }
}

// White_Space.
bool is_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// The last character of a non-empty text; kInvalid where its end is no whole character.
Utf8Unit read_last(std::string_view text) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(4, text.size()); ++length) {
    const Utf8Unit unit = read_utf8(text.substr(text.size() - length));
    if (unit.status == Utf8Status::kValid && unit.length == length) return unit;
  }
  return {Utf8Status::kInvalid, 1, 0};
}

}  // namespace

bool starts_with_word(std::string_view text) {
  if (text.empty()) return false;
  const Utf8Unit unit = read_utf8(text);
  return unit.status == Utf8Status::kValid && is_word(unit.code_point);
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  const Utf8Unit unit = read_last(text);
  return unit.status == Utf8Status::kValid && is_word(unit.code_point);
}

std::size_t leading_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = read_utf8(text.substr(at));
    if (unit.status != Utf8Status::kValid || !is_space(unit.code_point)) break;
    at += unit.length;
  }
  return at;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Unit unit = read_last(text.substr(0, text.size() - length));
    if (unit.status != Utf8Status::kValid || !is_space(unit.code_point)) break;
    length += unit.length;
  }
  return length;
}

}  // namespace colibri

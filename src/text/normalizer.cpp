#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace colibri {
namespace {

utf8proc_propval_t combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

}  // namespace

std::string normalize_nfc(std::string_view text) {
  // Below U+0300 nothing combines and every character is its own composed form.
  if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; }))
    return std::string(text);

  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): the library's enum is a set of flags
  constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Unit unit = read_utf8(text.substr(at));
    assert(unit.status == Utf8Status::kValid);
    at += unit.length;
    std::array<utf8proc_int32_t, 32> buffer{};  // no canonical decomposition is longer than 4
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(unit.code_point), buffer.data(),
                                                           buffer.size(), kDecompose, &boundary);
    assert(count >= 0 && count <= static_cast<utf8proc_ssize_t>(buffer.size()));
    points.insert(points.end(), buffer.begin(), buffer.begin() + count);
  }

  // Canonical order: marks between two starters by their class, equal classes as they came. (utf8proc's own pass is
  // quadratic in the length of such a run, and the text is a stranger's.)
  struct Mark {
    utf8proc_propval_t combining_class;
    std::size_t index;
    utf8proc_int32_t point;
    bool operator<(const Mark& other) const {
      return std::pair(combining_class, index) < std::pair(other.combining_class, other.index);
    }
  };
  std::vector<Mark> marks;
  for (std::size_t first = 0; first < points.size();) {
    marks.clear();
    for (std::size_t i = first; i < points.size() && combining_class(points[i]) != 0; ++i) {
      marks.push_back({combining_class(points[i]), i, points[i]});
    }
    std::sort(marks.begin(), marks.end());
    for (std::size_t i = 0; i < marks.size(); ++i) points[first + i] = marks[i].point;
    first += marks.size() + 1;
  }

  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): as above
  constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const utf8proc_ssize_t composed =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), kCompose);
  assert(composed >= 0);
  points.resize(static_cast<std::size_t>(composed));
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t c : points) append_utf8(out, static_cast<std::uint32_t>(c));
  return out;
}

}  // namespace colibri

#include "text/utf8.h"

#include <cassert>

#include "text/tokenizer.h"

namespace colibri {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

Utf8Unit read_utf8(std::string_view text) {
  assert(!text.empty());
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Status::kValid, 1, lead};
  // The second byte's range excludes overlong forms, surrogates and values past 0x10FFFF; later ones are 80..BF.
  std::size_t length = 0;
  std::uint8_t low = 0x80, high = 0xBF;
  std::uint32_t value = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    value = lead & 0x1FU;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    value = lead & 0x0FU;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    value = lead & 0x07U;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Status::kInvalid, 1, 0};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Status::kIncomplete, i, 0};
    if (byte(i) < low || byte(i) > high) return {Utf8Status::kInvalid, i, 0};
    value = value << 6 | (byte(i) & 0x3FU);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Status::kValid, length, value};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = read_utf8(text.substr(at));
    if (unit.status != Utf8Status::kValid) break;
    at += unit.length;
  }
  return at;
}

std::size_t invalid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = read_utf8(text.substr(at));
    if (unit.status == Utf8Status::kValid) break;
    at += unit.length;
  }
  return at;
}

void append_utf8(std::string& out, std::uint32_t c) {
  const auto push = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xC0 | c >> 6);
    push(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    push(0xE0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3F));
    push(0x80 | (c & 0x3F));
  } else {
    push(0xF0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3F));
    push(0x80 | (c >> 6 & 0x3F));
    push(0x80 | (c & 0x3F));
  }
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  std::size_t at = 0;
  while (at < held_.size()) {
    const std::string_view rest = std::string_view(held_).substr(at);
    const Utf8Unit unit = read_utf8(rest);
    if (unit.status == Utf8Status::kIncomplete) break;
    out += unit.status == Utf8Status::kValid ? rest.substr(0, unit.length) : kReplacement;
    at += unit.length;
  }
  held_.erase(0, at);
  return out;
}

std::string Utf8Stream::finish() {
  // What is held is always one beginning of a character, so one replacement stands for it.
  std::string out(held_.empty() ? std::string_view() : kReplacement);
  held_.clear();
  return out;
}

}  // namespace colibri

// UTF-8 as the text room reads it: one sequence at a time, with no assumption that the bytes are well formed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace colibri {

enum class Utf8Status : std::uint8_t { kValid, kInvalid, kIncomplete };

// What stands at the start of a non-empty string. kValid: `length` bytes hold `code_point`. kInvalid: the first `length` bytes
// begin no character (the longest part that could have begun one, as Unicode's chapter 3 advises for replacement).
// kIncomplete: the whole string, `length` bytes, is the beginning of a character.
struct Utf8Unit {
  Utf8Status status = Utf8Status::kInvalid;
  std::size_t length = 1;
  std::uint32_t code_point = 0;
};
Utf8Unit read_utf8(std::string_view text);

// Bytes at the start of `text` that are whole, valid characters.
std::size_t valid_utf8_prefix(std::string_view text);
// Bytes at the start of `text` that belong to no valid character.
std::size_t invalid_utf8_prefix(std::string_view text);

// code_point must be a scalar value (at most 0x10FFFF, no surrogate).
void append_utf8(std::string& out, std::uint32_t code_point);

}  // namespace colibri

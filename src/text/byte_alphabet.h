// tokenizer.json writes byte-level tokens in an alphabet of 256 printable characters: a printable Latin-1 byte stands for
// itself, each other byte for the next free code point from U+0100 on ("Ġ", U+0120, is the space).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colibri {

// The bytes that `text` spells in the alphabet; nullopt where a character is not of the alphabet or the text is not UTF-8.
std::optional<std::string> bytes_of_alphabet(std::string_view text);

// The character for a byte, as UTF-8.
std::string alphabet_of_byte(std::uint8_t byte);

}  // namespace colibri

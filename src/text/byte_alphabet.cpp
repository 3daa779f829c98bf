#include "text/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace colibri {
namespace {

struct Alphabet {
  std::array<std::uint16_t, 256> of_byte{};
  std::array<std::int16_t, 512> of_char{};  // -1: not of the alphabet

  constexpr Alphabet() {
    of_char.fill(-1);
    std::uint16_t next = 256;
    for (std::uint16_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      of_byte[byte] = printable ? byte : next++;
      of_char[of_byte[byte]] = static_cast<std::int16_t>(byte);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::optional<std::string> bytes_of_alphabet(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = read_utf8(text);
    if (unit.status != Utf8Status::kValid || unit.code_point >= kAlphabet.of_char.size()) return std::nullopt;
    const std::int16_t byte = kAlphabet.of_char[unit.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    text.remove_prefix(unit.length);
  }
  return bytes;
}

std::string alphabet_of_byte(std::uint8_t byte) {
  std::string out;
  append_utf8(out, kAlphabet.of_byte[byte]);
  return out;
}

}  // namespace colibri

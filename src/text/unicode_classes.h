// The few character classes that the rules for added tokens name. Text may be any bytes: invalid ones are in no class.
#pragma once

#include <cstddef>
#include <string_view>

namespace colibri {

bool starts_with_word(std::string_view text);
bool ends_with_word(std::string_view text);
// Bytes of white space at the start and at the end.
std::size_t leading_space(std::string_view text);
std::size_t trailing_space(std::string_view text);

}  // namespace colibri

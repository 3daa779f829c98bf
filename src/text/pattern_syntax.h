// Patterns of tokenizer.json are written for Oniguruma (with Ruby's syntax); we match them with PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace colibri {

// The same pattern for PCRE2 with UTF and UCP. What differs is rewritten:
//   ^ $                anchors of lines, always
//   \s \w \d \h \b     by Unicode's White_Space and word characters, \h a hex digit, \v one character
//   \p{Han}            a script is the Script property, not Script_Extensions; long category names
//   X{1,3}+            a repeated interval, not a possessive one; X{,3} begins at 0
//   (?m)               lets . match a newline; (?i) alone holds to the end of its group, alternatives included
//   [a[^b]] [a&&[^b]]  unions and intersections of classes
//   (x) (?<name>x)     groups capture nothing
// What is left out (back references, calls, conditions, comments, extended mode, raw bytes) is refused by name.
Result<std::string> to_pcre2_syntax(std::string_view pattern);

}  // namespace colibri

// Unicode normalisation form C, the only normaliser that byte-level tokenizers use.
#pragma once

#include <string>
#include <string_view>

namespace colibri {

// `text` must be valid UTF-8. Time grows as n log n whatever the text: long runs of combining marks are sorted, not bubbled.
std::string normalize_nfc(std::string_view text);

}  // namespace colibri

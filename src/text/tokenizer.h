// Byte-level BPE from tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace colibri {

struct TokenizerState;

class Tokenizer {
 public:
  // Reads tokenizer.json. Supported: BPE with byte-level pre-tokenisation (Split patterns through PCRE2, Digits, Sequence,
  // ByteLevel), NFC normalisation, added tokens, ignore_merges, merges as strings or pairs. Anything else is named in the error.
  static Result<Tokenizer> load(const std::filesystem::path& tokenizer_json);
  // The same from text; `name` stands in errors for the file.
  static Result<Tokenizer> parse(std::string_view json, std::string_view name);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // honour_special: added tokens written in the text become their ids (templates, --raw); otherwise their characters are
  // ordinary text, and no ordinary text ever becomes a special token.
  // Invalid UTF-8 is accepted: a run of bytes that belong to no character is a piece of its own, neither normalised nor
  // split by patterns, and the text on both sides of it is cut as if it ended and began there. (Where a vocabulary lacks a
  // byte that stands in no valid text, U+FFFD is encoded in its place.)
  // Time grows as n log n (given patterns that do, as those of all known families), memory as n. Calls may run at the same time
  // in several threads.
  std::vector<std::int32_t> encode(std::string_view text, bool honour_special) const;
  // The bytes of one token; for a special token its text. Unknown id: empty.
  std::string_view token_bytes(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  std::optional<std::int32_t> token_id(std::string_view text) const;  // exact token or added token
  std::int64_t vocab_size() const;                                    // largest id + 1
  // The bytes of the tokens, joined. Ids may begin or end inside a character: for text that is always whole use Utf8Stream.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

 private:
  explicit Tokenizer(std::unique_ptr<TokenizerState> state);
  std::unique_ptr<TokenizerState> state_;
};

// Turns a stream of token bytes into text that is always whole UTF-8: an incomplete sequence is held back,
// an invalid one becomes U+FFFD.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);  // what can be shown now
  std::string finish();                      // what was held back, replaced where incomplete

 private:
  std::string held_;
};

}  // namespace colibri

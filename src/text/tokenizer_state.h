// What a loaded tokenizer is made of; private to the room.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace colibri {

struct TokenizerState {
  struct Token {
    std::string bytes;
    bool special = false;     // an added token flagged special
    bool added = false;       // `bytes` are the added token's text
    bool byte_level = false;  // from the vocabulary, `bytes` are what its text spells
  };

  bool nfc = false;
  AddedTokenFinder added;             // looked for in the text as it is
  AddedTokenFinder added_normalized;  // looked for in the normalised text
  PreTokenizer pre_tokenizer;
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  Bpe bpe;
  std::array<bool, 256> has_byte{};  // false only for bytes of no valid text
  std::vector<Token> tokens;         // by id; holes have no bytes
  // By bytes, into `tokens`, which never changes once these are filled.
  std::unordered_map<std::string_view, std::int32_t> vocab_ids, added_ids;

  void encode_raw(std::string_view text, bool honour_special, std::vector<std::int32_t>& out) const;
  void encode_valid(std::string_view text, bool honour_special, std::vector<std::int32_t>& out) const;
  void encode_pieces(std::string_view text, std::vector<std::int32_t>& out) const;
  void encode_invalid(std::string_view bytes, std::vector<std::int32_t>& out) const;
  void encode_piece(std::string_view piece, std::vector<std::int32_t>& out) const;
};

}  // namespace colibri

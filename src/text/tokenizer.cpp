#include "text/tokenizer.h"

#include <algorithm>
#include <deque>

#include "text/normalizer.h"
#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace colibri {

Tokenizer::Tokenizer(std::unique_ptr<TokenizerState> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool honour_special) const {
  std::vector<std::int32_t> out;
  std::size_t at = 0;
  if (honour_special && !state_->added.empty()) {
    while (const auto found = state_->added.find(text, at)) {
      state_->encode_raw(text.substr(at, found->begin - at), honour_special, out);
      out.push_back(found->id);
      at = found->end;
    }
  }
  state_->encode_raw(text.substr(at), honour_special, out);
  return out;
}

// Any bytes: what is not UTF-8 stands apart, each run of it one piece.
void TokenizerState::encode_raw(std::string_view text, bool honour_special, std::vector<std::int32_t>& out) const {
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, valid_utf8_prefix(text));
    if (!valid.empty()) encode_valid(nfc ? normalize_nfc(valid) : valid, honour_special, out);
    text.remove_prefix(valid.size());
    const std::string_view invalid = text.substr(0, invalid_utf8_prefix(text));
    if (!invalid.empty()) encode_invalid(invalid, out);
    text.remove_prefix(invalid.size());
  }
}

void TokenizerState::encode_valid(std::string_view text, bool honour_special, std::vector<std::int32_t>& out) const {
  std::size_t at = 0;
  if (honour_special && !added_normalized.empty()) {
    while (const auto found = added_normalized.find(text, at)) {
      encode_pieces(text.substr(at, found->begin - at), out);
      out.push_back(found->id);
      at = found->end;
    }
  }
  encode_pieces(text.substr(at), out);
}

void TokenizerState::encode_pieces(std::string_view text, std::vector<std::int32_t>& out) const {
  std::vector<std::string_view> pieces;
  std::deque<std::string> storage;
  pre_tokenizer.run(text, pieces, storage);
  for (const std::string_view piece : pieces) encode_piece(piece, out);
}

void TokenizerState::encode_invalid(std::string_view bytes, std::vector<std::int32_t>& out) const {
  const auto known = [&](char c) { return has_byte[static_cast<unsigned char>(c)]; };
  if (std::all_of(bytes.begin(), bytes.end(), known)) return encode_piece(bytes, out);
  std::string replaced;
  for (const char c : bytes) {
    if (known(c)) {
      replaced.push_back(c);
    } else {
      append_utf8(replaced, 0xFFFD);
    }
  }
  encode_piece(replaced, out);
}

void TokenizerState::encode_piece(std::string_view piece, std::vector<std::int32_t>& out) const {
  if (ignore_merges) {
    if (const auto whole = vocab_ids.find(piece); whole != vocab_ids.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  const std::size_t first = out.size();
  bpe.encode(piece, out);
  // Ordinary text never becomes a special token, even where a file's merges lead to one.
  for (std::size_t i = first; i < out.size(); ++i) {
    const Token& token = tokens[static_cast<std::size_t>(out[i])];
    if (!token.special) continue;
    std::vector<std::int32_t> bytes;
    for (const char c : token.bytes) bytes.push_back(bpe.byte_id(static_cast<std::uint8_t>(c)));
    const auto place = out.erase(out.begin() + static_cast<std::ptrdiff_t>(i));
    out.insert(place, bytes.begin(), bytes.end());
    i += bytes.size() - 1;
  }
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return state_->tokens[static_cast<std::size_t>(id)].bytes;
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && state_->tokens[static_cast<std::size_t>(id)].special;
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view text) const {
  if (const auto it = state_->added_ids.find(text); it != state_->added_ids.end()) return it->second;
  if (const auto it = state_->vocab_ids.find(text); it != state_->vocab_ids.end()) return it->second;
  return std::nullopt;
}

std::int64_t Tokenizer::vocab_size() const { return static_cast<std::int64_t>(state_->tokens.size()); }

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string out;
  for (const std::int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    out += token_bytes(id);
  }
  return out;
}

}  // namespace colibri

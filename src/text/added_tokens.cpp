#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode_classes.h"

namespace colibri {

void AddedTokenFinder::add(const AddedToken& token) {
  std::uint32_t node = 0;
  for (const char c : token.content) {
    const std::uint64_t edge = std::uint64_t{node} << 8 | static_cast<unsigned char>(c);
    const auto [it, added] = edges_.try_emplace(edge, static_cast<std::uint32_t>(nodes_.size()));
    if (added) nodes_.emplace_back();
    node = it->second;
  }
  first_bytes_[static_cast<unsigned char>(token.content.front())] = true;
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::optional<AddedTokenFinder::Found> AddedTokenFinder::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!first_bytes_[static_cast<unsigned char>(text[begin])]) continue;
    std::uint32_t node = 0;
    std::int32_t longest = -1;
    std::size_t end = begin;
    for (std::size_t at = begin; at < text.size(); ++at) {
      const auto edge = edges_.find(std::uint64_t{node} << 8 | static_cast<unsigned char>(text[at]));
      if (edge == edges_.end()) break;
      node = edge->second;
      if (nodes_[node].token >= 0) {
        longest = nodes_[node].token;
        end = at + 1;
      }
    }
    if (longest < 0) continue;
    const AddedToken& token = tokens_[static_cast<std::size_t>(longest)];
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      // Not a token here; the search goes on behind it, not inside it.
      begin = end - 1;
      continue;
    }
    Found found{begin, end, token.id};
    if (token.lstrip) found.begin = std::max(from, begin - trailing_space(text.substr(0, begin)));
    if (token.rstrip) found.end = end + leading_space(text.substr(end));
    return found;
  }
  return std::nullopt;
}

}  // namespace colibri

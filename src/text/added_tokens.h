// Added tokens: texts such as "<|user|>" that stand for one id wherever they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace colibri {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;      // skipped by decode on request
  bool single_word = false;  // only between characters that are not of words
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for in the normalised text, not in the text as written
};

// Finds a set of tokens in text: the leftmost first, of those that start together the longest.
class AddedTokenFinder {
 public:
  // Longer contents are refused at load: a search costs at most this many steps per byte of text, usually one or two.
  static constexpr std::size_t kMaxContent = 256;

  void add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  struct Found {
    std::size_t begin = 0, end = 0;  // bytes of the text, white space taken by lstrip and rstrip included
    std::int32_t id = 0;
  };
  // The first token in `text` that begins at or after `from`; characters before `from` count as its surroundings only.
  std::optional<Found> find(std::string_view text, std::size_t from) const;

 private:
  struct Node {
    std::int32_t token = -1;  // index in tokens_
  };
  // The trie's edges: node * 256 + byte -> node. Tokens are few, so one table for all nodes stays small.
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<bool> first_bytes_ = std::vector<bool>(256);
  std::vector<AddedToken> tokens_;
};

}  // namespace colibri

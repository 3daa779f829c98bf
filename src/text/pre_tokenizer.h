// Cuts text into the pieces that are encoded one by one: a sequence of splits, then the byte level's own rules.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "text/pattern.h"

namespace colibri {

// What happens to the matches of a split's pattern.
enum class SplitBehavior : std::uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Split {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the text between matches takes the part of the matches
};

class PreTokenizer {
 public:
  std::vector<Split> splits;
  bool add_prefix_space = false;  // before a piece that begins with none; happens between `splits` and `byte_level_splits`
  std::vector<Split> byte_level_splits;

  // Non-empty pieces of `text` (valid UTF-8), in order. They point into `text`, or into `storage` where a space was added.
  void run(std::string_view text, std::vector<std::string_view>& pieces, std::deque<std::string>& storage) const;
};

}  // namespace colibri

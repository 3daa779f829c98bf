#include "text/pre_tokenizer.h"

#include <algorithm>

namespace colibri {
namespace {

struct Part {
  Span span;
  bool match = false;
};

// Matches and the text between them, as the parts of the whole text.
void cut(const Split& split, std::string_view text, std::vector<Span>& matches, std::vector<Part>& parts) {
  split.pattern.find_all(text, matches);
  parts.clear();
  std::size_t at = 0;
  for (const Span& match : matches) {
    if (match.begin > at) parts.push_back({{at, match.begin}, split.invert});
    parts.push_back({match, !split.invert});
    at = match.end;
  }
  if (at < text.size()) parts.push_back({{at, text.size()}, split.invert});
}

void join(SplitBehavior behavior, std::vector<Part>& parts) {
  std::vector<Part> joined;
  bool last_was_match = false;
  const auto take = [&](const Part& part, bool with_last, bool backwards) {
    if (with_last && !joined.empty()) {
      (backwards ? joined.back().span.begin : joined.back().span.end) = backwards ? part.span.begin : part.span.end;
    } else {
      joined.push_back(part);
    }
    last_was_match = part.match;
  };
  switch (behavior) {
    case SplitBehavior::kIsolated: return;
    case SplitBehavior::kRemoved: std::erase_if(parts, [](const Part& part) { return part.match; }); return;
    case SplitBehavior::kContiguous:
      for (const Part& part : parts) take(part, part.match == last_was_match, false);
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Part& part : parts) take(part, part.match && !last_was_match, false);
      break;
    case SplitBehavior::kMergedWithNext:
      std::for_each(parts.rbegin(), parts.rend(), [&](const Part& part) { take(part, part.match && !last_was_match, true); });
      std::reverse(joined.begin(), joined.end());
      break;
  }
  parts = std::move(joined);
}

void run_splits(const std::vector<Split>& splits, std::vector<std::string_view>& pieces) {
  std::vector<std::string_view> next;
  std::vector<Span> matches;
  std::vector<Part> parts;
  for (const Split& split : splits) {
    next.clear();
    for (const std::string_view piece : pieces) {
      cut(split, piece, matches, parts);
      join(split.behavior, parts);
      for (const Part& part : parts) {
        if (part.span.begin < part.span.end) next.push_back(piece.substr(part.span.begin, part.span.end - part.span.begin));
      }
    }
    pieces.swap(next);
  }
}

}  // namespace

void PreTokenizer::run(std::string_view text, std::vector<std::string_view>& pieces, std::deque<std::string>& storage) const {
  pieces.clear();
  if (text.empty()) return;
  pieces.push_back(text);
  run_splits(splits, pieces);
  if (add_prefix_space) {
    for (std::string_view& piece : pieces) {
      if (piece.starts_with(' ')) continue;
      piece = storage.emplace_back(" " + std::string(piece));
    }
  }
  run_splits(byte_level_splits, pieces);
}

}  // namespace colibri

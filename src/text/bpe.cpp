#include "text/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace colibri {
namespace {

// Up to this length a scan for the best pair is quicker than a heap.
constexpr std::size_t kShortPiece = 32;
// Positions in a piece are 32 bits wide; one longer than this is cut.
constexpr std::size_t kMaxPiece = std::size_t{1} << 30;
constexpr std::int32_t kNoMerge = INT32_MAX;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

Bpe::Bpe(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges) : byte_ids_(byte_ids) {
  int bits = 4;
  while ((std::size_t{1} << bits) < merges.size() * 2) ++bits;
  table_.resize(std::size_t{1} << bits);
  shift_ = 64 - bits;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const std::uint64_t key = pair_key(merge.left, merge.right);
    std::size_t at = key * 0x9E3779B97F4A7C15ULL >> shift_;
    while (table_[at].pair != kEmpty && table_[at].pair != key) at = (at + 1) & (table_.size() - 1);
    table_[at] = {key, static_cast<std::int32_t>(rank), merge.result};
  }
}

const Bpe::Entry* Bpe::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  std::size_t at = key * 0x9E3779B97F4A7C15ULL >> shift_;
  while (table_[at].pair != key) {
    if (table_[at].pair == kEmpty) return nullptr;
    at = (at + 1) & (table_.size() - 1);
  }
  return &table_[at];
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& out) const {
  if (piece.size() <= kShortPiece) return encode_short(piece, out);
  for (std::size_t at = 0; at < piece.size(); at += kMaxPiece) encode_long(piece.substr(at, kMaxPiece), out);
}

void Bpe::encode_short(std::string_view piece, std::vector<std::int32_t>& out) const {
  struct Part {
    std::int32_t id, rank, result;  // rank and result of the merge with the next part
  };
  std::array<Part, kShortPiece> parts;  // the first `count` are in use
  std::size_t count = piece.size();
  const auto look = [&](std::size_t i) {
    parts[i].rank = kNoMerge;
    if (i + 1 >= count) return;
    if (const Entry* entry = find(parts[i].id, parts[i + 1].id)) {
      parts[i].rank = entry->rank;
      parts[i].result = entry->result;
    }
  };
  for (std::size_t i = 0; i < count; ++i) parts[i].id = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (std::size_t i = 0; i < count; ++i) look(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < count; ++i) {
      if (parts[i].rank < parts[best].rank) best = i;
    }
    if (parts[best].rank == kNoMerge) break;
    parts[best].id = parts[best].result;
    std::copy(parts.begin() + static_cast<std::ptrdiff_t>(best) + 2, parts.begin() + static_cast<std::ptrdiff_t>(count),
              parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    --count;
    look(best);
    if (best > 0) look(best - 1);
  }
  for (std::size_t i = 0; i < count; ++i) out.push_back(parts[i].id);
}

void Bpe::encode_long(std::string_view piece, std::vector<std::int32_t>& out) const {
  // Parts form a doubly linked list in an array. The heap holds every merge seen, as rank << 32 | index of the left part; one
  // whose parts have changed since is recognised by its rank and dropped. Each merge removes a part and adds at most two
  // heap entries.
  constexpr std::uint32_t kNone = UINT32_MAX;
  struct Part {
    std::int32_t id;  // -1: joined to its left neighbour
    std::uint32_t prev, next;
  };
  const auto count = static_cast<std::uint32_t>(piece.size());
  std::vector<Part> parts(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    parts[i] = {byte_ids_[static_cast<unsigned char>(piece[i])], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1};
  }
  const auto merge_at = [&](std::uint32_t i) -> const Entry* {
    const Part& part = parts[i];
    return part.id < 0 || part.next == kNone ? nullptr : find(part.id, parts[part.next].id);
  };
  const auto key = [](std::int32_t rank, std::uint32_t i) { return static_cast<std::uint64_t>(rank) << 32 | i; };

  std::vector<std::uint64_t> keys;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (const Entry* entry = merge_at(i)) keys.push_back(key(entry->rank, i));
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap(std::greater<>{}, std::move(keys));
  while (!heap.empty()) {
    const auto rank = static_cast<std::int32_t>(heap.top() >> 32);
    const auto at = static_cast<std::uint32_t>(heap.top());
    heap.pop();
    const Entry* const merge = merge_at(at);
    if (merge == nullptr || merge->rank != rank) continue;
    Part& left = parts[at];
    Part& right = parts[left.next];
    left.id = merge->result;
    left.next = right.next;
    right.id = -1;
    if (left.next != kNone) parts[left.next].prev = at;
    if (const Entry* entry = merge_at(at)) heap.push(key(entry->rank, at));
    if (left.prev == kNone) continue;
    if (const Entry* entry = merge_at(left.prev)) heap.push(key(entry->rank, left.prev));
  }
  for (std::uint32_t i = 0; i != kNone; i = parts[i].next) out.push_back(parts[i].id);
}

}  // namespace colibri

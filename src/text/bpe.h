// Byte-pair encoding of one piece of text: of all neighbours that a merge joins, the earliest merge of the list is applied
// first, from left to right, until none applies.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace colibri {

class Bpe {
 public:
  struct Merge {
    std::int32_t left = 0, right = 0, result = 0;
  };
  // byte_ids: the token of each single byte. Of merges that name the same pair the last counts.
  Bpe() : Bpe({}, {}) {}
  Bpe(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges);

  // Appends the ids of `piece`, any bytes. O(n log n) time, O(n) memory.
  void encode(std::string_view piece, std::vector<std::int32_t>& out) const;
  std::int32_t byte_id(std::uint8_t byte) const { return byte_ids_[byte]; }

 private:
  struct Entry {
    std::uint64_t pair = kEmpty;  // left << 32 | right
    std::int32_t rank = 0, result = 0;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  const Entry* find(std::int32_t left, std::int32_t right) const;
  void encode_short(std::string_view piece, std::vector<std::int32_t>& out) const;
  void encode_long(std::string_view piece, std::vector<std::int32_t>& out) const;

  std::array<std::int32_t, 256> byte_ids_;
  std::vector<Entry> table_;  // open addressing, a power of two at least twice the merges
  int shift_ = 0;             // takes a hash to an index
};

}  // namespace colibri

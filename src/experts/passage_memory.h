// A memory of passages: what stretches of the text used which experts, and which of them were like the present one. What
// those used comes back when a subject does, however long it was away.
//
// Every kTurns turns make a passage, stored as one byte an expert; the last kPassages are kept, over all layers together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace colibri {

class PassageMemory {
 public:
  static constexpr int kTurns = 64;
  static constexpr std::size_t kPassages = 128;

  // Of all layers together; every span of experts here is as long.
  explicit PassageMemory(std::size_t experts);

  // A layer's turn: how often its experts, the first of which has index `first`, were used, from 0 to 1.
  void note(std::size_t first, std::span<const double> used);
  // A turn of all layers is over.
  void end_turn();
  // Compares the passages with the present mean use per turn of every expert.
  void recall(std::span<const double> present);
  // Mean use per turn of an expert in passages like that of the last recall; 0 while there are none.
  double recalled(std::size_t expert) const { return recalled_[expert]; }

 private:
  std::span<const std::uint8_t> passage(std::size_t index) const {
    return std::span(stored_).subspan(index * open_.size(), open_.size());
  }
  void close();

  std::vector<float> open_;           // the passage at hand: use, summed
  std::vector<std::uint8_t> stored_;  // [kPassages][experts], use summed, in 1/kUnit
  std::vector<float> mean_;           // of the passages stored, in the same unit
  std::vector<float> recalled_;
  std::size_t closed_ = 0;  // passages so far
  int turns_ = 0;           // of the passage at hand
};

}  // namespace colibri

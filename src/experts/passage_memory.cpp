#include "experts/passage_memory.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

namespace colibri {
namespace {

constexpr float kUnit = 255.0F / PassageMemory::kTurns;  // an expert used in every turn is stored as 255
constexpr float kSharpness = 6;  // a passage counts as exp(kSharpness * likeness), the likeness being at most 1

}  // namespace

PassageMemory::PassageMemory(std::size_t experts)
    : open_(experts), stored_(kPassages * experts), mean_(experts), recalled_(experts) {}

void PassageMemory::note(std::size_t first, std::span<const double> used) {
  for (std::size_t e = 0; e < used.size(); ++e) open_[first + e] += static_cast<float>(used[e]);
}

void PassageMemory::end_turn() {
  if (++turns_ == kTurns) close();
}

void PassageMemory::close() {
  std::uint8_t* const into = stored_.data() + closed_ % kPassages * open_.size();
  for (std::size_t e = 0; e < open_.size(); ++e) into[e] = static_cast<std::uint8_t>(std::min(open_[e] * kUnit + 0.5F, 255.0F));
  std::fill(open_.begin(), open_.end(), 0.0F);
  turns_ = 0;
  ++closed_;
  const std::size_t count = std::min(closed_, kPassages);
  std::fill(mean_.begin(), mean_.end(), 0.0F);
  for (std::size_t p = 0; p < count; ++p) {
    const auto use = passage(p);
    for (std::size_t e = 0; e < mean_.size(); ++e) mean_[e] += static_cast<float>(use[e]) / static_cast<float>(count);
  }
}

// Likeness is the cosine between what passage and present differ by from the mean passage: what is used everywhere says
// nothing about which passage this is.
void PassageMemory::recall(std::span<const double> present) {
  assert(present.size() == recalled_.size());
  const std::size_t count = std::min(closed_, kPassages);
  if (count == 0) return;
  std::vector<float>& here = recalled_;  // first the present's difference from the mean
  float length = 0;
  for (std::size_t e = 0; e < here.size(); ++e) {
    here[e] = static_cast<float>(present[e]) * (kUnit * kTurns) - mean_[e];
    length += here[e] * here[e];
  }
  std::array<float, kPassages> weight{};
  float total = 0;
  for (std::size_t p = 0; p < count; ++p) {
    const auto use = passage(p);
    float product = 0, norm = 0;
    for (std::size_t e = 0; e < here.size(); ++e) {
      const float difference = static_cast<float>(use[e]) - mean_[e];
      product += here[e] * difference;
      norm += difference * difference;
    }
    const float lengths = std::sqrt(norm * length);
    weight[p] = std::exp(kSharpness * (lengths > 0 ? product / lengths : 0));
    total += weight[p];
  }
  std::fill(recalled_.begin(), recalled_.end(), 0.0F);
  for (std::size_t p = 0; p < count; ++p) {
    const auto use = passage(p);
    const float scale = weight[p] / (total * kUnit * kTurns);
    for (std::size_t e = 0; e < recalled_.size(); ++e) recalled_[e] += scale * static_cast<float>(use[e]);
  }
}

}  // namespace colibri

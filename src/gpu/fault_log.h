// What went wrong on the GPU and what follows: a block that failed is computed again on the CPU; several failures in a row
// switch the GPU off for good.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "gpu/device.h"

namespace colibri::gpu {

class FaultLog {
 public:
  static constexpr int kInARow = 3;

  bool on() const { return in_a_row_ < kInARow; }
  void succeeded() {
    if (on()) in_a_row_ = 0;
  }
  // message: what the device said; the first of every kind is kept.
  void failed(Fault fault, const std::string& message);

  std::uint64_t count(Fault fault) const { return counts_[static_cast<std::size_t>(fault)]; }
  std::uint64_t total() const;
  // "2 x timeout (text), 1 x compile failure (text)"; empty when nothing failed.
  std::string describe() const;
  // One line when the GPU was switched off, else empty.
  std::string verdict() const;

 private:
  static constexpr std::size_t kKinds = 6;
  std::array<std::uint64_t, kKinds> counts_ = {};
  std::array<std::string, kKinds> first_;
  int in_a_row_ = 0;
};

}  // namespace colibri::gpu

#include "gpu/fault_log.h"

#include <numeric>

namespace colibri::gpu {

void FaultLog::failed(Fault fault, const std::string& message) {
  const auto kind = static_cast<std::size_t>(fault);
  if (counts_[kind]++ == 0) first_[kind] = message;
  if (on()) ++in_a_row_;
}

std::uint64_t FaultLog::total() const { return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0}); }

std::string FaultLog::describe() const {
  std::string text;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    if (counts_[kind] == 0) continue;
    text += fmt::format("{}{} x {}{}", text.empty() ? "" : ", ", counts_[kind], fault_name(static_cast<Fault>(kind)),
                        first_[kind].empty() ? "" : fmt::format(" ({})", first_[kind]));
  }
  return text;
}

std::string FaultLog::verdict() const {
  if (on()) return {};
  return fmt::format("the GPU failed {} times in a row and is switched off, the CPU goes on: {}", kInARow, describe());
}

}  // namespace colibri::gpu

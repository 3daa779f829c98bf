#include "numerics/finite.h"

#include <bit>

namespace colibri::numerics {

// This runs over every layer's numbers, so it has no branch that depends on them and the compiler makes it wide.
bool all_finite(const float* values, std::int64_t count) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t exponent = std::bit_cast<std::uint32_t>(values[i]) & kExponent;
    bad |= exponent == kExponent ? 1u : 0u;
  }
  return bad == 0;
}

}  // namespace colibri::numerics

// How damage shows: numbers that are infinite or NaN, which no sound model makes.
#pragma once

#include <cstdint>

namespace colibri::numerics {

bool all_finite(const float* values, std::int64_t count);

}  // namespace colibri::numerics

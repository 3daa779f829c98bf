// Rule C4 of docs/numerics.md: exp, sigmoid and silu in float, the same bits everywhere.
#pragma once

namespace colibri::numerics {

float exp(float x);      // above 64 as 64; below -64 +0; NaN stays NaN
float sigmoid(float x);  // 1 / (1 + exp(-x))
float silu(float x);     // x * sigmoid(x)

}  // namespace colibri::numerics

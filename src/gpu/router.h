// The router's choice of experts on the device (rules C7 and C10 of docs/numerics.md).
#pragma once

#include "gpu/encoder.h"

namespace colibri::gpu {

struct RouterShape {
  std::int64_t experts = 0, per_token = 0;  // per_token <= experts
  bool renormalise = true;
  float factor = 1;
};

// Sigmoid routers. logits: f32[rows][experts]; bias: f32[experts]; chosen: i32[rows][per_token] in rank order; weights:
// f32[rows][per_token]. A logit that is not finite, or a score that a bias makes NaN, sets kDamageRouter in *damage (u32);
// that row's choice then means nothing, but it is still of per_token different experts.
void route(Encoder& encoder, const RouterShape& shape, std::int64_t rows, Address logits, Address bias, Address chosen,
           Address weights, Address damage);

}  // namespace colibri::gpu

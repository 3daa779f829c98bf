#include "gpu/router.h"

#include <cassert>

#include "gpu/kernels/router.h"

namespace colibri::gpu {

void route(Encoder& encoder, const RouterShape& shape, std::int64_t rows, Address logits, Address bias, Address chosen,
           Address weights, Address damage) {
  assert(shape.per_token >= 0 && shape.per_token <= shape.experts);
  RouterArgs a{};
  a.logits = logits;
  a.bias = bias;
  a.chosen = chosen;
  a.weights = weights;
  a.damage = damage;
  a.experts = static_cast<u32>(shape.experts);
  a.per_token = static_cast<u32>(shape.per_token);
  a.renormalise = shape.renormalise;
  a.factor = shape.factor;
  encoder.dispatch({"router", "route_sigmoid"}, a, {rows}, kRouterThreads);
}

}  // namespace colibri::gpu

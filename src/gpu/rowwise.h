// Operations on each row or element: norms, activations, residual sums.
#pragma once

#include "gpu/matrix_args.h"

namespace colibri::gpu {

// Rule C5: out row = RMSNorm of x row. weight: f32[x.cols]. out may be x.
void rms_norm(Encoder& encoder, const Rows& x, Address weight, float eps, Address out, std::int64_t out_stride);

// out = silu(gate) * up, n floats. out may be gate.
void swiglu(Encoder& encoder, Address gate, Address up, Address out, std::int64_t n);

// out = a + b, n floats; a value that is not finite sets `bit` in *damage (u32; 0: not looked at).
void add(Encoder& encoder, Address a, Address b, Address out, std::int64_t n, Address damage, std::uint32_t bit);

}  // namespace colibri::gpu

// The elementwise kernels as plain loops that every instruction set's file compiles with its own flags: each value has
// its own chain of operations, so vectorising cannot change a bit. Selections are written without branches for that.
#pragma once

#include <cstdint>

#include "cpu/products.inl.h"
#include "numerics/norm.h"

namespace colibri::cpu {
namespace {

// C4, as numerics::exp.
inline float exp_value(float x) {
  float c = x > 64.0f ? 64.0f : x;
  c = c < -64.0f ? -64.0f : c;
  const float t = __builtin_fmaf(c, 1.44269504f, 12582912.0f);
  const float n = t - 12582912.0f;
  float r = __builtin_fmaf(n, -0.693145752f, c);
  r = __builtin_fmaf(n, -1.42860677e-6f, r);
  float p = 1.9875691500e-4f;
  p = __builtin_fmaf(p, r, 1.3981999507e-3f);
  p = __builtin_fmaf(p, r, 8.3334519073e-3f);
  p = __builtin_fmaf(p, r, 4.1665795894e-2f);
  p = __builtin_fmaf(p, r, 1.6666665459e-1f);
  p = __builtin_fmaf(p, r, 0.5f);
  p = __builtin_fmaf(p, r * r, r);
  p = p + 1.0f;
  // The low bits of t are n in two's complement; the shift drops the rest.
  const float y = __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, p) + (__builtin_bit_cast(std::uint32_t, t) << 23));
  const float clamped = x < -64.0f ? 0.0f : y;
  return x == x ? clamped : x;
}

inline float sigmoid_value(float x) { return 1.0f / (1.0f + exp_value(-x)); }

float max(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 32;
  float m[kLanes];
  for (std::int64_t j = 0; j < kLanes; ++j) m[j] = -__builtin_inff();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t j = 0; j < kLanes; ++j) m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
  for (; i < n; ++i) m[0] = x[i] > m[0] ? x[i] : m[0];
  for (std::int64_t j = 1; j < kLanes; ++j) m[0] = m[j] > m[0] ? m[j] : m[0];
  return m[0] + 0.0f;  // -0 becomes +0, whichever zero came first
}

void scale(float* x, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] * factor;
}

void exp_minus(float* x, float m, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = exp_value(x[i] - m);
}

void sigmoid(const float* x, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = sigmoid_value(x[i]);
}

void swiglu(const float* gate, const float* up, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = (gate[i] * sigmoid_value(gate[i])) * up[i];
}

void add(const float* a, const float* b, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void accumulate(const float* y, float weight, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = __builtin_fmaf(weight, y[i], out[i]);
}

void indexer_accumulate(const float* dots, float factor, float w, float* score, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float s = dots[i] * factor;
    score[i] = __builtin_fmaf(w, 0.0f > s ? 0.0f : s, score[i]);
  }
}

template <class V>
void rms_norm(const float* x, const float* weight, float eps, float* out, std::int64_t n) {
  const float r = numerics::inverse_rms(dot<V>(x, x, n), n, eps);
  for (std::int64_t i = 0; i < n; ++i) out[i] = (x[i] * r) * weight[i];
}

template <class V>
constexpr Kernels make_table(std::string_view name) {
  return {.name = name,
          .pack_rows = pack_rows<V>,
          .matmul = matmul<V>,
          .transposed_matmul = transposed_matmul<V>,
          .dot = dot<V>,
          .weighted_sum = weighted_sum<V>,
          .max = max,
          .scale = scale,
          .exp_minus = exp_minus,
          .sigmoid = sigmoid,
          .swiglu = swiglu,
          .add = add,
          .accumulate = accumulate,
          .rms_norm = rms_norm<V>,
          .indexer_accumulate = indexer_accumulate};
}

}  // namespace
}  // namespace colibri::cpu

// Rule C9 of docs/numerics.md: rotary tables from our own double functions, and the rotation.
#pragma once

#include <cstdint>
#include <vector>

namespace colibri::numerics {

// Cosines and sines of position * theta^(-2j/R) for j < R/2, computed in double from + - * / and fma alone
// (library functions differ between hosts) and rounded once to float.
class RotaryTable {
 public:
  RotaryTable() = default;
  RotaryTable(double theta, std::int64_t dims);  // dims: R, even

  std::int64_t dims() const { return 2 * static_cast<std::int64_t>(frequency_.size()); }
  // cosine and sine: R/2 floats each.
  void angles(std::int64_t position, float* cosine, float* sine) const;

 private:
  std::vector<double> frequency_;
};

// GLM and DeepSeek: pairs (2j, 2j+1) of x in, halves (j, R/2+j) of y out. x and y: R floats, not overlapping.
void rotate_interleaved_to_halves(const float* x, const float* cosine, const float* sine, std::int64_t dims, float* y);

// The double functions, exposed for their tests. Errors stay below 2^-50 relative (sine, cosine: absolute).
double power(double base, double exponent);                    // base > 0
void sine_cosine(double angle, double& sine, double& cosine);  // |angle| < 2^30

}  // namespace colibri::numerics

#include "numerics/rotary.h"

#include <cmath>

namespace colibri::numerics {
namespace {

// A number as the unevaluated sum of two doubles, about 106 bits.
struct Double2 {
  double hi = 0, lo = 0;
};

Double2 quick_sum(double a, double b) {  // |a| >= |b|
  const double s = a + b;
  return {s, b - (s - a)};
}
Double2 two_sum(double a, double b) {
  const double s = a + b, bb = s - a;
  return {s, (a - (s - bb)) + (b - bb)};
}
Double2 add(Double2 a, Double2 b) {
  const Double2 s = two_sum(a.hi, b.hi);
  return quick_sum(s.hi, s.lo + a.lo + b.lo);
}
Double2 multiply(Double2 a, Double2 b) {
  const double p = a.hi * b.hi;
  return quick_sum(p, std::fma(a.hi, b.hi, -p) + (a.hi * b.lo + a.lo * b.hi));
}
Double2 divide(Double2 a, Double2 b) {
  const double q = a.hi / b.hi;
  const Double2 rest = add(a, multiply({-q, 0}, b));
  return quick_sum(q, rest.hi / b.hi);
}

// Taylor series of x / 2^10, squared ten times.
Double2 exp2x(Double2 x) {
  constexpr double kPart = 1.0 / 1024;
  const Double2 r{x.hi * kPart, x.lo * kPart};
  Double2 sum{1, 0}, term{1, 0};
  for (int n = 1; n <= 16; ++n) {
    term = divide(multiply(term, r), {static_cast<double>(n), 0});
    sum = add(sum, term);
  }
  for (int i = 0; i < 10; ++i) sum = multiply(sum, sum);
  return sum;
}

// Halley's iteration on exp(y) = x; each step triples the digits.
Double2 log2x(double x) {
  Double2 y{0, 0};
  double power_of_two = 1;
  while (power_of_two * 2 <= x) power_of_two *= 2, y.hi += 0.6931471805599453;
  while (power_of_two > x) power_of_two /= 2, y.hi -= 0.6931471805599453;
  for (int i = 0; i < 6; ++i) {
    const Double2 e = exp2x(y);
    const Double2 step = divide(add({x, 0}, {-e.hi, -e.lo}), add({x, 0}, e));
    y = add(y, {2 * step.hi, 2 * step.lo});
  }
  return y;
}

}  // namespace

double power(double base, double exponent) {
  const Double2 result = exp2x(multiply(log2x(base), {exponent, 0}));
  return result.hi + result.lo;
}

void sine_cosine(double angle, double& sine, double& cosine) {
  // Quarter turns, with pi/2 in three pieces; the first two have trailing zeros, so n times them is exact.
  const double shift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double n = (angle * 0.63661977236758134308 + shift) - shift;
  double r = std::fma(n, -1.57079632673412561417e+00, angle);
  r = std::fma(n, -6.07710050630396597660e-11, r);
  r = std::fma(n, -2.02226624879595063154e-21, r);
  const double z = r * r;
  double s = 0, c = 0;  // Taylor from the smallest term: enough for |r| <= pi/4
  for (int k = 10; k >= 1; --k) {
    s = (s + 1) * (-z / (2.0 * k * (2.0 * k + 1)));
    c = (c + 1) * (-z / ((2.0 * k - 1) * (2.0 * k)));
  }
  const double sr = std::fma(s, r, r), cr = c + 1;
  switch (static_cast<std::int64_t>(n) & 3) {
    case 0: sine = sr, cosine = cr; break;
    case 1: sine = cr, cosine = -sr; break;
    case 2: sine = -sr, cosine = -cr; break;
    default: sine = -cr, cosine = sr; break;
  }
}

RotaryTable::RotaryTable(double theta, std::int64_t dims) {
  for (std::int64_t j = 0; j < dims / 2; ++j)
    frequency_.push_back(power(theta, -2.0 * static_cast<double>(j) / static_cast<double>(dims)));
}

void RotaryTable::angles(std::int64_t position, float* cosine, float* sine) const {
  for (std::size_t j = 0; j < frequency_.size(); ++j) {
    double s = 0, c = 0;
    sine_cosine(static_cast<double>(position) * frequency_[j], s, c);
    cosine[j] = static_cast<float>(c);
    sine[j] = static_cast<float>(s);
  }
}

void rotate_interleaved_to_halves(const float* x, const float* cosine, const float* sine, std::int64_t dims, float* y) {
  const std::int64_t half = dims / 2;
  for (std::int64_t j = 0; j < half; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    y[j] = std::fma(a, cosine[j], -(b * sine[j]));
    y[half + j] = std::fma(b, cosine[j], a * sine[j]);
  }
}

}  // namespace colibri::numerics

#include "convert/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace colibri {
namespace {

// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, for magnitudes below 2^22.
float round_to_integer(float v) { return (v + 12582912.0f) - 12582912.0f; }

// The largest magnitude as bits: at least 0x7f800000 when a value is infinite or NaN.
std::uint32_t largest_magnitude(const float* x, std::int64_t n) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
  return largest;
}
constexpr std::uint32_t kInfinityBits = 0x7f800000u;

struct Levels {
  float per_scale;  // largest magnitude / this = scale
  float low, high;  // range of q
  float smallest_scale;
};
constexpr Levels kInt8{127, -128, 127, 1e-8f}, kInt4{7, -8, 7, 0}, kInt3{3, -4, 3, 0}, kInt2{1, -2, 1, 0};

// Columns are quantised in runs that fit the stack.
constexpr std::int64_t kRun = 256;

// The scale of n weights that share one. False: not finite.
bool scale_of(const Levels& levels, const float* x, std::int64_t n, float& scale) {
  const std::uint32_t largest = largest_magnitude(x, n);
  if (largest >= kInfinityBits) return false;
  scale = std::max(std::bit_cast<float>(largest) / levels.per_scale, levels.smallest_scale);
  if (scale < std::numeric_limits<float>::min()) scale = 0;  // subnormal scales count as zero when computing
  return true;
}

// q of n <= kRun weights, as floats, and their error.
void quantize_run(const Levels& levels, const float* x, std::int64_t n, float scale, float* q, QuantizationError& error) {
  const float divisor = scale > 0 ? scale : std::numeric_limits<float>::infinity();  // all q become 0
  for (std::int64_t i = 0; i < n; ++i) q[i] = std::clamp(round_to_integer(x[i] / divisor), levels.low, levels.high);
  // Several sums at a time, or one addition would wait for the other.
  constexpr std::int64_t kLanes = 8;
  std::array<double, kLanes> difference = {}, weight = {};
  std::int64_t i = 0;
  const auto add = [&](std::int64_t k, std::size_t lane) {
    const double w = x[k], d = static_cast<double>(q[k]) * scale - w;
    difference[lane] += d * d;
    weight[lane] += w * w;
  };
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) add(i + lane, static_cast<std::size_t>(lane));
  for (; i < n; ++i) add(i, 0);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    error.difference_squares += difference[lane];
    error.weight_squares += weight[lane];
  }
}

std::uint8_t code(const float* q, std::int64_t i, std::int64_t n, int zero) {
  return static_cast<std::uint8_t>(i < n ? static_cast<int>(q[i]) + zero : zero);
}

void pack_int8(const float* q, std::int64_t n, std::byte* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(static_cast<std::int8_t>(q[i]));
}

// Two or four codes a byte, low bits first; the unused part of the last byte stays 0.
template <int kBits>
void pack_codes(const float* q, std::int64_t n, int zero, std::byte* out) {
  constexpr std::int64_t kPer = 8 / kBits;
  for (std::int64_t i = 0; i < n; i += kPer) {
    unsigned byte = 0;
    for (std::int64_t k = 0; k < kPer && i + k < n; ++k)
      byte |= static_cast<unsigned>(static_cast<int>(q[i + k]) + zero) << (kBits * k);
    out[i / kPer] = static_cast<std::byte>(byte);
  }
}

// 64 codes in 24 bytes: the low two bits of each as int2, then the third bits.
void pack_int3(const float* q, std::int64_t n, std::byte* out) {
  std::array<unsigned, 24> bytes = {};
  for (std::int64_t k = 0; k < 64; ++k) {
    const unsigned c = code(q, k, n, 4);
    bytes[static_cast<std::size_t>(k / 4)] |= (c & 3) << (2 * (k % 4));
    bytes[static_cast<std::size_t>(16 + k / 8)] |= (c >> 2) << (k % 8);
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) out[i] = static_cast<std::byte>(bytes[i]);
}

// One scale for the whole row, or one per `span` columns (even, so that a group starts at a byte).
template <class Pack>
bool quantize_spans(const Levels& levels, const float* x, std::int64_t cols, std::int64_t span, float* scales,
                    QuantizationError& error, Pack&& pack) {
  std::array<float, kRun> q;
  for (std::int64_t begin = 0; begin < cols; begin += span, ++scales) {
    const std::int64_t end = std::min(begin + span, cols);
    if (!scale_of(levels, x + begin, end - begin, *scales)) return false;
    for (std::int64_t at = begin; at < end; at += kRun) {
      const std::int64_t n = std::min(kRun, end - at);
      quantize_run(levels, x + at, n, *scales, q.data(), error);
      pack(q.data(), at, n);
    }
  }
  return true;
}

std::uint16_t bf16_from_f32(float v) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

bool store_bf16(const float* x, std::int64_t cols, std::byte* data, QuantizationError& error) {
  for (std::int64_t i = 0; i < cols; ++i) {
    const std::uint16_t bits = bf16_from_f32(x[i]);
    if ((bits & 0x7f80u) == 0x7f80u) return false;  // was not finite, or rounds to infinity
    std::memcpy(data + 2 * i, &bits, 2);
    const double w = x[i], d = static_cast<double>(f32_from_bf16(bits)) - w;
    error.difference_squares += d * d;
    error.weight_squares += w * w;
  }
  return true;
}

constexpr std::string_view kKnown = "int8, int4, int4-g64 (or another group), int3-g64, int2, bf16, f32";

}  // namespace

Result<TargetFormat> parse_target_format(std::string_view text) {
  constexpr std::pair<std::string_view, TargetFormat> kNames[] = {{"int8", {WeightFormat::kInt8Row, 0}},
                                                                  {"int8-row", {WeightFormat::kInt8Row, 0}},
                                                                  {"int4", {WeightFormat::kInt4Row, 0}},
                                                                  {"int4-row", {WeightFormat::kInt4Row, 0}},
                                                                  {"int2", {WeightFormat::kInt2Row, 0}},
                                                                  {"int2-row", {WeightFormat::kInt2Row, 0}},
                                                                  {"int3-g64", {WeightFormat::kInt3G64, 64}},
                                                                  {"bf16", {WeightFormat::kBF16, 0}},
                                                                  {"f32", {WeightFormat::kF32, 0}}};
  for (const auto& [name, target] : kNames)
    if (text == name) return target;
  constexpr std::string_view kGrouped = "int4-g";
  if (text.starts_with(kGrouped)) {
    std::int32_t group = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + kGrouped.size(), end, group);
    // The sizes that can be told from a plain container's byte counts.
    constexpr std::array<std::int32_t, 8> kGroups = {16, 32, 48, 64, 96, 128, 192, 256};
    if (error == std::errc() && rest == end && std::find(kGroups.begin(), kGroups.end(), group) != kGroups.end())
      return TargetFormat{WeightFormat::kInt4Grouped, group};
    return fail("weight format \"{}\": expected a group of 16, 32, 48, 64, 96, 128, 192 or 256 columns", text);
  }
  return fail("weight format \"{}\": expected one of {}", text, kKnown);
}

std::string target_format_text(const TargetFormat& target) {
  if (target.format == WeightFormat::kInt4Grouped) return fmt::format("int4-g{}", target.group);
  return std::string(format_name(target.format));
}

double QuantizationError::relative_rms() const { return weight_squares > 0 ? std::sqrt(difference_squares / weight_squares) : 0; }

QuantizationError& QuantizationError::operator+=(const QuantizationError& other) {
  difference_squares += other.difference_squares;
  weight_squares += other.weight_squares;
  return *this;
}

bool quantize_row(const TargetFormat& target, const float* weights, std::int64_t cols, std::byte* data, float* scales,
                  QuantizationError& error) {
  switch (target.format) {
    case WeightFormat::kInt8Row:
      return quantize_spans(kInt8, weights, cols, cols, scales, error,
                            [&](const float* q, std::int64_t at, std::int64_t n) { pack_int8(q, n, data + at); });
    case WeightFormat::kInt4Row:
    case WeightFormat::kInt4Grouped: {
      const std::int64_t span = target.format == WeightFormat::kInt4Row ? cols : target.group;
      assert(span == cols || span % 2 == 0);
      return quantize_spans(kInt4, weights, cols, span, scales, error,
                            [&](const float* q, std::int64_t at, std::int64_t n) { pack_codes<4>(q, n, 8, data + at / 2); });
    }
    case WeightFormat::kInt2Row:
      return quantize_spans(kInt2, weights, cols, cols, scales, error,
                            [&](const float* q, std::int64_t at, std::int64_t n) { pack_codes<2>(q, n, 2, data + at / 4); });
    case WeightFormat::kInt3G64:
      return quantize_spans(kInt3, weights, cols, 64, scales, error,
                            [&](const float* q, std::int64_t at, std::int64_t n) { pack_int3(q, n, data + at / 64 * 24); });
    case WeightFormat::kBF16: return store_bf16(weights, cols, data, error);
    case WeightFormat::kF32:
      std::memcpy(data, weights, static_cast<std::size_t>(cols) * sizeof(float));
      return largest_magnitude(weights, cols) < kInfinityBits;
    case WeightFormat::kF16:
    case WeightFormat::kF8Block128: break;
  }
  assert(false && "not a format to convert to");
  return false;
}

}  // namespace colibri

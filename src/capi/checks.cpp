#include "capi/checks.h"

#include <algorithm>
#include <cmath>

#include "base/aligned.h"

namespace colibri::capi {
namespace {

bool aligned(const void* p, std::uintptr_t alignment) { return reinterpret_cast<std::uintptr_t>(p) % alignment == 0; }

std::uintptr_t element_bytes(WeightFormat format) {
  if (format == WeightFormat::kF32) return 4;
  return format == WeightFormat::kBF16 || format == WeightFormat::kF16 ? 2 : 1;
}

Outcome<std::int32_t> group_of(WeightFormat format, std::int32_t group, std::string_view name) {
  const std::int32_t fixed = format == WeightFormat::kInt3G64 ? 64 : format == WeightFormat::kF8Block128 ? 128 : 0;
  if (format == WeightFormat::kInt4Grouped) {
    if (group <= 0 || group % 2 != 0) return bad("{}.group: expected a multiple of 2 above 0, found {}", name, group);
    return group;
  }
  if (group != 0 && group != fixed) return bad("{}.group: expected {} for {}, found {}", name, fixed, format_name(format), group);
  return fixed;
}

}  // namespace

Outcome<> check_pointer(const void* p, std::string_view name) {
  if (p == nullptr) return bad("{}: expected a pointer, found null", name);
  return {};
}

Outcome<> check_floats(const float* p, std::string_view name) {
  COLIBRI_CHECK(check_pointer(p, name));
  if (!aligned(p, alignof(float)))
    return bad("{}: expected floats at a multiple of 4, found {}", name, static_cast<const void*>(p));
  return {};
}

Outcome<> check_range(std::int64_t value, std::int64_t least, std::int64_t most, std::string_view name) {
  if (value < least || value > most) return bad("{}: expected {} .. {}, found {}", name, least, most, value);
  return {};
}

Outcome<> Memory::check(const void* p, std::uint64_t bytes, std::string_view name) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  for (const auto& r : regions_.regions()) {
    const auto base = reinterpret_cast<std::uintptr_t>(r.base);
    if (begin < base || begin >= base + r.bytes) continue;
    if (bytes <= r.bytes - (begin - base)) return {};
    return refuse(COLI_METAL_NOT_REGISTERED,
                  "{}: expected {} bytes at {} inside one registered region, but the region at {} ends {} bytes after its start",
                  name, bytes, p, static_cast<const void*>(r.base), r.bytes - (begin - base));
  }
  return refuse(COLI_METAL_NOT_REGISTERED, "{}: expected memory registered with coli_metal_register, found {} in no region", name,
                p);
}

Outcome<Matrix> Memory::matrix(const coli_metal_matrix& m, std::string_view name, std::int64_t rows, std::int64_t cols) const {
  if (m.format < 0 || m.format >= kWeightFormatCount)
    return bad("{}.format: expected 0 .. {}, found {}", name, kWeightFormatCount - 1, m.format);
  Matrix out;
  out.format = static_cast<WeightFormat>(m.format);
  COLIBRI_TRY(group, group_of(out.format, m.group, name));
  out.group = group;
  COLIBRI_CHECK(check_range(m.rows, 1, kMostExtent, fmt::format("{}.rows", name)));
  COLIBRI_CHECK(check_range(m.cols, 1, kMostExtent, fmt::format("{}.cols", name)));
  if ((rows >= 0 && m.rows != rows) || (cols >= 0 && m.cols != cols))
    return bad("{}: expected {} x {}, found {} x {}", name, rows >= 0 ? rows : m.rows, cols >= 0 ? cols : m.cols, m.rows, m.cols);
  out.rows = m.rows;
  out.cols = m.cols;

  COLIBRI_CHECK(check_pointer(m.data, fmt::format("{}.data", name)));
  const std::uintptr_t element = element_bytes(out.format);
  const std::int64_t packed = format_row_bytes(out.format, m.cols);
  out.row_bytes = m.row_bytes == 0 ? packed : m.row_bytes;
  COLIBRI_CHECK(check_range(out.row_bytes, packed, std::int64_t{1} << 31, fmt::format("{}.row_bytes", name)));
  if (!aligned(m.data, element) || static_cast<std::uint64_t>(out.row_bytes) % element != 0)
    return bad("{}: expected data and row_bytes at multiples of {} for {}, found {} and {}", name, element,
               format_name(out.format), m.data, out.row_bytes);
  const std::int64_t bytes = (m.rows - 1) * out.row_bytes + packed;
  COLIBRI_CHECK(check(m.data, static_cast<std::uint64_t>(bytes) + kReadSlack, fmt::format("{}.data", name)));
  out.data = static_cast<const std::byte*>(m.data);

  const std::int64_t row_scales = format_row_scales(out.format, m.cols, out.group);
  if (row_scales == 0) {
    if (m.scales != nullptr) return bad("{}.scales: expected null for {}, found a pointer", name, format_name(out.format));
    return out;
  }
  COLIBRI_CHECK(check_floats(m.scales, fmt::format("{}.scales", name)));
  out.scale_stride = m.scale_stride == 0 ? row_scales : m.scale_stride;
  COLIBRI_CHECK(check_range(out.scale_stride, row_scales, (std::int64_t{1} << 31) - 1, fmt::format("{}.scale_stride", name)));
  const std::int64_t scale_rows = out.format == WeightFormat::kF8Block128 ? ceil_div(m.rows, 128) : m.rows;
  const std::int64_t scales = (scale_rows - 1) * out.scale_stride + row_scales;
  COLIBRI_CHECK(check(m.scales, static_cast<std::uint64_t>(scales) * sizeof(float), fmt::format("{}.scales", name)));
  out.scales = m.scales;
  return out;
}

Outcome<Expert> Memory::expert(const coli_metal_expert& e, std::int64_t index, std::int64_t hidden,
                               std::int64_t intermediate) const {
  Expert out;
  if (e.gate.data == nullptr) return out;
  COLIBRI_TRY(gate, matrix(e.gate, fmt::format("expert {} gate", index), intermediate, hidden));
  COLIBRI_TRY(up, matrix(e.up, fmt::format("expert {} up", index), intermediate, hidden));
  COLIBRI_TRY(down, matrix(e.down, fmt::format("expert {} down", index), hidden, intermediate));
  out.gate = gate;
  out.up = up;
  out.down = down;
  out.there = true;
  return out;
}

Outcome<> Memory::cache(const float* p, std::int64_t end, std::int64_t width, std::string_view name) const {
  COLIBRI_CHECK(check_pointer(p, name));
  if (!aligned(p, 16)) return bad("{}: expected a multiple of 16, found {}", name, static_cast<const void*>(p));
  return check(p, static_cast<std::uint64_t>(end * width) * sizeof(float), name);
}

Outcome<> check_same_formats(const Expert& first, const Expert& other, std::int64_t index) {
  const auto same = [&](const Matrix& a, const Matrix& b, std::string_view part) -> Outcome<> {
    if (a.format == b.format) return {};
    return bad("expert {} {}: expected {} as in the other experts, found {}", index, part, format_name(a.format),
               format_name(b.format));
  };
  COLIBRI_CHECK(same(first.gate, other.gate, "gate"));
  COLIBRI_CHECK(same(first.up, other.up, "up"));
  return same(first.down, other.down, "down");
}

Outcome<> check_choice(const std::int32_t* chosen, std::int64_t rows, std::int64_t per_token, std::int64_t experts) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int32_t* first = chosen + r * per_token;
    for (std::int64_t rank = 0; rank < per_token; ++rank) {
      if (first[rank] < 0 || first[rank] >= experts)
        return bad("chosen[{}][{}]: expected an expert 0 .. {}, found {}", r, rank, experts - 1, first[rank]);
      if (std::find(first, first + rank, first[rank]) != first + rank)
        return bad("chosen[{}][{}]: expected different experts in a row, found {} twice", r, rank, first[rank]);
    }
  }
  return {};
}

Outcome<> check_attention(const coli_metal_attention& shape) {
  constexpr std::int64_t kMost = 65536;
  COLIBRI_CHECK(check_range(shape.heads, 1, kMost - 1, "attention heads"));
  COLIBRI_CHECK(check_range(shape.latent, 1, kMost, "attention latent"));
  COLIBRI_CHECK(check_range(shape.rope, 2, kMost, "attention rope"));
  COLIBRI_CHECK(check_range(shape.nope, 1, kMost, "attention nope"));
  COLIBRI_CHECK(check_range(shape.value_dim, 1, kMost, "attention value_dim"));
  if (shape.rope % 2 != 0) return bad("attention rope: expected an even number, found {}", shape.rope);
  if (!(shape.rope_theta > 0) || !std::isfinite(shape.rope_theta))
    return bad("attention rope_theta: expected a number above 0, found {}", shape.rope_theta);
  return {};
}

}  // namespace colibri::capi

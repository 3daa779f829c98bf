#include "cpu/superblock.h"

#include <algorithm>
#include <cstring>

#include "base/aligned.h"

namespace colibri::cpu {
namespace {

// Two's complement codes and floats have the all-zero pattern; the codes with an offset have these.
constexpr unsigned char kInt4Zeros = 0x88, kInt2Zeros = 0xaa;

void set(std::byte* p, unsigned value) { *p = static_cast<std::byte>(value); }
unsigned get(const std::byte* p) { return static_cast<unsigned>(*p); }

// Makes codes n..63 of one 24-byte group read 4, which is zero.
void pad_int3_group(std::byte* group, std::int64_t n) {
  for (std::int64_t k = n; k < 64; ++k) {
    set(group + k / 4, get(group + k / 4) & ~(3u << (2 * (k % 4))));
    set(group + 16 + k / 8, get(group + 16 + k / 8) | 1u << (k % 8));
  }
}

void set_span(const Matrix& w, std::int64_t columns, SuperblockLayout& layout) {
  if (columns >= w.cols) {
    layout.kind = ScaleKind::kRow;
  } else if (columns % 32 == 0) {
    layout.kind = ScaleKind::kBlocks;
    layout.span = columns / 32;
  } else if (columns % 16 == 0) {
    layout.kind = ScaleKind::kHalfBlocks;
    layout.span = columns / 16;
  } else {
    layout.kind = ScaleKind::kOther;
  }
}

}  // namespace

SuperblockLayout superblock_layout(const Matrix& w) {
  SuperblockLayout layout;
  layout.bytes = format_row_bytes(w.format, kSuperblock);
  layout.full = w.cols / kSuperblock;
  layout.count = ceil_div(w.cols, kSuperblock);
  layout.blocks = ceil_div(w.cols, 32);
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
    case WeightFormat::kF16: layout.kind = ScaleKind::kUnit; break;
    case WeightFormat::kInt8Row:
    case WeightFormat::kInt4Row:
    case WeightFormat::kInt2Row: layout.kind = ScaleKind::kRow; break;
    case WeightFormat::kInt4Grouped: set_span(w, w.group, layout); break;
    case WeightFormat::kInt3G64: set_span(w, 64, layout); break;
    case WeightFormat::kF8Block128: set_span(w, 128, layout); break;
  }
  return layout;
}

void stage_tail(const Matrix& w, std::int64_t o, std::byte* out) {
  const std::int64_t n = w.cols % kSuperblock;
  const std::byte* source = w.row(o) + w.cols / kSuperblock * format_row_bytes(w.format, kSuperblock);
  const std::int64_t bytes = format_row_bytes(w.format, n);
  std::memcpy(out, source, static_cast<std::size_t>(bytes));
  const auto fill = [&](int value) { std::memset(out + bytes, value, static_cast<std::size_t>(kStagedBytes - bytes)); };
  switch (w.format) {
    case WeightFormat::kInt4Row:
    case WeightFormat::kInt4Grouped:
      fill(kInt4Zeros);
      if (n % 2) set(out + bytes - 1, (get(out + bytes - 1) & 0x0fu) | (kInt4Zeros & 0xf0u));
      break;
    case WeightFormat::kInt2Row:
      fill(kInt2Zeros);
      if (n % 4) {
        const unsigned kept = (1u << (2 * (n % 4))) - 1;
        set(out + bytes - 1, (get(out + bytes - 1) & kept) | (kInt2Zeros & ~kept));
      }
      break;
    case WeightFormat::kInt3G64:
      fill(0);
      for (std::int64_t g = 0; g < 4; ++g) pad_int3_group(out + 24 * g, std::clamp<std::int64_t>(n - 64 * g, 0, 64));
      break;
    default: fill(0); break;
  }
}

void stage_scales(const SuperblockLayout& layout, const float* row_scales, std::int64_t s, float* out) {
  std::int64_t index = 0, left = layout.span;
  if (layout.kind == ScaleKind::kBlocks) {
    index = 8 * s / layout.span;
    left = layout.span - 8 * s % layout.span;
  }
  for (std::int64_t g = 0; g < 8; ++g) {
    const bool inside = 8 * s + g < layout.blocks;
    out[g] = out[8 + g] = inside ? row_scales[index] : -0.0f;
    if (layout.kind == ScaleKind::kBlocks && --left == 0) ++index, left = layout.span;
  }
}

void stage_half_scales(const SuperblockLayout& layout, std::int64_t cols, const float* row_scales, std::int64_t s, float* out) {
  std::int64_t index = 16 * s / layout.span, left = layout.span - 16 * s % layout.span;
  for (std::int64_t g = 0; g < 8; ++g)
    for (std::int64_t half = 0; half < 2; ++half) {
      const bool inside = 16 * (16 * s + 2 * g + half) < cols;
      out[16 * half + g] = out[16 * half + 8 + g] = inside ? row_scales[index] : 1.0f;
      if (--left == 0) ++index, left = layout.span;
    }
}

const float* scales_of_row(const Matrix& w, std::int64_t o) { return w.scales ? w.row_scales(o) : nullptr; }

}  // namespace colibri::cpu

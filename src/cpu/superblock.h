// What the vector kernels share: the products walk K in superblocks of 256 columns (8 blocks of 32), widen the weights
// of one superblock to floats in PackedRows order and never look at a format again.
//
// The files compiled for an instruction set call only what is declared here and their own code: an inline function of
// another header, instantiated with their flags, could be the copy the linker keeps for everybody.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/matrix.h"

#if defined(__clang__)
#define COLIBRI_UNROLL _Pragma("unroll")
#else
#define COLIBRI_UNROLL _Pragma("GCC unroll 16")
#endif

namespace colibri::cpu {

inline constexpr std::int64_t kSuperblock = 256;    // columns
inline constexpr std::int64_t kStagedBytes = 1088;  // a superblock of f32, and what a vector load may touch after it

// Where the scale of a column comes from, from the point of view of the products.
enum class ScaleKind : std::uint8_t {
  kUnit,        // no scales
  kRow,         // one for the row
  kBlocks,      // one for `span` blocks of 32 columns
  kHalfBlocks,  // one for `span` runs of 16 columns, applied to the weight (C2: the group is no multiple of 32)
  kOther,       // a group size the containers do not have: the scalar kernels do it
};

struct SuperblockLayout {
  std::int64_t bytes = 0;   // of one superblock of a row
  std::int64_t full = 0;    // whole superblocks in a row
  std::int64_t count = 0;   // with the last, partial one
  std::int64_t blocks = 0;  // blocks of 32 columns in a row
  ScaleKind kind = ScaleKind::kUnit;
  std::int64_t span = 1;
};
SuperblockLayout superblock_layout(const Matrix& w);

// The last, partial superblock of row o, completed with weights of value zero. out: kStagedBytes, all of them written.
void stage_tail(const Matrix& w, std::int64_t o, std::byte* out);

// Block scales of superblock s of a row (kRow and kBlocks), twice: for the even and for the odd lanes. Blocks past the
// last column get -0: fma(-0, +0, acc) leaves every acc as it is, where +0 would turn a -0 into +0. out: 16 floats.
void stage_scales(const SuperblockLayout& layout, const float* row_scales, std::int64_t s, float* out);

// kHalfBlocks: scales of columns 32 g .. 32 g + 15 of superblock s by lane at [lane], of the next 16 columns at
// [16 + lane]; 1 past the end. out: 32 floats.
void stage_half_scales(const SuperblockLayout& layout, std::int64_t cols, const float* row_scales, std::int64_t s, float* out);

// As Matrix::row_scales.
const float* scales_of_row(const Matrix& w, std::int64_t o);

}  // namespace colibri::cpu

// Arguments of the C API: looked at once, here, and turned into the types of the other rooms.
#pragma once

#include <string_view>

#include "capi/outcome.h"
#include "format/matrix.h"
#include "gpu/region_table.h"

namespace colibri::capi {

inline constexpr std::int64_t kMostExtent = (std::int64_t{1} << 24) - 1;  // rows or columns of a matrix

struct Expert {
  Matrix gate, up, down;
  bool there = false;
};

Outcome<> check_pointer(const void* p, std::string_view name);
Outcome<> check_floats(const float* p, std::string_view name);  // not null, aligned
Outcome<> check_range(std::int64_t value, std::int64_t least, std::int64_t most, std::string_view name);

// The caller's regions.
class Memory {
 public:
  const gpu::RegionTable& regions() const { return regions_; }
  gpu::RegionTable& regions() { return regions_; }
  // [p, p + bytes) lies wholly inside one region.
  Outcome<> check(const void* p, std::uint64_t bytes, std::string_view name) const;
  // rows and cols: what the matrix must have; -1: anything.
  Outcome<Matrix> matrix(const coli_metal_matrix& m, std::string_view name, std::int64_t rows, std::int64_t cols) const;
  Outcome<Expert> expert(const coli_metal_expert& e, std::int64_t index, std::int64_t hidden, std::int64_t intermediate) const;
  // A cache of `width` floats a position, readable up to position `end`.
  Outcome<> cache(const float* p, std::int64_t end, std::int64_t width, std::string_view name) const;

 private:
  gpu::RegionTable regions_;
};

// One dispatch applies all experts of a table, so they are of one kind.
Outcome<> check_same_formats(const Expert& first, const Expert& other, std::int64_t index);
Outcome<> check_choice(const std::int32_t* chosen, std::int64_t rows, std::int64_t per_token, std::int64_t experts);
Outcome<> check_attention(const coli_metal_attention& shape);

}  // namespace colibri::capi

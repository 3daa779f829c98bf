// Random matrices in every format, buffers that end where they say, and bit comparison for the kernel tests.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/fp_mode.h"
#include "cpu/kernels.h"

namespace colibri::test {

// A fresh seed every run, printed with each failure; COLIBRI_TEST_SEED repeats one.
inline std::uint64_t run_seed() {
  static const std::uint64_t seed = [] {
    if (const char* text = std::getenv("COLIBRI_TEST_SEED")) return static_cast<std::uint64_t>(std::strtoull(text, nullptr, 10));
    std::random_device device;
    return (static_cast<std::uint64_t>(device()) << 32) | device();
  }();
  return seed;
}

using Random = std::mt19937_64;

// Floats of very different sizes when `wild`: zeros of both signs, subnormals, values whose sums overflow or underflow.
inline float random_float(Random& rng, bool wild) {
  const float value = static_cast<float>(static_cast<std::int64_t>(rng() % 2000001) - 1000000) * 1e-6f;
  if (!wild) return value;
  constexpr float kSpecial[] = {0.0f, -0.0f, 1e-40f, -1e-42f, 1e-30f, -3e-20f, 2e18f, -3e-38f, 1e-19f, 1.0f};
  return rng() % 3 ? value : kSpecial[rng() % 10];
}

// `bytes` bytes at an address that is 64 * n + offset, with exactly kReadSlack readable bytes behind them (which hold
// what would show: NaN patterns), so that the address sanitizer sees any read further on.
class ExactBytes {
 public:
  ExactBytes(std::int64_t bytes, std::int64_t offset, std::int64_t slack = kReadSlack)
      : storage_(static_cast<std::byte*>(::operator new(static_cast<std::size_t>(offset + bytes + slack), kAlignment))),
        data_(storage_.get() + offset) {
    std::memset(storage_.get(), 0xff, static_cast<std::size_t>(offset + bytes + slack));
  }
  std::byte* data() { return data_; }
  float* floats() { return reinterpret_cast<float*>(data_); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> storage_;
  std::byte* data_;
};

// A matrix of random codes and scales that owns its memory.
struct RandomMatrix {
  Matrix m;
  std::unique_ptr<ExactBytes> data, scales;
};

struct MatrixOptions {
  std::int64_t offset = 0;       // of the data from 64-byte alignment
  std::int64_t extra_bytes = 0;  // between rows
  bool wild = false;
};

inline RandomMatrix random_matrix(Random& rng, WeightFormat format, std::int64_t rows, std::int64_t cols, std::int32_t group,
                                  const MatrixOptions& options = {}) {
  RandomMatrix r;
  r.m.format = format;
  r.m.group = format == WeightFormat::kInt4Grouped  ? group
              : format == WeightFormat::kInt3G64    ? 64
              : format == WeightFormat::kF8Block128 ? 128
                                                    : 0;
  r.m.rows = rows;
  r.m.cols = cols;
  const std::int64_t row_bytes = format_row_bytes(format, cols);
  r.m.row_bytes = row_bytes + options.extra_bytes;
  const std::int64_t bytes = (rows - 1) * r.m.row_bytes + row_bytes;
  r.data = std::make_unique<ExactBytes>(bytes, options.offset);
  r.m.data = r.data->data();
  for (std::int64_t o = 0; o < rows; ++o) {
    std::byte* row = r.data->data() + o * r.m.row_bytes;
    for (std::int64_t i = 0; i < row_bytes; ++i) row[i] = static_cast<std::byte>(rng());
    for (std::int64_t k = 0; k < cols; ++k) {
      if (format == WeightFormat::kF32) {
        const float v = random_float(rng, options.wild);
        std::memcpy(row + 4 * k, &v, 4);
      } else if (format == WeightFormat::kBF16) {
        const auto v = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(random_float(rng, options.wild)) >> 16);
        std::memcpy(row + 2 * k, &v, 2);
      } else if (format == WeightFormat::kF16) {
        std::uint16_t v;
        std::memcpy(&v, row + 2 * k, 2);
        if ((v & 0x7c00) == 0x7c00 || !options.wild) v &= 0xbbff;  // finite
        std::memcpy(row + 2 * k, &v, 2);
      } else if (format == WeightFormat::kF8Block128 && (static_cast<unsigned>(row[k]) & 0x7f) == 0x7f) {
        row[k] = std::byte{0x7e};
      }
    }
  }
  const std::int64_t row_scales = format_row_scales(format, cols, r.m.group);
  if (row_scales) {
    r.m.scale_stride = row_scales + static_cast<std::int64_t>(rng() % 2);
    const std::int64_t scale_rows = format == WeightFormat::kF8Block128 ? ceil_div(rows, 128) : rows;
    const std::int64_t count = (scale_rows - 1) * r.m.scale_stride + row_scales;
    r.scales = std::make_unique<ExactBytes>(4 * count, 4 * static_cast<std::int64_t>(rng() % 16), 0);
    for (std::int64_t i = 0; i < count; ++i) r.scales->floats()[i] = random_float(rng, options.wild);
    r.m.scales = r.scales->floats();
  }
  return r;
}

// Equal bits; any NaN equals any other (rule C1).
inline bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

inline ::testing::AssertionResult all_same(const std::vector<float>& want, const std::vector<float>& got) {
  if (want.size() != got.size()) return ::testing::AssertionFailure() << "sizes " << want.size() << " and " << got.size();
  for (std::size_t i = 0; i < want.size(); ++i)
    if (!same_bits(want[i], got[i]))
      return ::testing::AssertionFailure() << "at " << i << " of " << want.size() << ": expected " << want[i] << ", found "
                                           << got[i] << " (" << std::hex << std::bit_cast<std::uint32_t>(want[i]) << ", "
                                           << std::bit_cast<std::uint32_t>(got[i]) << ")";
  return ::testing::AssertionSuccess();
}

// What outputs hold before a call; anything the kernel should not write keeps it.
inline constexpr float kPoison = 1234567.5f;

struct Scratch {
  explicit Scratch(std::int64_t cols)
      : bytes(static_cast<std::size_t>(kernel_scratch_bytes(cols))), view{bytes.data(), kernel_scratch_bytes(cols)} {
    std::memset(bytes.data(), 0xff, bytes.size());  // scratch holds anything: here NaN
  }
  AlignedBytes bytes;
  KernelScratch view;
};

// One test per table this machine can run besides the scalar one.
class EveryTable : public ::testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels() const { return *GetParam(); }
  const Kernels& scalar() const { return *find_kernels("scalar"); }
  FlushDenormals flush_;
  Random rng_{run_seed()};
};

inline std::vector<const Kernels*> vector_tables() {
  std::vector<const Kernels*> tables;
  for (const Kernels* k : available_kernels())
    if (k->name != "scalar") tables.push_back(k);
  return tables;
}
inline std::string table_name(const ::testing::TestParamInfo<const Kernels*>& info) { return std::string(info.param->name); }

}  // namespace colibri::test

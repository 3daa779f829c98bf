// Helpers of the container tests: folders that vanish, shards from raw header text, packed weights by plain arithmetic.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "format/checkpoint.h"
#include "format/safetensors.h"

namespace colibri::test {

// An empty folder of this test's own, removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "colibri-format-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory: " + name);
    path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.flush()) << path;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string length_prefix(std::uint64_t length) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

// A whole file: the true length, the header text, data_bytes zeros.
inline std::string shard(std::string_view header, std::size_t data_bytes) {
  return length_prefix(header.size()) + std::string(header) + std::string(data_bytes, '\0');
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline NamedTensor blob(const std::string& name, const std::vector<std::uint8_t>& bytes) {
  return {name, DType::kU8, {static_cast<std::int64_t>(bytes.size())}, bytes_of(bytes)};
}
inline NamedTensor f32(const std::string& name, std::vector<std::int64_t> shape, const std::vector<float>& values) {
  return {name, DType::kF32, std::move(shape), bytes_of(values)};
}
inline NamedTensor scales(const std::string& name, const std::vector<float>& values) {
  return f32(name + ".qs", {static_cast<std::int64_t>(values.size())}, values);
}

// A small generator of our own: the same values everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  // low .. high, both included
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  float scale() { return static_cast<float>(between(1, 4095)) / 4096.0f; }

 private:
  std::uint64_t state_;
};

// A quantised matrix and its real weights, packed from integers with nothing but / and %: what the layouts of
// docs/containers.md say, written down a second time. columns_per_scale: cols for one scale per row.
struct PackedMatrix {
  std::vector<std::uint8_t> bytes;
  std::vector<float> scales;
  std::vector<float> weights;  // [rows, cols], q * scale
};

inline PackedMatrix pack(WeightFormat format, std::int64_t rows, std::int64_t cols, std::int64_t columns_per_scale,
                         Random& random) {
  const auto ceil = [](std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); };
  const bool int3 = format == WeightFormat::kInt3G64;
  const int bits = format == WeightFormat::kInt8Row ? 8 : format == WeightFormat::kInt2Row ? 2 : int3 ? 3 : 4;
  const std::int64_t row_bytes = int3 ? ceil(cols, 64) * 24 : ceil(cols * bits, 8);
  const std::int64_t row_scales = ceil(cols, columns_per_scale);
  PackedMatrix packed;
  packed.bytes.resize(static_cast<std::size_t>(rows * row_bytes));
  for (std::int64_t i = 0; i < rows * row_scales; ++i) packed.scales.push_back(random.scale());
  for (std::int64_t o = 0; o < rows; ++o)
    for (std::int64_t k = 0; k < (int3 ? ceil(cols, 64) * 64 : cols); ++k) {
      const auto at = [&](std::int64_t byte) -> std::uint8_t& {
        return packed.bytes[static_cast<std::size_t>(o * row_bytes + byte)];
      };
      const std::int64_t half = std::int64_t{1} << (bits - 1);
      const std::int64_t q = k < cols ? random.between(-half, half - 1) : 0, code = q + half;
      if (bits == 8) at(k) = static_cast<std::uint8_t>(q);
      if (bits == 4) at(k / 2) = static_cast<std::uint8_t>(at(k / 2) + code * (k % 2 ? 16 : 1));
      if (bits == 2) at(k / 4) = static_cast<std::uint8_t>(at(k / 4) + (code << 2 * (k % 4)));
      if (int3) {
        const std::int64_t group = k / 64 * 24, in = k % 64;
        at(group + in / 4) = static_cast<std::uint8_t>(at(group + in / 4) + (code % 4 << 2 * (in % 4)));
        at(group + 16 + in / 8) = static_cast<std::uint8_t>(at(group + 16 + in / 8) + (code / 4 << in % 8));
      }
      if (k < cols)
        packed.weights.push_back(static_cast<float>(q) *
                                 packed.scales[static_cast<std::size_t>(o * row_scales + k / columns_per_scale)]);
    }
  return packed;
}

// Opens a folder that must open.
inline Checkpoint open_folder(const std::filesystem::path& dir) {
  auto checkpoint = Checkpoint::open(dir);
  if (!checkpoint) throw std::runtime_error(checkpoint.error().message);
  return std::move(*checkpoint);
}

// A matrix with the memory it was read into.
struct LoadedMatrix {
  AlignedBytes memory;
  Matrix matrix;
  std::vector<float> weights() const {
    std::vector<float> all(static_cast<std::size_t>(matrix.rows * matrix.cols));
    for (std::int64_t o = 0; o < matrix.rows; ++o) dequantize_row(matrix, o, all.data() + o * matrix.cols);
    return all;
  }
};
inline LoadedMatrix load(const Checkpoint& checkpoint, const MatrixSource& source) {
  LoadedMatrix loaded{AlignedBytes(Checkpoint::matrix_bytes(source)), {}};
  auto matrix = checkpoint.read_matrix(source, loaded.memory.data());
  if (!matrix) throw std::runtime_error(matrix.error().message);
  loaded.matrix = *matrix;
  return loaded;
}

// EXPECT that a Result failed and that its message has all these parts.
template <class R>
void expect_error(const R& result, std::initializer_list<std::string_view> parts) {
  ASSERT_FALSE(result.has_value());
  for (const std::string_view part : parts)
    EXPECT_NE(result.error().message.find(part), std::string::npos) << "no '" << part << "' in: " << result.error().message;
}

}  // namespace colibri::test

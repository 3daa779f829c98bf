// Where kernels are checked: memory that a device sees, numbers from a fixed seed, and counting of what differs.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "gpu/kernel_set.h"
#include "gpu/matrix_args.h"
#include "gpu/placer.h"
#include "gpu/registered.h"

namespace colibri::selftest {

// What a check compared. Two NaN are equal: their payload is outside the contract (docs/numerics.md).
struct Compared {
  std::int64_t shapes = 0, values = 0, differing = 0;

  template <class T>
  void add(std::span<const T> found, std::span<const T> expected) {
    static_assert(sizeof(T) == sizeof(std::uint32_t));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      bool same = std::bit_cast<std::uint32_t>(found[i]) == std::bit_cast<std::uint32_t>(expected[i]);
      if constexpr (std::is_floating_point_v<T>) same = same || (std::isnan(found[i]) && std::isnan(expected[i]));
      differing += same ? 0 : 1;
    }
    values += static_cast<std::int64_t>(expected.size());
  }
  void add(std::span<const float> found, const std::vector<float>& expected) { add<float>(found, expected); }
  void add(std::span<const std::int32_t> found, const std::vector<std::int32_t>& expected) { add<std::int32_t>(found, expected); }
};

class Workbench {
 public:
  // small: shapes that a software device gets through in seconds; else the real widths of GLM-5.2.
  static Result<std::unique_ptr<Workbench>> create(gpu::KernelSet& kernels, bool small);

  bool small() const { return small_; }
  gpu::Device& device() const { return kernels_.device(); }
  gpu::KernelSet& kernels() const { return kernels_; }

  // Gives all memory back and starts the numbers again: the beginning of a shape.
  void clear();
  // count values whose bits are all ones: floats are NaN until a kernel writes them.
  template <class T>
  std::span<T> take(std::int64_t count) {
    const auto n = static_cast<std::size_t>(count);
    const gpu::Address at = place(n * sizeof(T));
    T* const host = memory_.host<T>(at);
    std::memset(host, 0xff, n * sizeof(T));
    return {host, n};
  }
  template <class T>
  std::span<T> copy(const std::vector<T>& values) {
    const auto to = take<T>(static_cast<std::int64_t>(values.size()));
    std::copy(values.begin(), values.end(), to.begin());
    return to;
  }
  std::span<std::uint32_t> damage_word();                                    // 0
  std::span<float> floats(std::int64_t count, float spread = 1.0f);          // from -spread to spread
  Matrix matrix(WeightFormat format, std::int64_t rows, std::int64_t cols);  // finite weights
  std::uint64_t random() { return numbers_(); }
  template <class T>
  gpu::Address at(std::span<T> block) const {
    return device().address(block.data());
  }

  // Encodes, runs and waits. Fails with what the device said.
  Result<gpu::Completion> run(const std::function<void(gpu::Encoder&)>& encode);

 private:
  Workbench(gpu::KernelSet& kernels, bool small, gpu::DeviceBlock memory, std::uint64_t bytes)
      : kernels_(kernels), small_(small), memory_(std::move(memory)), bytes_(bytes), placer_(memory_.address()) {}
  gpu::Address place(std::uint64_t bytes);

  gpu::KernelSet& kernels_;
  bool small_;
  gpu::DeviceBlock memory_;
  std::uint64_t bytes_;
  gpu::Placer placer_;
  std::mt19937_64 numbers_{1};
};

}  // namespace colibri::selftest

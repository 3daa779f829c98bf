// Memory for weights and activations: aligned, zero-filled, with slack that vector loads may touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace colibri {

inline constexpr std::size_t kWeightAlignment = 64;   // a cache line and the widest vector load
inline constexpr std::size_t kReadSlack = 64;         // bytes readable past the end of every buffer
inline constexpr std::size_t kPageAlignment = 16384;  // the largest page of the systems we run on

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// An owned block of bytes. Large blocks come straight from the system, so pages never written cost nothing.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  // Throws std::bad_alloc when the system refuses. Alignment: a power of two of at least 64.
  explicit AlignedBytes(std::size_t bytes, std::size_t alignment = kWeightAlignment);
  AlignedBytes(AlignedBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        mapped_(std::exchange(other.mapped_, 0)) {}
  AlignedBytes& operator=(AlignedBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~AlignedBytes();

  // At least this many bytes as whole pages of their own, aligned to kPageAlignment: what a GPU can use where it lies.
  static AlignedBytes pages(std::size_t bytes);
  // All of the pages that pages() took, its slack included.
  std::span<std::byte> whole_pages() { return {data_, mapped_}; }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void map(std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;  // bytes to unmap, 0 when the block came from the heap
};

// The same for plain numbers.
template <class T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(std::size_t count) : bytes_(count * sizeof(T)), count_(count) {}
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data()); }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  std::span<T> span() { return {data(), count_}; }
  std::span<const T> span() const { return {data(), count_}; }

 private:
  AlignedBytes bytes_;
  std::size_t count_ = 0;
};

}  // namespace colibri

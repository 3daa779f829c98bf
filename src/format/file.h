// Files read at 64-bit offsets from several threads, and the way this room's messages write names and shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace colibri {

// A regular file opened for reading. Errors name the path.
class InputFile {
 public:
  static Result<InputFile> open(const std::filesystem::path& path);
  InputFile(InputFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}
  InputFile& operator=(InputFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~InputFile();

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }  // when it was opened
  // Exactly `bytes` bytes from `offset`; signals and short reads are handled, an end of file is an error.
  Result<void> read(std::uint64_t offset, std::uint64_t bytes, std::byte* dst) const;

 private:
  InputFile(std::filesystem::path path, int fd, std::uint64_t bytes) : path_(std::move(path)), fd_(fd), bytes_(bytes) {}
  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0;
};

// The whole of a small text file; larger than max_bytes is an error.
Result<std::string> read_text(const std::filesystem::path& path, std::uint64_t max_bytes);

// Replaces `path` by the concatenation of parts: written beside it, flushed to the disk, renamed. Whoever opens
// path finds the old content or the new, whatever interrupts the writing.
Result<void> write_atomically(const std::filesystem::path& target, std::span<const std::span<const std::byte>> parts);

// Text from a file as it may stand in a message: in quotes, control characters escaped, shortened.
std::string in_quotes(std::string_view text);
// "[2048, 6144]"
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace colibri

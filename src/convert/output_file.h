// A large file that threads fill piece by piece and that appears under its name only when it is whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace colibri {

inline constexpr std::size_t kDirectBlock = 4096;

class OutputFile {
 public:
  // Creates (or empties) path with ".part" added, `bytes` long.
  static Result<OutputFile> create(const std::filesystem::path& path, std::uint64_t bytes);
  static std::filesystem::path temporary_name(const std::filesystem::path& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();  // removes what was not committed; a killed process leaves the .part file

  // Safe to call from several threads. Large pieces whose place, length and address are multiples of kDirectBlock pass
  // by the page cache where the system can; they must not share a block of the file with other pieces.
  Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes) const;
  // Flushes to the disk and renames.
  Result<void> commit();

 private:
  OutputFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  tl::unexpected<Error> failed(const char* step) const;
  void close_direct();
  std::filesystem::path path_;
  int fd_ = -1;
  int direct_fd_ = -1;  // the same file, uncached; -1 where the file system has no such thing
};

// Only one process at a time may write a model directory. The lock ends with the object or the process.
class DirectoryLock {
 public:
  static Result<DirectoryLock> acquire(const std::filesystem::path& dir);
  DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace colibri

#include "convert/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace colibri {
namespace {

constexpr std::size_t kLargestCall = 1u << 30;  // some systems refuse a write of 2 GiB or more
constexpr std::size_t kLargePiece = 256 << 10;  // pieces from this size on go to the disk at once

#if defined(__linux__)
constexpr int kDirectFlag = O_DIRECT;
#else
constexpr int kDirectFlag = 0;
#endif

std::string system_message(int error) { return std::generic_category().message(error); }

}  // namespace

std::filesystem::path OutputFile::temporary_name(const std::filesystem::path& path) {
  return path.parent_path() / fmt::format(".{}.part", path.filename().string());
}

tl::unexpected<Error> OutputFile::failed(const char* step) const {
  const int error = errno;
  return fail("{}: {} failed: {}", path_.string(), step, system_message(error));
}

Result<OutputFile> OutputFile::create(const std::filesystem::path& path, std::uint64_t bytes) {
  OutputFile file(path, ::open(temporary_name(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.fd_ < 0) return file.failed("creating a temporary file beside it");
  if (::ftruncate(file.fd_, static_cast<off_t>(bytes)) != 0) return file.failed("setting its size");
  if (kDirectFlag != 0) file.direct_fd_ = ::open(temporary_name(path).c_str(), O_WRONLY | O_CLOEXEC | kDirectFlag);
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), direct_fd_(std::exchange(other.direct_fd_, -1)) {}
OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(direct_fd_, other.direct_fd_);
  return *this;
}
void OutputFile::close_direct() {
  if (direct_fd_ >= 0) ::close(std::exchange(direct_fd_, -1));
}
OutputFile::~OutputFile() {
  close_direct();
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_name(path_).c_str());
}

Result<void> OutputFile::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
  const auto is_block = [](std::uint64_t n) { return n % kDirectBlock == 0; };
  int fd = fd_;
  if (direct_fd_ >= 0 && bytes.size() >= kLargePiece && is_block(offset) && is_block(bytes.size()) &&
      is_block(reinterpret_cast<std::uintptr_t>(bytes.data())))
    fd = direct_fd_;
  [[maybe_unused]] const std::uint64_t first = offset, total = bytes.size();
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), std::min(bytes.size(), kLargestCall), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (fd != fd_ && ((n < 0 && errno == EINVAL) || (n >= 0 && !is_block(static_cast<std::uint64_t>(n))))) {
      fd = fd_;  // not after all; what a partial write left is written again
      continue;
    }
    if (n < 0) return failed("writing");
    if (n == 0) return fail("{}: writing failed: the system takes no more bytes", path_.string());
    offset += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
#if defined(__linux__)
  // Starts the transfer now instead of leaving gigabytes to the flush at the end. Advice only, so failure is no error.
  if (fd == fd_ && total >= kLargePiece)
    ::sync_file_range(fd, static_cast<off_t>(first), static_cast<off_t>(total), SYNC_FILE_RANGE_WRITE);
#endif
  return {};
}

Result<void> OutputFile::commit() {
  close_direct();
  if (::fsync(fd_) != 0) return failed("flushing to the disk");
#if defined(__linux__)
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);  // a model larger than memory must not push everything else out
#endif
  if (::close(std::exchange(fd_, -1)) != 0) return failed("closing");
  if (::rename(temporary_name(path_).c_str(), path_.c_str()) != 0) return failed("renaming the temporary file");
  return {};
}

Result<DirectoryLock> DirectoryLock::acquire(const std::filesystem::path& dir) {
  DirectoryLock lock(::open(dir.c_str(), O_RDONLY | O_CLOEXEC));
  if (lock.fd_ < 0) return fail("{}: cannot be opened: {}", dir.string(), system_message(errno));
  // A file system without locks is no reason to refuse the work.
  if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return fail("{}: another process is writing a model there; wait for it or choose another directory", dir.string());
  return lock;
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace colibri

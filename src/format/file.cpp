#include "format/file.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace colibri {
namespace {

constexpr std::uint64_t kLargestCall = 1u << 30;  // some systems refuse a read of 2 GiB or more

std::string system_message(int error) { return std::generic_category().message(error); }

// Closes and, unless kept, removes a half-written file.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    close();
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  int fd() const { return fd_; }
  int close() {
    const int result = fd_ < 0 ? 0 : ::close(fd_);
    fd_ = -1;
    return result;
  }
  bool rename_to(const std::filesystem::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) return false;
    path_.clear();
    return true;
  }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min<std::uint64_t>(bytes.size(), kLargestCall));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

Result<InputFile> InputFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: a pipe that somebody named like a shard must not hang us.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    const char* advice = error == EMFILE ? " (raise the limit of open files: ulimit -n)" : "";
    return fail("{}: cannot be opened: {}{}", path.string(), system_message(error), advice);
  }
  InputFile file(path, fd, 0);
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return fail("{}: cannot be examined: {}", path.string(), system_message(errno));
  if (!S_ISREG(info.st_mode)) return fail("{}: expected a regular file", path.string());
  file.bytes_ = static_cast<std::uint64_t>(info.st_size);
  return file;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> InputFile::read(std::uint64_t offset, std::uint64_t bytes, std::byte* dst) const {
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd_, dst + done, std::min(bytes - done, kLargestCall), static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail("{}: reading at byte {} failed: {}", path_.string(), offset + done, system_message(errno));
    if (got == 0)
      return fail("{}: ends at byte {}, expected {} more bytes (it had {} when it was opened; is it still being written?)",
                  path_.string(), offset + done, bytes - done, bytes_);
    done += static_cast<std::uint64_t>(got);
  }
  return {};
}

Result<std::string> read_text(const std::filesystem::path& path, std::uint64_t max_bytes) {
  COLIBRI_TRY(file, InputFile::open(path));
  if (file.bytes() > max_bytes) return fail("{}: {} bytes, expected at most {}", path.string(), file.bytes(), max_bytes);
  std::string text(file.bytes(), '\0');
  COLIBRI_CHECK(file.read(0, text.size(), reinterpret_cast<std::byte*>(text.data())));
  return text;
}

Result<void> write_atomically(const std::filesystem::path& target, std::span<const std::span<const std::byte>> parts) {
  // A link keeps pointing where it does; a device or a pipe is nobody's file to replace.
  std::error_code ignored;
  const auto status = std::filesystem::status(target, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    return fail("{}: this is not a regular file; give the name of a file to write", target.string());
  std::filesystem::path path = target;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(path, ignored); ++links)
    path = path.parent_path() / std::filesystem::read_symlink(path, ignored);
  const std::filesystem::path dir = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  TemporaryFile temporary(dir / fmt::format(".{}.{}.tmp", path.filename().string(), ::getpid()));
  const auto failed = [&](std::string_view step) {
    return fail("{}: {} failed: {}", path.string(), step, system_message(errno));
  };
  if (temporary.fd() < 0) return failed("creating a temporary file beside it");
  for (const auto part : parts)
    if (!write_all(temporary.fd(), part)) return failed("writing");
  if (::fsync(temporary.fd()) != 0) return failed("flushing to the disk");
  if (temporary.close() != 0) return failed("closing");
  if (!temporary.rename_to(path)) return failed("renaming the temporary file");
  // The new name survives a power cut only when the directory is flushed too; not every file system can.
  if (const int fd = ::open(dir.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
  return {};
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 200;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 32 || byte == 127)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  out += text.size() > kLongest ? "...'" : "'";
  return out;
}

std::string shape_text(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace colibri

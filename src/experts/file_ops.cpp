#include "experts/file_ops.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/aligned.h"
#include "experts/read_plan.h"
#include "experts/uring_ring.h"

namespace colibri {
namespace {

// A model may have more shards than a shell allows open files (256 on macOS); a process may raise that itself.
bool raise_file_limit() {
  constexpr rlim_t kEnough = 10240;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= std::min(kEnough, limit.rlim_max)) return false;
  limit.rlim_cur = std::min(kEnough, limit.rlim_max);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// A descriptor, or -errno.
int open_read_only(const std::filesystem::path& path, int flags) {
  // O_NONBLOCK: a pipe that somebody named like a shard must not hang us.
  flags |= O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  const int fd = ::open(path.c_str(), flags);
  if (fd >= 0) return fd;
  if (errno != EMFILE) return -errno;
  if (!raise_file_limit()) return -EMFILE;
  const int again = ::open(path.c_str(), flags);
  return again < 0 ? -errno : again;
}

#ifdef O_DIRECT
// Some file systems accept the flag and refuse the reads.
bool direct_reads_work(int fd) {
  AlignedBytes block(kDirectAlignment, kDirectAlignment);
  return ::pread(fd, block.data(), kDirectAlignment, 0) >= 0 || errno != EINVAL;
}
#endif

}  // namespace

Result<OpenedFile> FileOps::open(const std::filesystem::path& path, bool direct) {
  OpenedFile file;
#ifdef O_DIRECT
  if (direct) {
    file.fd = open_read_only(path, O_DIRECT);
    if (file.fd >= 0 && direct_reads_work(file.fd)) {
      file.alignment = kDirectAlignment;
    } else if (file.fd >= 0) {
      ::close(file.fd);
      file.fd = -1;
    }
  }
#endif
  if (file.fd < 0) {
    file.fd = open_read_only(path, 0);
#ifdef POSIX_FADV_RANDOM
    // Readahead goes on past the end of a record: 1.3 to 1.5 times the bytes asked for, measured on Linux 6.18 with its
    // window at 8 MiB. The pieces of a record are large enough without it.
    if (file.fd >= 0) (void)::posix_fadvise(file.fd, 0, 0, POSIX_FADV_RANDOM);
#endif
  }
  if (file.fd < 0) {
    const int error = -file.fd;
    return fail("{}: cannot be opened: {}{}", path.string(), std::generic_category().message(error),
                error == EMFILE ? " (raise the limit of open files: ulimit -n)" : "");
  }
  struct stat info = {};
  if (::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(file.fd);
    return fail("{}: expected a regular file", path.string());
  }
#ifdef F_NOCACHE
  if (direct && ::fcntl(file.fd, F_NOCACHE, 1) != -1) file.alignment = kDirectAlignment;
#endif
  return file;
}

void FileOps::close(int fd) { ::close(fd); }

std::int64_t FileOps::pread(int fd, std::byte* dst, std::uint64_t bytes, std::uint64_t offset) {
  const ssize_t got = ::pread(fd, dst, bytes, static_cast<off_t>(offset));
  return got < 0 ? -errno : got;
}

std::uint64_t FileOps::file_bytes(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

Result<std::unique_ptr<ReadRing>> FileOps::make_ring(unsigned depth) { return make_uring(depth); }

NextStep after_read(PieceProgress& piece, std::int64_t result) {
  if (result == -EINTR) return NextStep::kAgain;
  if (result < 0) {
    const bool may_pass = result == -EIO || result == -EAGAIN || result == -EBUSY || result == -ENOMEM || result == -ENOBUFS;
    return may_pass && ++piece.attempts < kReadAttempts ? NextStep::kPause : NextStep::kFailed;
  }
  const std::uint64_t reached = piece.done + static_cast<std::uint64_t>(result);
  if (reached >= piece.needed) return NextStep::kDone;
  if (result == 0) return NextStep::kEnded;
  // The next call must start at a boundary again, so what lies past the last one is read twice.
  const std::uint64_t kept = reached / piece.alignment * piece.alignment;
  if (kept > piece.done) {
    piece.done = kept;
    piece.attempts = 0;
    return NextStep::kAgain;
  }
  return ++piece.attempts < kReadAttempts ? NextStep::kAgain : NextStep::kEnded;
}

int pause_ms(int attempts) { return attempts <= 1 ? 1 : 1 << (2 * std::min(attempts - 1, 3)); }

}  // namespace colibri

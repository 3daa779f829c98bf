// What the record reader asks of the operating system, behind an interface so that tests can make it fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "base/result.h"

namespace colibri {

// One read in a ring. Buffers stay valid until its result has come.
struct RingRead {
  int fd = -1;
  std::byte* dst = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
  std::uint32_t tag = 0;
};
struct RingResult {
  std::uint32_t tag = 0;
  std::int64_t result = 0;  // bytes read, or -errno
};

// Reads in flight without a thread for each: io_uring. One thread pushes and waits; any thread may wake it.
class ReadRing {
 public:
  virtual ~ReadRing() = default;
  virtual void push(const RingRead& read) = 0;  // never more in flight than the ring's depth
  // Submits what was pushed and returns the number of results put into out. With `block` it waits until at least one
  // result or a wake has come (0 after a wake alone).
  virtual std::size_t wait(std::span<RingResult> out, bool block) = 0;
  virtual void wake() = 0;
};

struct OpenedFile {
  int fd = -1;
  std::uint64_t alignment = 1;  // that reads of this file need: 1 any, else kDirectAlignment
};

class FileOps {
 public:
  virtual ~FileOps() = default;
  // direct: past the page cache (O_DIRECT, F_NOCACHE). A file system that refuses it gives a plain file: look at
  // alignment. Errors name the path.
  virtual Result<OpenedFile> open(const std::filesystem::path& path, bool direct);
  virtual void close(int fd);
  virtual std::int64_t pread(int fd, std::byte* dst, std::uint64_t bytes, std::uint64_t offset);  // bytes, or -errno
  virtual std::uint64_t file_bytes(int fd);                                                       // its length now
  // Errors say why there is none: not built in, or refused by the kernel.
  virtual Result<std::unique_ptr<ReadRing>> make_ring(unsigned depth);
};

// How far one piece of a file has come. All positions are bytes from the piece's start.
struct PieceProgress {
  std::uint64_t bytes = 0;      // to ask for
  std::uint64_t needed = 0;     // that must arrive (an aligned read may reach past the end of the file)
  std::uint64_t alignment = 1;  // of the file
  std::uint64_t done = 0;
  int attempts = 0;  // without progress
};
enum class NextStep : std::uint8_t { kDone, kAgain, kPause, kEnded, kFailed };
inline constexpr int kReadAttempts = 5;

// What to do after a read call answered `result` (bytes or -errno): all arrived; ask for the rest at once; ask again
// after pause_ms(attempts); the file ends too early; give up because of the error. Updates the progress.
NextStep after_read(PieceProgress& piece, std::int64_t result);
int pause_ms(int attempts);  // 1, 4, 16, 64

}  // namespace colibri

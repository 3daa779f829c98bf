// The scheduler inside RecordReader: which piece of which record is read next, and when a record is complete. It does
// no I/O; the threads or the ring of record_reader.cpp take pieces and bring back results.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "experts/record_reader.h"

namespace colibri {

struct ReadFile {
  std::filesystem::path path;
  int fd = -1;
  std::uint64_t alignment = 1;
};

// A part of a run that is read by one call (or more, when calls come back short).
struct ReadPiece {
  std::uint32_t request = 0;  // index in the queue
  const ReadPlan* plan = nullptr;
  const ReadRun* run = nullptr;
  std::byte* slot = nullptr;
  const ReadFile* file = nullptr;
  std::uint64_t offset = 0;    // in the file, aligned as the file needs
  std::byte* place = nullptr;  // where its bytes may go straight, or null: read into a buffer, then copy_out
  PieceProgress progress;
};

// Copies a piece that was read into a buffer to its places in the slot.
void copy_out(const ReadPiece& piece, const std::byte* buffer);

class ReadQueue {
 public:
  ReadQueue(std::vector<ReadFile> files, std::uint64_t piece_bytes, bool verify = false);

  ReadTicket submit(const ReadPlan& plan, std::byte* slot, ReadPriority priority);
  void promote(ReadTicket ticket);
  bool cancel(ReadTicket ticket);

  bool take(ReadPiece& piece);       // false: nothing to read now
  bool wait_take(ReadPiece& piece);  // blocks; false: the queue was stopped
  // Whoever brings back the last piece of a record also widens and checks it, outside the lock.
  void bring_back(const ReadPiece& piece, std::optional<Error> error, std::uint64_t repeats);

  std::size_t poll(std::vector<ReadCompletion>& completed);
  std::size_t wait_any(std::vector<ReadCompletion>& completed);

  void stop();  // drops what has not started; take finds nothing any more
  bool stopped() const;
  bool demand_waits() const;
  std::size_t outstanding() const;
  ReaderStats stats() const;
  const std::vector<ReadFile>& files() const { return files_; }

 private:
  struct Request {
    std::uint32_t generation = 0;
    bool used = false;
    const ReadPlan* plan = nullptr;
    std::byte* slot = nullptr;
    ReadPriority priority = ReadPriority::kDemand;
    bool waiting = false;  // in waiting_[priority]: not all of it has been taken
    // The next piece starts at byte `at` of run number `run`, counted from the aligned start of the run.
    std::uint8_t run = 0;
    std::uint64_t at = 0;
    std::uint32_t in_flight = 0;
    std::optional<Error> error;
  };

  Request* find(ReadTicket ticket);
  std::vector<std::uint32_t>& waiting(ReadPriority priority) { return waiting_[static_cast<std::size_t>(priority)]; }
  void stop_waiting(std::uint32_t index);
  bool take_locked(ReadPiece& piece);
  std::size_t hand_out(std::vector<ReadCompletion>& completed);

  const std::vector<ReadFile> files_;
  const std::uint64_t piece_bytes_;
  const bool verify_;
  mutable std::mutex mutex_;
  std::condition_variable work_, completion_;
  std::deque<Request> requests_;  // never moved; free ones are used again
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> waiting_[2];  // by priority, in order
  std::vector<std::uint32_t> completed_;   // not handed out yet, in order
  std::size_t outstanding_ = 0;
  std::uint64_t in_flight_ = 0;
  std::chrono::steady_clock::time_point busy_since_;
  bool stopped_ = false;
  ReaderStats stats_;
};

}  // namespace colibri

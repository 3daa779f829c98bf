// Reads expert records from disk into slots: one scheduler for everything, demand before prefetch, several large
// reads in flight. Nothing is ever mapped. Reads that fail are tried again; then their ticket ends with an error and
// the reader goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "experts/file_ops.h"
#include "experts/read_plan.h"

namespace colibri {

enum class ReadBackend : std::uint8_t {
  kThreads,  // a pool of threads that call pread
  kRing,     // io_uring and one thread; where the kernel refuses it, kThreads
};
std::string_view backend_name(ReadBackend backend);  // "threads", "io_uring"

struct ReaderOptions {
  ReadBackend backend = ReadBackend::kThreads;
  bool direct = false;                                 // past the page cache; buffered where the file system refuses
  int in_flight = 4;                                   // reads at a time, 1 .. 64; 0: serial, in the thread that waits
  std::uint64_t piece_bytes = std::uint64_t{2} << 20;  // larger reads are split; a multiple of kDirectAlignment
  bool verify = false;                                 // compare the checksum of packed records; other layouts have none
};

enum class ReadPriority : std::uint8_t { kDemand, kPrefetch };

// Names a submitted read until its completion has been handed out.
struct ReadTicket {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  friend bool operator==(const ReadTicket&, const ReadTicket&) = default;
};

struct ReadCompletion {
  ReadTicket ticket;
  Result<void> result;  // the slot may be used as weights_in_slot says, or an error that names expert, file and byte
};

struct ReaderStats {
  std::uint64_t demand_records = 0;    // completed, as submitted or promoted
  std::uint64_t prefetch_records = 0;  // completed and never promoted
  std::uint64_t failed_records = 0;
  std::uint64_t bytes = 0;    // that arrived and were asked for, alignment left out
  std::uint64_t reads = 0;    // pieces read
  std::uint64_t repeats = 0;  // calls repeated after a signal, a short read or an error
  double busy_seconds = 0;    // with at least one read in flight: bytes / busy_seconds is the speed of the disk

  ReaderStats since(const ReaderStats& before) const;
};

// All calls may come from any thread; one thread usually submits and collects.
class RecordReader {
 public:
  // files[shard] are the files that plans speak of. ops: for tests, must outlive the reader. Errors name the file.
  static Result<std::unique_ptr<RecordReader>> open(std::span<const std::filesystem::path> files, const ReaderOptions& options,
                                                    FileOps* ops = nullptr);
  // Drops what has not started and waits for what has.
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  // Reads a record into slot (plan.slot_bytes long, 64-byte aligned; kDirectAlignment saves copies). Plan and slot must
  // stay until the completion was handed out or cancel succeeded. Demand is read in the order of submission.
  ReadTicket submit(const ReadPlan& plan, std::byte* slot, ReadPriority priority);
  // A prefetched record is wanted now: it goes behind the waiting demands. No effect when it is one, or is complete.
  void promote(ReadTicket ticket);
  // True: it had not started and will not be completed; its slot is free. False: its completion comes.
  bool cancel(ReadTicket ticket);

  // Appends what has completed to `completed`; returns how many. wait_any blocks until there is one; it returns 0 only
  // when nothing is outstanding. A serial reader reads inside wait_any, one record, demand first; poll never reads.
  std::size_t poll(std::vector<ReadCompletion>& completed);
  std::size_t wait_any(std::vector<ReadCompletion>& completed);

  bool demand_waits() const;             // a demand read has not been started entirely: no time to prefetch
  std::size_t outstanding() const;       // submitted and not handed out
  const ReaderOptions& options() const;  // as they came out: backend and direct may differ from what was asked
  std::string notice() const;            // why they differ, or empty
  ReaderStats stats() const;

  // Memory for reads that cannot go straight into a slot, part of the budget.
  static std::uint64_t buffer_bytes(const ReaderOptions& options);

 private:
  struct State;
  explicit RecordReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace colibri

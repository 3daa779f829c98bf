#include "experts/record_reader.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>

#include "base/aligned.h"
#include "experts/record_reader_queue.h"
#include "experts/slab_arena.h"

namespace colibri {
namespace {

Error read_error(const ReadPiece& piece, const std::string& what) {
  return Error{fmt::format("layer {}, expert {}: {}: {}", piece.plan->name.layer, piece.plan->name.expert,
                           piece.file->path.string(), what)};
}

Error failed(const ReadPiece& piece, std::int64_t result) {
  const PieceProgress& p = piece.progress;
  const std::string tries = p.attempts > 1 ? fmt::format(" ({} attempts)", p.attempts) : std::string();
  return read_error(piece,
                    fmt::format("reading {} bytes at byte {} failed: {}{}; check the disk and its cable", p.needed - p.done,
                                piece.offset + p.done, std::generic_category().message(static_cast<int>(-result)), tries));
}

Error ended(const ReadPiece& piece, std::uint64_t file_bytes) {
  return read_error(
      piece, fmt::format("the file is {} bytes long now, expected at least {}: it was longer when the model was opened. Was "
                         "it replaced or cut? Start again with the whole file",
                         file_bytes, piece.offset + piece.progress.needed));
}

// A piece on its way, with what it takes to finish it.
struct Flight {
  ReadPiece piece;
  std::byte* buffer = nullptr;  // piece_bytes long
  std::uint64_t repeats = 0;
  std::optional<Error> error;

  std::byte* target() const { return (piece.place ? piece.place : buffer) + piece.progress.done; }
  std::uint64_t bytes() const { return piece.progress.bytes - piece.progress.done; }
  std::uint64_t offset() const { return piece.offset + piece.progress.done; }
};

// Takes in the answer of a read. False: ask again for what is missing; true: the piece is over, with an error perhaps.
bool take_in(FileOps& ops, Flight& flight, std::int64_t result) {
  switch (after_read(flight.piece.progress, result)) {
    case NextStep::kDone: return true;
    case NextStep::kEnded: flight.error = ended(flight.piece, ops.file_bytes(flight.piece.file->fd)); return true;
    case NextStep::kFailed: flight.error = failed(flight.piece, result); return true;
    case NextStep::kPause:
      std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms(flight.piece.progress.attempts)));
      break;
    case NextStep::kAgain: break;
  }
  ++flight.repeats;
  return false;
}

// Brings a piece that is over to its places and back to the queue.
void land(ReadQueue& queue, Flight& flight) {
  if (!flight.error && !flight.piece.place) copy_out(flight.piece, flight.buffer);
  queue.bring_back(flight.piece, std::move(flight.error), flight.repeats);
  flight.error.reset();
  flight.repeats = 0;
}

// In large pages like the slots: a read into scattered small pages reaches the disk in more and smaller requests (half
// the speed, measured on a virtual disk).
Result<SlabPlan> plan_buffers(const ReaderOptions& options) {
  std::uint64_t count = static_cast<std::uint64_t>(std::max(options.in_flight, 1));
  if (options.backend == ReadBackend::kRing) count *= 2;  // as many again that have come and wait to be copied
  const std::uint64_t bytes = round_up(count * options.piece_bytes, kSlabAlignment);
  return plan_slabs(bytes, options.piece_bytes, count, bytes);
}

}  // namespace

std::string_view backend_name(ReadBackend backend) { return backend == ReadBackend::kRing ? "io_uring" : "threads"; }

struct RecordReader::State {
  State(const ReaderOptions& chosen, FileOps* given, std::vector<ReadFile> files)
      : options(chosen), ops(given ? *given : own_ops), queue(std::move(files), chosen.piece_bytes, chosen.verify) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    queue.stop();
    if (ring) ring->wake();
    for (std::thread& thread : threads) thread.join();
    for (const ReadFile& file : queue.files()) ops.close(file.fd);
  }

  std::byte* buffer(std::size_t index) { return buffers->slot(index); }

  void read_now(Flight& flight) {
    while (!take_in(ops, flight, ops.pread(flight.piece.file->fd, flight.target(), flight.bytes(), flight.offset()))) {
    }
    land(queue, flight);
  }

  void work(std::size_t worker) {
    Flight flight;
    flight.buffer = buffer(worker);
    while (queue.wait_take(flight.piece)) read_now(flight);
  }

  // The ring's thread. It asks for the next pieces before it copies those that have come, so that the disk does not
  // wait for copies. A pause after an error holds up the others too: a disk with errors is not fast anyway.
  void drive_ring() {
    const auto depth = static_cast<std::size_t>(options.in_flight);
    std::vector<Flight> flights(buffers->slots());
    std::vector<std::uint32_t> idle, arrived;
    for (std::uint32_t i = 0; i < flights.size(); ++i) {
      flights[i].buffer = buffer(i);
      idle.push_back(i);
    }
    std::vector<RingResult> results(depth);
    const auto push = [&](std::uint32_t tag) {
      const Flight& f = flights[tag];
      ring->push({f.piece.file->fd, f.target(), f.bytes(), f.offset(), tag});
    };
    while (true) {
      while (!idle.empty() && flights.size() - idle.size() - arrived.size() < depth && queue.take(flights[idle.back()].piece)) {
        push(idle.back());
        idle.pop_back();
      }
      if (idle.size() == flights.size() && queue.stopped()) return;
      const std::size_t count = ring->wait(results, arrived.empty());
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t tag = results[i].tag;
        if (take_in(ops, flights[tag], results[i].result))
          arrived.push_back(tag);
        else
          push(tag);
      }
      if (count == 0 && !arrived.empty()) {  // everything that can be is in flight
        land(queue, flights[arrived.front()]);
        idle.push_back(arrived.front());
        arrived.erase(arrived.begin());
      }
    }
  }

  Result<void> start() {
    COLIBRI_TRY(plan, plan_buffers(options));
    COLIBRI_TRY(arena, SlabArena::allocate(plan, nullptr));
    for (const std::span<std::byte> slab : arena.slabs()) std::memset(slab.data(), 0, slab.size());
    buffers = std::move(arena);
    if (options.in_flight == 0) return {};
    if (options.backend == ReadBackend::kRing) {
      if (auto made = ops.make_ring(static_cast<unsigned>(options.in_flight))) {
        ring = std::move(*made);
        threads.emplace_back([this] { drive_ring(); });
        return {};
      } else {
        options.backend = ReadBackend::kThreads;
        add_notice(made.error().message + "; threads read instead");
      }
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(options.in_flight); ++i) threads.emplace_back([this, i] { work(i); });
    return {};
  }

  void add_notice(const std::string& text) {
    if (!notice.empty()) notice += ". ";
    notice += text;
  }

  ReaderOptions options;
  std::string notice;
  FileOps own_ops;
  FileOps& ops;
  ReadQueue queue;
  std::optional<SlabArena> buffers;
  std::unique_ptr<ReadRing> ring;
  std::vector<std::thread> threads;
};

RecordReader::RecordReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
RecordReader::~RecordReader() = default;

Result<std::unique_ptr<RecordReader>> RecordReader::open(std::span<const std::filesystem::path> files,
                                                         const ReaderOptions& options, FileOps* ops) {
  assert(options.in_flight >= 0 && options.in_flight <= 64);
  FileOps own;
  FileOps& use = ops ? *ops : own;
  std::vector<ReadFile> opened;
  std::string refused;
  for (const auto& path : files) {
    auto file = use.open(path, options.direct);
    if (!file) {
      for (const ReadFile& other : opened) use.close(other.fd);
      return pass(std::move(file).error());
    }
    if (options.direct && file->alignment == 1 && refused.empty()) refused = path.string();
    opened.push_back({path, file->fd, file->alignment});
  }
  auto state = std::make_unique<State>(options, ops, std::move(opened));
  if (!refused.empty()) {
    state->options.direct = false;
    state->add_notice(refused + ": its file system has no direct reads, reading through the page cache");
  }
  COLIBRI_CHECK(state->start());
  return std::unique_ptr<RecordReader>(new RecordReader(std::move(state)));
}

ReaderStats ReaderStats::since(const ReaderStats& before) const {
  return {demand_records - before.demand_records,
          prefetch_records - before.prefetch_records,
          failed_records - before.failed_records,
          bytes - before.bytes,
          reads - before.reads,
          repeats - before.repeats,
          busy_seconds - before.busy_seconds};
}

ReadTicket RecordReader::submit(const ReadPlan& plan, std::byte* slot, ReadPriority priority) {
  const ReadTicket ticket = state_->queue.submit(plan, slot, priority);
  if (state_->ring) state_->ring->wake();
  return ticket;
}

void RecordReader::promote(ReadTicket ticket) { state_->queue.promote(ticket); }
bool RecordReader::cancel(ReadTicket ticket) { return state_->queue.cancel(ticket); }
std::size_t RecordReader::poll(std::vector<ReadCompletion>& completed) { return state_->queue.poll(completed); }

std::size_t RecordReader::wait_any(std::vector<ReadCompletion>& completed) {
  if (state_->options.in_flight == 0) {
    if (const std::size_t count = state_->queue.poll(completed)) return count;
    Flight flight;
    flight.buffer = state_->buffer(0);
    while (state_->queue.take(flight.piece)) {
      state_->read_now(flight);
      if (const std::size_t count = state_->queue.poll(completed)) return count;
    }
    return 0;
  }
  return state_->queue.wait_any(completed);
}

bool RecordReader::demand_waits() const { return state_->queue.demand_waits(); }
std::size_t RecordReader::outstanding() const { return state_->queue.outstanding(); }
const ReaderOptions& RecordReader::options() const { return state_->options; }
std::string RecordReader::notice() const { return state_->notice; }
ReaderStats RecordReader::stats() const { return state_->queue.stats(); }

std::uint64_t RecordReader::buffer_bytes(const ReaderOptions& options) {
  const auto plan = plan_buffers(options);
  return plan ? plan->total_bytes() : 0;
}

}  // namespace colibri

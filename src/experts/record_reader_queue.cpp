#include "experts/record_reader_queue.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "base/aligned.h"
#include "format/packed.h"

namespace colibri {
namespace {

std::uint64_t round_down(std::uint64_t value, std::uint64_t multiple) { return value / multiple * multiple; }

Error bad_scale(const ReadPlan& plan, const BadScale& bad, const std::vector<ReadFile>& files) {
  static constexpr const char* kNames[] = {"gate", "up", "down"};
  return Error{fmt::format("layer {}, expert {}: {}: {} scale {} is {}, expected a finite number; the file is damaged",
                           plan.name.layer, plan.name.expert,
                           files[static_cast<std::size_t>(bad.part->source.shard)].path.string(), kNames[bad.part->matrix],
                           bad.index, bad.value)};
}

// What is wrong with a record whose bytes have all arrived. Narrow scales are widened in place on the way.
std::optional<Error> check_record(const ReadPlan& plan, std::byte* slot, bool verify, const std::vector<ReadFile>& files) {
  if (verify && plan.record.bytes > 0) {
    const auto whole = check_packed_record({slot + plan.runs().front().slot_offset, plan.record.bytes},
                                           packed_expert_name(plan.name.layer, plan.name.expert));
    if (!whole)
      return Error{
          fmt::format("{}: {}", files[static_cast<std::size_t>(plan.record.shard)].path.string(), whole.error().message)};
  }
  const std::optional<BadScale> bad = finish_record(plan, slot);
  return bad ? std::optional(bad_scale(plan, *bad, files)) : std::nullopt;
}

}  // namespace

void copy_out(const ReadPiece& piece, const std::byte* buffer) {
  const ReadRun& run = *piece.run;
  const std::uint64_t end = piece.offset + piece.progress.needed;
  const auto copy = [&](std::uint64_t from, std::uint64_t bytes, std::uint64_t slot_offset) {
    const std::uint64_t first = std::max(from, piece.offset), last = std::min(from + bytes, end);
    if (first < last) std::memcpy(piece.slot + slot_offset + (first - from), buffer + (first - piece.offset), last - first);
  };
  if (run.in_place) {
    copy(run.offset, run.bytes, run.slot_offset);
    return;
  }
  for (const ReadPart& part : piece.plan->parts().subspan(run.first_part, run.part_count))
    copy(part.source.offset, part.source.bytes, part.raw_offset());
}

ReadQueue::ReadQueue(std::vector<ReadFile> files, std::uint64_t piece_bytes, bool verify)
    : files_(std::move(files)), piece_bytes_(piece_bytes), verify_(verify) {
  assert(piece_bytes_ > 0 && piece_bytes_ % kDirectAlignment == 0);
}

ReadQueue::Request* ReadQueue::find(ReadTicket ticket) {
  if (ticket.index >= requests_.size()) return nullptr;
  Request& request = requests_[ticket.index];
  return request.used && request.generation == ticket.generation ? &request : nullptr;
}

ReadTicket ReadQueue::submit(const ReadPlan& plan, std::byte* slot, ReadPriority priority) {
  assert(reinterpret_cast<std::uintptr_t>(slot) % kWeightAlignment == 0 && plan.run_count > 0);
  ReadTicket ticket;
  {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(requests_.size()));
      requests_.emplace_back();
    }
    ticket.index = free_.back();
    free_.pop_back();
    Request& request = requests_[ticket.index];
    ticket.generation = request.generation + 1;
    request = Request{};
    request.generation = ticket.generation;
    request.used = true;
    request.plan = &plan;
    request.slot = slot;
    request.priority = priority;
    request.waiting = true;
    waiting(priority).push_back(ticket.index);
    ++outstanding_;
  }
  work_.notify_all();  // a record is many pieces
  return ticket;
}

void ReadQueue::stop_waiting(std::uint32_t index) {
  Request& request = requests_[index];
  if (!request.waiting) return;
  std::erase(waiting(request.priority), index);
  request.waiting = false;
}

void ReadQueue::promote(ReadTicket ticket) {
  const std::lock_guard lock(mutex_);
  Request* const request = find(ticket);
  if (!request || request->priority == ReadPriority::kDemand) return;
  const bool was_waiting = request->waiting;
  stop_waiting(ticket.index);
  request->priority = ReadPriority::kDemand;
  if (was_waiting) {
    request->waiting = true;
    waiting(ReadPriority::kDemand).push_back(ticket.index);
  }
}

bool ReadQueue::cancel(ReadTicket ticket) {
  const std::lock_guard lock(mutex_);
  Request* const request = find(ticket);
  if (!request || !request->waiting || request->run != 0 || request->at != 0) return false;
  stop_waiting(ticket.index);
  request->used = false;
  free_.push_back(ticket.index);
  --outstanding_;
  if (outstanding_ == 0) completion_.notify_all();
  return true;
}

bool ReadQueue::take(ReadPiece& piece) {
  const std::lock_guard lock(mutex_);
  return take_locked(piece);
}

bool ReadQueue::wait_take(ReadPiece& piece) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (take_locked(piece)) return true;
    work_.wait(lock);
  }
  return false;
}

bool ReadQueue::take_locked(ReadPiece& piece) {
  if (stopped_) return false;
  const auto& queue = waiting(waiting(ReadPriority::kDemand).empty() ? ReadPriority::kPrefetch : ReadPriority::kDemand);
  if (queue.empty()) return false;
  const std::uint32_t index = queue.front();
  Request& request = requests_[index];
  const ReadRun& run = request.plan->runs()[request.run];
  const ReadFile& file = files_[static_cast<std::size_t>(run.shard)];

  const std::uint64_t run_end = run.offset + run.bytes;
  const std::uint64_t start = round_down(run.offset, file.alignment);
  piece.request = index;
  piece.plan = request.plan;
  piece.run = &run;
  piece.slot = request.slot;
  piece.file = &file;
  piece.offset = start + request.at;
  piece.progress = {};
  piece.progress.alignment = file.alignment;
  piece.progress.needed = std::min(run_end - piece.offset, piece_bytes_);
  piece.progress.bytes = round_up(piece.progress.needed, file.alignment);
  piece.place = nullptr;
  if (run.in_place) {
    // The same distance from a boundary in the slot as in the file; plans leave room for the aligned ends then.
    const std::uint64_t lead = run.offset - start;
    if (reinterpret_cast<std::uintptr_t>(request.slot) % file.alignment == 0 && run.slot_offset % file.alignment == lead)
      piece.place = request.slot + (run.slot_offset - lead + request.at);
  }

  request.at += piece.progress.needed;
  if (start + request.at == run_end) {
    request.at = 0;
    if (++request.run == request.plan->run_count) stop_waiting(index);
  }
  ++request.in_flight;
  if (in_flight_++ == 0) busy_since_ = std::chrono::steady_clock::now();
  return true;
}

void ReadQueue::bring_back(const ReadPiece& piece, std::optional<Error> error, std::uint64_t repeats) {
  std::unique_lock lock(mutex_);
  Request& request = requests_[piece.request];
  if (--in_flight_ == 0)
    stats_.busy_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - busy_since_).count();
  ++stats_.reads;
  stats_.repeats += repeats;
  if (error) {
    if (!request.error) request.error = std::move(error);
    stop_waiting(piece.request);  // the rest would be read for nothing
  } else {
    const std::uint64_t before = std::min(piece.progress.needed, piece.run->offset - std::min(piece.run->offset, piece.offset));
    stats_.bytes += piece.progress.needed - before;
  }
  // The slot is not given back while a read may still write to it.
  if (--request.in_flight > 0 || request.waiting) return;
  if (!request.error) {
    lock.unlock();
    std::optional<Error> bad = check_record(*piece.plan, piece.slot, verify_, files_);
    lock.lock();
    request.error = std::move(bad);
  }
  ++(request.error                               ? stats_.failed_records
     : request.priority == ReadPriority::kDemand ? stats_.demand_records
                                                 : stats_.prefetch_records);
  completed_.push_back(piece.request);
  completion_.notify_all();
}

std::size_t ReadQueue::hand_out(std::vector<ReadCompletion>& completed) {
  const std::size_t count = completed_.size();
  for (const std::uint32_t index : completed_) {
    Request& request = requests_[index];
    ReadCompletion& out = completed.emplace_back();
    out.ticket = {index, request.generation};
    if (request.error) out.result = pass(std::move(*request.error));
    request.error.reset();
    request.used = false;
    free_.push_back(index);
  }
  completed_.clear();
  outstanding_ -= count;
  return count;
}

std::size_t ReadQueue::poll(std::vector<ReadCompletion>& completed) {
  const std::lock_guard lock(mutex_);
  return hand_out(completed);
}

std::size_t ReadQueue::wait_any(std::vector<ReadCompletion>& completed) {
  std::unique_lock lock(mutex_);
  completion_.wait(lock, [&] { return !completed_.empty() || outstanding_ == 0; });
  return hand_out(completed);
}

void ReadQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  work_.notify_all();
}

bool ReadQueue::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

bool ReadQueue::demand_waits() const {
  const std::lock_guard lock(mutex_);
  return !waiting_[static_cast<std::size_t>(ReadPriority::kDemand)].empty();
}

std::size_t ReadQueue::outstanding() const {
  const std::lock_guard lock(mutex_);
  return outstanding_;
}

ReaderStats ReadQueue::stats() const {
  const std::lock_guard lock(mutex_);
  ReaderStats stats = stats_;
  if (in_flight_ > 0) stats.busy_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - busy_since_).count();
  return stats;
}

}  // namespace colibri

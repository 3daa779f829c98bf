// What goes wrong while reading: signals, short reads, errors that pass and errors that stay, files cut while running.
// Each ends its own ticket at most; the reader goes on working.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <map>
#include <thread>

#include "experts_io_support.h"

namespace colibri::experts_io {
namespace {

// ---- the decision after each call

TEST(AfterRead, CompleteShortAndEnded) {
  PieceProgress piece{8192, 5000, 4096};
  EXPECT_EQ(after_read(piece, 5000), NextStep::kDone) << "the end of the file inside the last block";
  piece = {8192, 8192, 4096};
  EXPECT_EQ(after_read(piece, 5000), NextStep::kAgain);
  EXPECT_EQ(piece.done, 4096u) << "the next call starts at a block again";
  EXPECT_EQ(after_read(piece, 4096), NextStep::kDone);
  piece = {8192, 8192, 1};
  EXPECT_EQ(after_read(piece, 5000), NextStep::kAgain);
  EXPECT_EQ(piece.done, 5000u);
  EXPECT_EQ(after_read(piece, 0), NextStep::kEnded);
}

TEST(AfterRead, LessThanABlockIsTriedAgainButNotForEver) {
  PieceProgress piece{8192, 8192, 4096};
  for (int i = 1; i < kReadAttempts; ++i) EXPECT_EQ(after_read(piece, 100), NextStep::kAgain);
  EXPECT_EQ(after_read(piece, 100), NextStep::kEnded);
  EXPECT_EQ(piece.done, 0u);
}

TEST(AfterRead, Errors) {
  PieceProgress piece{8192, 8192, 4096};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(after_read(piece, -EINTR), NextStep::kAgain);
  for (int i = 1; i < kReadAttempts; ++i) EXPECT_EQ(after_read(piece, -EIO), NextStep::kPause);
  EXPECT_EQ(after_read(piece, -EIO), NextStep::kFailed);
  piece = {8192, 8192, 4096};
  EXPECT_EQ(after_read(piece, -EBADF), NextStep::kFailed) << "an error that cannot pass";
  piece = {8192, 8192, 4096};
  EXPECT_EQ(after_read(piece, -EIO), NextStep::kPause);
  EXPECT_EQ(after_read(piece, 4096), NextStep::kAgain);
  EXPECT_EQ(piece.attempts, 0) << "progress starts the count again";
  EXPECT_EQ(pause_ms(1), 1);
  EXPECT_EQ(pause_ms(2), 4);
  EXPECT_EQ(pause_ms(4), 64);
}

// ---- the reader

struct Setting {
  const char* name;
  ReadBackend backend;
  int in_flight;
  bool direct;
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

class Fault : public testing::TestWithParam<Setting> {
 protected:
  static constexpr std::uint64_t kPiece = 2 * kDirectAlignment;
  static constexpr std::uint64_t kBytes = 10 * kDirectAlignment;
  static constexpr int kRecords = 8;

  // Records of five or six pieces each, the even ones in shard 0 and the odd ones in shard 1.
  Fault() {
    for (int i = 0; i < kRecords; ++i) {
      ExpertRecord record;
      std::uint64_t at = static_cast<std::uint64_t>(i / 2) * kBytes + (i < 4 ? 0 : 24);
      for (MatrixSource* const source : {&record.gate, &record.up, &record.down}) {
        *source = source_at({i % 2, at, 3 * kDirectAlignment});
        at += 3 * kDirectAlignment;
      }
      plans.push_back(plan_record(record, {3, 10 + i}));
      slots.emplace_back(plans.back().slot_bytes, kDirectAlignment);
    }
  }

  void open() {
    const Setting& s = GetParam();
    auto opened = RecordReader::open(shards.paths, {s.backend, s.direct, s.in_flight, kPiece}, &ops);
    ASSERT_TRUE(opened) << opened.error().message;
    reader = std::move(*opened);
  }

  // Reads all records; the messages of those that failed, empty for the others.
  std::vector<std::string> read_all() {
    std::vector<ReadTicket> tickets;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      std::memset(slots[i].data(), 0, plans[i].slot_bytes);
      tickets.push_back(reader->submit(plans[i], slots[i].data(), ReadPriority::kDemand));
    }
    std::vector<ReadCompletion> completed;
    while (reader->wait_any(completed) > 0) {
    }
    EXPECT_EQ(completed.size(), plans.size());
    std::vector<std::string> messages(plans.size());
    for (ReadCompletion& completion : completed)
      for (std::size_t i = 0; i < tickets.size(); ++i)
        if (tickets[i] == completion.ticket) {
          if (completion.result) {
            EXPECT_TRUE(slot_is_right(shards, plans[i], slots[i].data())) << "record " << i;
          } else
            messages[i] = completion.result.error().message;
        }
    return messages;
  }
  void expect_all_right() {
    for (const std::string& message : read_all()) EXPECT_EQ(message, "");
  }

  Shards shards{{4 * kBytes + 1000, 4 * kBytes + 1000}};
  std::vector<ReadPlan> plans;
  std::vector<AlignedBytes> slots;
  TestOps ops;
  std::unique_ptr<RecordReader> reader;
};

TEST_P(Fault, Signals) {
  ops.decide = [](const TestOps::Call& call) { return call.number % 3 ? -EINTR : static_cast<std::int64_t>(call.bytes); };
  open();
  expect_all_right();
  EXPECT_GT(reader->stats().repeats, 0u);
}

TEST_P(Fault, ShortReads) {
  std::mutex mutex;
  std::map<std::pair<int, std::uint64_t>, std::uint64_t> calls;
  ops.decide = [&](const TestOps::Call& call) {
    // A third, then two thirds, then all: with small pieces often less than a block.
    const std::lock_guard lock(mutex);
    const std::uint64_t share = call.bytes * (1 + calls[{call.fd, call.offset}]++ % 3) / 3;
    return static_cast<std::int64_t>(std::max<std::uint64_t>(share, 1));
  };
  open();
  expect_all_right();
  EXPECT_GT(reader->stats().repeats, 0u);
}

TEST_P(Fault, ErrorsThatPass) {
  std::atomic<int> faults = 0;
  for (const int error : {EIO, EAGAIN, ENOMEM}) {
    faults = 0;
    ops.decide = [&, error](const TestOps::Call& call) {
      return faults.fetch_add(1) < kReadAttempts - 1 ? -error : static_cast<std::int64_t>(call.bytes);
    };
    open();
    expect_all_right();
    EXPECT_EQ(reader->stats().repeats, static_cast<std::uint64_t>(kReadAttempts - 1));
    EXPECT_EQ(reader->stats().failed_records, 0u);
  }
}

TEST_P(Fault, ErrorsThatStayEndTheirTicketsAlone) {
  std::atomic<bool> broken = true;
  const std::uint64_t bad_at = 4 * kDirectAlignment;  // inside record 1, the first of shard 1
  int bad_fd = -1;
  ops.decide = [&](const TestOps::Call& call) {
    return broken && call.fd == bad_fd && call.offset <= bad_at && bad_at < call.offset + call.bytes
               ? -EIO
               : static_cast<std::int64_t>(call.bytes);
  };
  open();
  bad_fd = ops.last_opened();
  const auto messages = read_all();
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (i != 1) {
      EXPECT_EQ(messages[i], "");
    }
  const std::string& message = messages[1];
  EXPECT_NE(message.find("layer 3, expert 11"), std::string::npos) << message;
  EXPECT_NE(message.find(shards.paths[1].string()), std::string::npos) << message;
  EXPECT_NE(message.find(fmt::format("at byte {}", bad_at)), std::string::npos) << message;
  EXPECT_NE(message.find("Input/output error"), std::string::npos) << message;
  EXPECT_NE(message.find("5 attempts"), std::string::npos) << message;
  EXPECT_EQ(reader->stats().failed_records, 1u);
  broken = false;
  expect_all_right();
}

TEST_P(Fault, AFileCutWhileRunning) {
  open();
  expect_all_right();
  const std::uint64_t left = kBytes + 5 * kDirectAlignment + 100;  // inside record 2, the second of shard 0
  std::filesystem::resize_file(shards.paths[0], left);
  const auto messages = read_all();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (i % 2 == 1 || i < 2) {
      EXPECT_EQ(messages[i], "");
      continue;
    }
    EXPECT_NE(messages[i].find(fmt::format("layer 3, expert {}", 10 + i)), std::string::npos) << messages[i];
    EXPECT_NE(messages[i].find(shards.paths[0].string()), std::string::npos) << messages[i];
    EXPECT_NE(messages[i].find("Was it replaced"), std::string::npos) << messages[i];
  }
  EXPECT_NE(messages[2].find(fmt::format("is {} bytes long now", left)), std::string::npos) << messages[2];
  write_file(shards.paths[0], shards.bytes[0]);  // the same file, whole again
  expect_all_right();
}

TEST_P(Fault, ADamagedScaleIsNamed) {
  ExpertRecord record;
  for (MatrixSource* const source : {&record.gate, &record.up, &record.down})
    *source = source_at({0, 0, 4096}, {0, 8192 + 64, 4096});
  record.up.scales.offset += 8192;
  const std::uint64_t at = record.up.scales.offset + 4 * 77;
  const float damage = std::numeric_limits<float>::infinity();
  std::memcpy(shards.bytes[0].data() + at, &damage, 4);
  write_file(shards.paths[0], shards.bytes[0]);
  open();
  const ReadPlan plan = plan_record(record, {5, 6});
  AlignedBytes slot(plan.slot_bytes, kDirectAlignment);
  reader->submit(plan, slot.data(), ReadPriority::kDemand);
  std::vector<ReadCompletion> completed;
  ASSERT_EQ(reader->wait_any(completed), 1u);
  ASSERT_FALSE(completed[0].result);
  const std::string& message = completed[0].result.error().message;
  EXPECT_NE(message.find("layer 5, expert 6"), std::string::npos) << message;
  EXPECT_NE(message.find(shards.paths[0].string()), std::string::npos) << message;
  EXPECT_NE(message.find("up scale 77 is inf"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Settings, Fault,
                         testing::Values(Setting{"serial", ReadBackend::kThreads, 0, false},
                                         Setting{"serial_aligned", ReadBackend::kThreads, 0, true},
                                         Setting{"threads", ReadBackend::kThreads, 3, false},
                                         Setting{"threads_aligned", ReadBackend::kThreads, 3, true},
                                         Setting{"ring", ReadBackend::kRing, 4, false},
                                         Setting{"ring_aligned", ReadBackend::kRing, 4, true}),
                         [](const auto& instance) { return instance.param.name; });

// ---- an error is reported only when no read of that record can still write to the slot

TEST(FaultOrder, AFailedRecordWaitsForItsReadsInFlight) {
  Shards shards{{4 * kDirectAlignment}};
  Door failing, writing;
  TestOps ops;
  ops.decide = [&](const TestOps::Call& call) {
    (call.offset == 0 ? failing : writing).pass();
    return call.offset == 0 ? -EBADF : static_cast<std::int64_t>(call.bytes);
  };
  auto reader = RecordReader::open(shards.paths, {ReadBackend::kThreads, false, 2, 2 * kDirectAlignment}, &ops);
  ASSERT_TRUE(reader) << reader.error().message;
  const ReadPlan plan = plan_bytes({0, 0, 4 * kDirectAlignment});
  AlignedBytes slot(plan.slot_bytes, kDirectAlignment);
  (*reader)->submit(plan, slot.data(), ReadPriority::kDemand);
  failing.wait_for_arrivals(1);
  writing.wait_for_arrivals(1);
  failing.open();
  while ((*reader)->stats().reads == 0) std::this_thread::yield();  // the failed half has been brought back
  std::vector<ReadCompletion> completed;
  EXPECT_EQ((*reader)->poll(completed), 0u);
  writing.open();
  ASSERT_EQ((*reader)->wait_any(completed), 1u);
  EXPECT_FALSE(completed[0].result);
}

TEST(FaultOpen, AMissingFileIsNamed) {
  Shards shards{{1000}};
  const std::vector<std::filesystem::path> paths = {shards.paths[0], shards.folder.path() / "absent"};
  const auto reader = RecordReader::open(paths, {});
  ASSERT_FALSE(reader);
  EXPECT_NE(reader.error().message.find("absent"), std::string::npos);
  const std::vector<std::filesystem::path> folder = {shards.folder.path()};
  const auto not_a_file = RecordReader::open(folder, {});
  ASSERT_FALSE(not_a_file);
  EXPECT_NE(not_a_file.error().message.find("regular file"), std::string::npos);
}

TEST(FaultOpen, WhatTheSystemRefusesIsReplacedAndTold) {
  class Poor final : public FileOps {
   public:
    Result<OpenedFile> open(const std::filesystem::path& path, bool) override { return FileOps::open(path, false); }
    Result<std::unique_ptr<ReadRing>> make_ring(unsigned) override { return fail("io_uring: forbidden here"); }
  } ops;
  Shards shards{{100'000}};
  auto reader = RecordReader::open(shards.paths, {ReadBackend::kRing, true, 2, kDirectAlignment}, &ops);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ((*reader)->options().backend, ReadBackend::kThreads);
  EXPECT_FALSE((*reader)->options().direct);
  EXPECT_NE((*reader)->notice().find("io_uring: forbidden here; threads read instead"), std::string::npos);
  EXPECT_NE((*reader)->notice().find("no direct reads"), std::string::npos);
  const ReadPlan plan = plan_bytes({0, 1, 99'999});
  AlignedBytes slot(plan.slot_bytes, kDirectAlignment);
  (*reader)->submit(plan, slot.data(), ReadPriority::kDemand);
  std::vector<ReadCompletion> completed;
  ASSERT_EQ((*reader)->wait_any(completed), 1u);
  EXPECT_TRUE(slot_is_right(shards, plan, slot.data()));
}

}  // namespace
}  // namespace colibri::experts_io

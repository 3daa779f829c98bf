// The record reader on healthy files: every backend and mode gives the same bytes; order, promotion, cancelling.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "experts_io_support.h"

namespace colibri::experts_io {
namespace {

struct Setting {
  const char* name;
  ReadBackend backend;
  int in_flight;
  bool direct;
  std::uint64_t piece_bytes;
  bool real;  // the system's own files and ring, else TestOps
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

constexpr std::uint64_t kSmall = kDirectAlignment * 2;
constexpr std::uint64_t kLarge = std::uint64_t{1} << 20;
constexpr Setting kSettings[] = {
    {"serial_buffered", ReadBackend::kThreads, 0, false, kLarge, true},
    {"serial_direct", ReadBackend::kThreads, 0, true, kSmall, true},
    {"one_thread_aligned", ReadBackend::kThreads, 1, true, kSmall, false},
    {"threads_buffered", ReadBackend::kThreads, 4, false, kSmall, true},
    {"threads_direct", ReadBackend::kThreads, 4, true, kLarge, true},
    {"threads_aligned", ReadBackend::kThreads, 3, true, kSmall, false},
    {"ring_buffered", ReadBackend::kRing, 5, false, kSmall, true},
    {"ring_direct", ReadBackend::kRing, 8, true, kLarge, true},
    {"ring_direct_small", ReadBackend::kRing, 2, true, kSmall, true},
    {"test_ring_aligned", ReadBackend::kRing, 4, true, kSmall, false},
};

class Reader : public testing::TestWithParam<Setting> {
 protected:
  // Two shards of odd length and records of every kind over them.
  Reader() {
    std::mt19937 random(11);
    const auto range = [&](std::uint64_t bytes, std::uint64_t step) {
      const auto shard = static_cast<std::int32_t>(random() % 2);
      const std::uint64_t room = shards.bytes[static_cast<std::size_t>(shard)].size() - bytes;
      return FileRange{shard, random() % room / step * step, bytes};
    };
    for (int i = 0; i < 40; ++i) {
      ExpertRecord record;
      const std::uint64_t step = i % 3 == 0 ? 4096 : i % 3 == 1 ? 64 : 1;
      for (MatrixSource* const source : {&record.gate, &record.up, &record.down})
        *source = source_at(range(1 + random() % 60000, step), range(4 * (random() % 900), step), random() % 3 == 0);
      if (i % 5 == 0) {  // neighbours, as containers have them
        FileRange run = range(90000, step);
        for (MatrixSource* const source : {&record.down, &record.gate, &record.up}) {
          source->data = {run.shard, run.offset, 30000};
          run.offset += 30000;
        }
      }
      if (i == 7) record.up.data = {1, shards.bytes[1].size() - 12345, 12345};  // to the last byte of the file
      plans.push_back(plan_record(record, {i / 8, i % 8}));
    }
    for (const ReadPlan& plan : plans) slots.emplace_back(plan.slot_bytes, kDirectAlignment);
  }

  std::unique_ptr<RecordReader> open() {
    const Setting& s = GetParam();
    ReaderOptions options{s.backend, s.direct, s.in_flight, s.piece_bytes};
    auto reader = RecordReader::open(shards.paths, options, s.real ? nullptr : &ops);
    if (!reader) {
      ADD_FAILURE() << reader.error().message;
      return nullptr;
    }
    // A machine may refuse rings and direct reads, but must then say so.
    if ((*reader)->options().backend != s.backend || (*reader)->options().direct != s.direct) {
      EXPECT_FALSE((*reader)->notice().empty());
    }
    return std::move(*reader);
  }

  Shards shards{{3'000'017, 1'234'567}};
  std::vector<ReadPlan> plans;
  std::vector<AlignedBytes> slots;
  TestOps ops;
};

TEST_P(Reader, ReadsEveryRecord) {
  const auto reader = open();
  ASSERT_TRUE(reader);
  std::map<std::uint32_t, std::size_t> record_of;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const ReadTicket ticket = reader->submit(plans[i], slots[i].data(), i % 2 ? ReadPriority::kDemand : ReadPriority::kPrefetch);
    record_of[ticket.index] = i;
    bytes += plans[i].read_bytes();
  }
  std::vector<ReadCompletion> completed;
  while (reader->wait_any(completed) > 0) {
  }
  ASSERT_EQ(completed.size(), plans.size());
  EXPECT_EQ(reader->outstanding(), 0u);
  for (const ReadCompletion& completion : completed) {
    ASSERT_TRUE(completion.result) << completion.result.error().message;
    const std::size_t i = record_of.at(completion.ticket.index);
    EXPECT_TRUE(slot_is_right(shards, plans[i], slots[i].data())) << "record " << i;
  }
  const ReaderStats stats = reader->stats();
  EXPECT_EQ(stats.demand_records, plans.size() / 2);
  EXPECT_EQ(stats.prefetch_records, plans.size() / 2);
  EXPECT_EQ(stats.bytes, bytes);
  EXPECT_GT(stats.busy_seconds, 0);
}

TEST_P(Reader, KeepsInsideTheSlot) {
  const auto reader = open();
  ASSERT_TRUE(reader);
  for (const ReadPlan& plan : plans) {
    AlignedBytes memory(plan.slot_bytes + 2 * kDirectAlignment, kDirectAlignment);
    std::memset(memory.data(), 0xa5, memory.size());
    std::byte* const slot = memory.data() + kDirectAlignment;
    reader->submit(plan, slot, ReadPriority::kDemand);
    std::vector<ReadCompletion> completed;
    ASSERT_EQ(reader->wait_any(completed), 1u);
    ASSERT_TRUE(completed[0].result) << completed[0].result.error().message;
    EXPECT_TRUE(slot_is_right(shards, plan, slot));
    for (std::uint64_t i = 0; i < kDirectAlignment; ++i) {
      ASSERT_EQ(memory.data()[i], std::byte{0xa5});
      ASSERT_EQ(slot[plan.slot_bytes + i], std::byte{0xa5});
    }
  }
}

TEST_P(Reader, SlotsNeedNoLargeAlignment) {
  const auto reader = open();
  ASSERT_TRUE(reader);
  for (const ReadPlan& plan : plans) {
    AlignedBytes memory(plan.slot_bytes + kDirectAlignment, kDirectAlignment);
    std::byte* const slot = memory.data() + 64;
    reader->submit(plan, slot, ReadPriority::kDemand);
    std::vector<ReadCompletion> completed;
    ASSERT_EQ(reader->wait_any(completed), 1u);
    ASSERT_TRUE(completed[0].result) << completed[0].result.error().message;
    EXPECT_TRUE(slot_is_right(shards, plan, slot));
    for (std::uint64_t i = 0; i < 64; ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
  }
}

TEST_P(Reader, ManyRoundsWithPromotionAndCancelling) {
  const auto reader = open();
  ASSERT_TRUE(reader);
  std::mt19937 random(3);
  std::uint32_t highest = 0;
  for (int round = 0; round < 8; ++round) {
    std::map<std::uint32_t, std::size_t> expected;
    std::vector<ReadTicket> tickets;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      std::memset(slots[i].data(), 0, plans[i].slot_bytes);
      const ReadTicket ticket =
          reader->submit(plans[i], slots[i].data(), random() % 2 ? ReadPriority::kDemand : ReadPriority::kPrefetch);
      highest = std::max(highest, ticket.index);
      tickets.push_back(ticket);
      expected[ticket.index] = i;
    }
    std::set<std::size_t> cancelled;
    for (std::size_t i = 0; i < tickets.size(); ++i) {
      if (random() % 4 == 0) reader->promote(tickets[i]);
      if (random() % 4 == 0 && reader->cancel(tickets[i])) {
        cancelled.insert(i);
        expected.erase(tickets[i].index);
        std::memset(slots[i].data(), 0xee, plans[i].slot_bytes);  // it is ours again
      }
    }
    std::vector<ReadCompletion> completed;
    while (reader->wait_any(completed) > 0) {
    }
    EXPECT_EQ(completed.size(), expected.size());
    for (const ReadCompletion& completion : completed) {
      ASSERT_TRUE(completion.result) << completion.result.error().message;
      ASSERT_EQ(expected.count(completion.ticket.index), 1u);
      const std::size_t i = expected[completion.ticket.index];
      ASSERT_TRUE(slot_is_right(shards, plans[i], slots[i].data())) << "record " << i;
      expected.erase(completion.ticket.index);
    }
    for (const std::size_t i : cancelled) EXPECT_EQ(slots[i].data()[0], std::byte{0xee});
    EXPECT_FALSE(reader->cancel(tickets[0])) << "a ticket of the past";
  }
  EXPECT_LT(highest, plans.size()) << "tickets are used again, so nothing grows";
}

TEST_P(Reader, GoesAwayInTheMiddle) {
  for (int round = 0; round < 6; ++round) {
    const auto reader = open();
    ASSERT_TRUE(reader);
    for (std::size_t i = 0; i < plans.size(); ++i) reader->submit(plans[i], slots[i].data(), ReadPriority::kDemand);
    std::vector<ReadCompletion> completed;
    if (round % 2) reader->wait_any(completed);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, Reader, testing::ValuesIn(kSettings),
                         [](const auto& instance) { return instance.param.name; });

// ---- order: one read at a time, held at a door, then the offsets tell

class Order : public testing::Test {
 protected:
  Order() {
    for (int i = 0; i < 6; ++i) {
      ExpertRecord record;
      const std::uint64_t at = static_cast<std::uint64_t>(i) * kRecord;
      record.gate = source_at({0, at, kRecord / 4});
      record.up = source_at({0, at + kRecord / 4, kRecord / 4});
      record.down = source_at({0, at + kRecord / 2, kRecord / 2});
      plans.push_back(plan_record(record, {0, i}));
      slots.emplace_back(plans.back().slot_bytes, kDirectAlignment);
    }
  }
  ReadTicket submit(RecordReader& reader, int i, ReadPriority priority) {
    const auto n = static_cast<std::size_t>(i);
    return reader.submit(plans[n], slots[n].data(), priority);
  }
  // The records in the order in which their pieces were read.
  std::vector<int> order() const {
    std::vector<int> records;
    for (const TestOps::Call& call : ops.calls()) records.push_back(static_cast<int>(call.offset / kRecord));
    return records;
  }

  static constexpr std::uint64_t kRecord = 4 * kDirectAlignment;
  static constexpr std::uint64_t kPiece = 2 * kDirectAlignment;  // two pieces a record
  Shards shards{{6 * kRecord}};
  std::vector<ReadPlan> plans;
  std::vector<AlignedBytes> slots;
  TestOps ops;
};

TEST_F(Order, DemandBeforePrefetch) {
  for (const ReadBackend backend : {ReadBackend::kThreads, ReadBackend::kRing}) {
    Door door;
    TestOps own;
    own.decide = [&](const TestOps::Call& call) {
      if (call.number == 0) door.pass();
      return static_cast<std::int64_t>(call.bytes);
    };
    auto reader = RecordReader::open(shards.paths, {backend, false, 1, kPiece}, &own);
    ASSERT_TRUE(reader) << reader.error().message;
    submit(**reader, 0, ReadPriority::kPrefetch);
    door.wait_for_arrivals(1);
    EXPECT_FALSE((*reader)->demand_waits());
    submit(**reader, 1, ReadPriority::kPrefetch);
    const ReadTicket wanted = submit(**reader, 2, ReadPriority::kPrefetch);
    submit(**reader, 3, ReadPriority::kDemand);
    const ReadTicket unwanted = submit(**reader, 4, ReadPriority::kPrefetch);
    submit(**reader, 5, ReadPriority::kDemand);
    EXPECT_TRUE((*reader)->demand_waits());
    (*reader)->promote(wanted);
    EXPECT_TRUE((*reader)->cancel(unwanted));
    EXPECT_FALSE((*reader)->cancel(unwanted));
    EXPECT_EQ((*reader)->outstanding(), 5u);
    door.open();
    std::vector<ReadCompletion> completed;
    while ((*reader)->wait_any(completed) > 0) {
    }
    EXPECT_EQ(completed.size(), 5u);
    std::vector<int> records;
    for (const TestOps::Call& call : own.calls()) records.push_back(static_cast<int>(call.offset / kRecord));
    EXPECT_EQ(records, (std::vector<int>{0, 3, 3, 5, 5, 2, 2, 0, 1, 1}));
    EXPECT_EQ((*reader)->stats().demand_records, 3u);
    EXPECT_EQ((*reader)->stats().prefetch_records, 2u);
  }
}

TEST_F(Order, AStartedReadIsNotCancelled) {
  Door door;
  ops.decide = [&](const TestOps::Call& call) {
    door.pass();
    return static_cast<std::int64_t>(call.bytes);
  };
  auto reader = RecordReader::open(shards.paths, {ReadBackend::kThreads, false, 1, kPiece}, &ops);
  ASSERT_TRUE(reader);
  const ReadTicket ticket = submit(**reader, 0, ReadPriority::kPrefetch);
  door.wait_for_arrivals(1);
  EXPECT_FALSE((*reader)->cancel(ticket));
  door.open();
  std::vector<ReadCompletion> completed;
  EXPECT_EQ((*reader)->wait_any(completed), 1u);
  EXPECT_EQ(completed[0].ticket, ticket);
}

TEST_F(Order, SeveralReadsOfOneRecordAreInFlight) {
  Door door;
  ops.decide = [&](const TestOps::Call& call) {
    door.pass();
    return static_cast<std::int64_t>(call.bytes);
  };
  auto reader = RecordReader::open(shards.paths, {ReadBackend::kThreads, false, 4, kPiece}, &ops);
  ASSERT_TRUE(reader);
  submit(**reader, 0, ReadPriority::kDemand);
  submit(**reader, 1, ReadPriority::kDemand);
  door.wait_for_arrivals(4);  // hangs unless four are in flight together
  door.open();
  std::vector<ReadCompletion> completed;
  while ((*reader)->wait_any(completed) > 0) {
  }
  EXPECT_EQ(completed.size(), 2u);
}

TEST_F(Order, SerialReadsDemandInTheCallerAndOneRecordAtATime) {
  auto reader = RecordReader::open(shards.paths, {ReadBackend::kThreads, false, 0, kPiece}, &ops);
  ASSERT_TRUE(reader);
  submit(**reader, 0, ReadPriority::kPrefetch);
  const ReadTicket first = submit(**reader, 1, ReadPriority::kDemand);
  submit(**reader, 2, ReadPriority::kDemand);
  std::vector<ReadCompletion> completed;
  EXPECT_EQ((*reader)->poll(completed), 0u);
  EXPECT_TRUE(ops.calls().empty());
  EXPECT_EQ((*reader)->wait_any(completed), 1u);
  EXPECT_EQ(completed[0].ticket, first);
  while ((*reader)->wait_any(completed) > 0) {
  }
  EXPECT_EQ(order(), (std::vector<int>{1, 1, 2, 2, 0, 0}));
  EXPECT_EQ((*reader)->wait_any(completed), 0u) << "nothing is outstanding";
}

TEST_F(Order, APackedRecordIsReadStraightIntoItsSlot) {
  // Aligned in file and slot: the reads go to the slot itself, whatever the buffers are.
  auto reader = RecordReader::open(shards.paths, {ReadBackend::kThreads, true, 2, kRecord}, &ops);
  ASSERT_TRUE(reader);
  submit(**reader, 1, ReadPriority::kDemand);
  std::vector<ReadCompletion> completed;
  (*reader)->wait_any(completed);
  ASSERT_EQ(completed.size(), 1u);
  ASSERT_EQ(ops.calls().size(), 1u);
  EXPECT_EQ(ops.calls()[0].bytes, kRecord);
  EXPECT_EQ(ops.calls()[0].dst, slots[1].data());
}

}  // namespace
}  // namespace colibri::experts_io

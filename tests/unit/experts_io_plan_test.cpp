// Slab plans, slot layouts and reads: pure functions, on made-up records and on the headers of the tree's models.
#include <gtest/gtest.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <limits>
#include <set>

#include "base/memory_sample.h"
#include "experts/slab_arena.h"
#include "experts_io_support.h"
#include "format/config.h"

namespace colibri::experts_io {
namespace {

constexpr std::uint64_t kMega = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// ---- slabs

TEST(SlabPlan, StaysInsideTheBudgetAndUsesIt) {
  for (const std::uint64_t slot : {std::uint64_t{4096}, std::uint64_t{20480}, std::uint64_t{21'237'760}, 3 * kMega})
    for (const std::uint64_t budget : {slot + 16384, 7 * slot, 100 * slot + 12345, 64 * kMega + 1})
      for (const std::uint64_t longest : {round_up(slot, kSlabAlignment), 5 * slot + 20000, 48 * kMega, kUnlimited}) {
        if (budget < round_up(slot, kSlabAlignment) || longest < round_up(slot, kSlabAlignment)) continue;
        const auto plan = plan_slabs(budget, slot, kUnlimited, longest);
        ASSERT_TRUE(plan) << plan.error().message;
        EXPECT_LE(plan->total_bytes(), budget);
        EXPECT_GE(plan->slots, 1u);
        EXPECT_EQ(ceil_div(static_cast<std::int64_t>(plan->slots), static_cast<std::int64_t>(plan->slots_per_slab)),
                  static_cast<std::int64_t>(plan->slab_bytes.size()));
        std::uint64_t capacity = 0;
        for (std::size_t i = 0; i < plan->slab_bytes.size(); ++i) {
          const std::uint64_t bytes = plan->slab_bytes[i];
          EXPECT_LE(bytes, longest);
          EXPECT_EQ(bytes % kSlabAlignment, 0u);
          const bool last = i + 1 == plan->slab_bytes.size();
          const std::uint64_t slots = last ? plan->slots - i * plan->slots_per_slab : plan->slots_per_slab;
          EXPECT_GE(bytes, slots * slot);
          EXPECT_LT(bytes, slots * slot + kSlabAlignment);
          capacity += slots;
        }
        EXPECT_EQ(capacity, plan->slots);
        // What is left would not hold another slot.
        EXPECT_LT(budget - plan->total_bytes(), slot + kSlabAlignment);
      }
}

TEST(SlabPlan, NoMoreSlotsThanExperts) {
  const auto plan = plan_slabs(kUnlimited, 3 * kMega, 10, 12 * kMega);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->slots, 10u);
  EXPECT_EQ(plan->slab_bytes, (std::vector<std::uint64_t>{12 * kMega, 12 * kMega, 6 * kMega}));
}

TEST(SlabPlan, SixtyFourBits) {
  // 412 GB of experts in buffers of at most 36 GB.
  const auto plan = plan_slabs(412'000'000'000, 21'237'760, 19456, 36'000'000'000);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->slots_per_slab, 1695u);
  EXPECT_EQ(plan->slots, 412'000'000'000 / 21'237'760);
  EXPECT_EQ(plan->slab_bytes.size(), 12u);
}

TEST(SlabPlan, SaysWhatIsTooSmall) {
  const auto budget = plan_slabs(3 * kMega - 1, 3 * kMega, 10, kUnlimited);
  ASSERT_FALSE(budget);
  EXPECT_NE(budget.error().message.find("3145727 bytes are too few, one expert needs 3145728"), std::string::npos);
  const auto device = plan_slabs(kUnlimited, 3 * kMega, 10, 2 * kMega);
  ASSERT_FALSE(device);
  EXPECT_NE(device.error().message.find("the device allows at most 2097152"), std::string::npos);
}

TEST(SlabArena, SlotsAreDisjointAlignedAndWritable) {
  const auto plan = plan_slabs(11 * kMega, 20480 * 50, 9, 3 * kMega);
  ASSERT_TRUE(plan);
  ASSERT_GT(plan->slab_bytes.size(), 2u);
  ThreadTeam team(2);
  auto arena = SlabArena::allocate(*plan, &team);
  ASSERT_TRUE(arena) << arena.error().message;
  const SlabArena moved = std::move(*arena);
  ASSERT_EQ(moved.slots(), plan->slots);
  for (const auto slab : moved.slabs()) EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slab.data()) % kSlabAlignment, 0u);
  for (std::uint64_t i = 0; i < moved.slots(); ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(moved.slot(i)) % kDirectAlignment, 0u);
    std::memset(moved.slot(i), static_cast<int>(i + 1), moved.slot_bytes());
  }
  for (std::uint64_t i = 0; i < moved.slots(); ++i) {
    EXPECT_EQ(moved.slot(i)[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(moved.slot(i)[moved.slot_bytes() - 1], static_cast<std::byte>(i + 1));
  }
}

// Whole pages inside the slot are gone, and come back empty; the neighbours keep every byte.
TEST(SlabArena, ASlotGivenBackTakesNoMemoryAndNothingFromItsNeighbours) {
  constexpr std::uint64_t kSlot = (std::uint64_t{8} << 20) + 64;
  const auto plan = plan_slabs(11 * kSlot, kSlot, 10, ~std::uint64_t{0});
  ASSERT_TRUE(plan);
  auto arena = SlabArena::allocate(*plan, nullptr);
  ASSERT_TRUE(arena) << arena.error().message;
  ASSERT_EQ(arena->slots(), 10u);
  for (std::uint64_t i = 0; i < 10; ++i) std::memset(arena->slot(i), static_cast<int>(i + 1), kSlot);
  const std::uint64_t before = sample_memory().value().footprint;
  for (std::uint64_t i = 1; i < 9; ++i) EXPECT_TRUE(arena->give_back(i));
  EXPECT_LE(sample_memory().value().footprint + 7 * kSlot, before);
  for (const std::uint64_t i : {std::uint64_t{0}, std::uint64_t{9}}) {
    const std::vector<std::byte> whole(kSlot, static_cast<std::byte>(i + 1));
    EXPECT_EQ(std::memcmp(arena->slot(i), whole.data(), kSlot), 0) << i;
  }
  for (std::uint64_t i = 1; i < 9; ++i) {
    EXPECT_EQ(arena->slot(i)[kSlot / 2], std::byte{0});
    std::memset(arena->slot(i), 7, kSlot);
    EXPECT_EQ(arena->slot(i)[kSlot / 2], std::byte{7});
  }
}

#if defined(__linux__)
// The system call itself: sanitizers make nothing of the library's mlock.
TEST(SlabArena, ASlotThatTheSystemKeepsIsSaidToBeKept) {
  constexpr std::uint64_t kSlot = std::uint64_t{1} << 20;
  const auto plan = plan_slabs(2 * kSlot, kSlot, 2, ~std::uint64_t{0});
  ASSERT_TRUE(plan);
  auto arena = SlabArena::allocate(*plan, nullptr);
  ASSERT_TRUE(arena) << arena.error().message;
  std::byte* const locked = arena->slot(1) + kSlot / 2;
  if (::syscall(SYS_mlock, locked, 1) != 0) GTEST_SKIP() << "no page may be locked here";
  EXPECT_FALSE(arena->give_back(1));
  EXPECT_TRUE(arena->give_back(0));
  ::syscall(SYS_munlock, locked, 1);
  EXPECT_TRUE(arena->give_back(1));
}
#endif

TEST(SlabArena, AnImpossibleSizeIsAnError) {
  SlabPlan plan;
  plan.slot_bytes = plan.slots = plan.slots_per_slab = 1;
  plan.slab_bytes = {std::uint64_t{1} << 60};
  const auto arena = SlabArena::allocate(plan, nullptr);
  ASSERT_FALSE(arena);
  EXPECT_NE(arena.error().message.find("use a smaller --ram"), std::string::npos);
}

// ---- records

// What must hold for every plan: parts lie inside their runs and, without overlap, inside the slot.
void check_plan(const ReadPlan& plan) {
  EXPECT_EQ(plan.slot_bytes % kDirectAlignment, 0u);
  std::set<std::uint64_t> data_places;
  std::size_t parts = 0;
  std::uint64_t taken = 0;  // end of the runs so far
  for (const ReadRun& run : plan.runs()) {
    const std::uint64_t align = run.in_place && run.offset % kWeightAlignment == 0 ? kDirectAlignment : 1;
    std::uint64_t last = 0;
    for (const ReadPart& part : plan.parts().subspan(run.first_part, run.part_count)) {
      ++parts;
      EXPECT_EQ(part.source.shard, run.shard);
      EXPECT_GE(part.source.offset, run.offset);
      EXPECT_LE(part.source.offset + part.source.bytes, run.offset + run.bytes);
      last = std::max(last, part.source.offset + part.source.bytes);
      EXPECT_EQ(part.slot_offset % kWeightAlignment, 0u);
      EXPECT_GE(part.slot_offset, taken);
      EXPECT_LE(part.slot_offset + part.source.bytes * (part.widen ? 2 : 1) + kReadSlack, plan.slot_bytes);
      if (run.in_place) {
        EXPECT_EQ(part.slot_offset - run.slot_offset, part.source.offset - run.offset);
      }
      if (run.in_place) {
        EXPECT_FALSE(part.widen);
      }
    }
    EXPECT_EQ(last, run.offset + run.bytes);
    if (align > 1) {
      EXPECT_EQ(run.slot_offset % align, run.offset % align);
      EXPECT_GE(run.slot_offset / align * align, taken);
    }
    for (const ReadPart& part : plan.parts().subspan(run.first_part, run.part_count))
      taken = std::max(taken, part.slot_offset + part.source.bytes * (part.widen ? 2 : 1));
    if (run.in_place) taken = std::max(taken, round_up(run.slot_offset + run.bytes, align));
    EXPECT_LE(taken, plan.slot_bytes);
  }
  EXPECT_EQ(parts, plan.parts().size());
}

TEST(ReadPlan, AnExistingContainerIsTwoReads) {
  // GLM-5.2 as int4-g64: three blobs together, scales far in front of them, sorted by name (down, gate, up).
  const std::uint64_t blob = 6'291'456, scales = 786'432, s = 5'000'008, d = 900'000'072;
  ExpertRecord record;
  record.down = source_at({3, d, blob}, {3, s, scales});
  record.gate = source_at({3, d + blob, blob}, {3, s + scales, scales});
  record.up = source_at({3, d + 2 * blob, blob}, {3, s + 2 * scales, scales});
  const ReadPlan plan = plan_record(record, {4, 5});
  check_plan(plan);
  ASSERT_EQ(plan.runs().size(), 2u);
  EXPECT_EQ(plan.runs()[0].offset, s);
  EXPECT_EQ(plan.runs()[0].bytes, 3 * scales);
  EXPECT_EQ(plan.runs()[1].offset, d);
  EXPECT_EQ(plan.runs()[1].bytes, 3 * blob);
  EXPECT_TRUE(plan.runs()[0].in_place);
  EXPECT_TRUE(plan.runs()[1].in_place);
  EXPECT_EQ(plan.read_bytes(), 3 * (blob + scales));
  EXPECT_LE(plan.slot_bytes, 3 * (blob + scales) + 2 * 4096);
}

TEST(ReadPlan, APackedRecordIsOneReadWithoutACopy) {
  const std::uint64_t start = 7 * 16384, blob = 6'291'456, scales = 786'432;
  ExpertRecord record;
  std::uint64_t at = start;
  for (MatrixSource* const source : {&record.gate, &record.up, &record.down}) {
    *source = source_at({0, at, blob}, {0, at + blob, scales});
    at += blob + scales;
  }
  const ReadPlan plan = plan_record(record, {});
  check_plan(plan);
  ASSERT_EQ(plan.runs().size(), 1u);
  EXPECT_TRUE(plan.runs()[0].in_place);
  EXPECT_EQ(plan.runs()[0].slot_offset, 0u);
  EXPECT_EQ(plan.parts()[0].slot_offset, 0u);
}

TEST(ReadPlan, GapsAreMergedUpToTheLimit) {
  for (const std::uint64_t gap : {std::uint64_t{0}, kMergeGap, kMergeGap + 1}) {
    ExpertRecord record;
    record.gate = source_at({0, 640, 64000});
    record.up = source_at({0, 640 + 64000 + gap, 64000});
    record.down = source_at({0, 640 + 2 * (64000 + gap), 64000});
    const ReadPlan plan = plan_record(record, {});
    check_plan(plan);
    EXPECT_EQ(plan.runs().size(), gap <= kMergeGap ? 1u : 3u);
  }
}

TEST(ReadPlan, AnyOrderAnyShardAnyOffset) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    ExpertRecord record;
    for (MatrixSource* const source : {&record.gate, &record.up, &record.down}) {
      const std::uint64_t step = (random() % 3 == 0) ? 1 : 64;
      FileRange data{static_cast<std::int32_t>(random() % 2), random() % 3000 * step, 1 + random() % 40000};
      FileRange scales{static_cast<std::int32_t>(random() % 2), random() % 3000 * step, 4 * (random() % 2000)};
      *source = source_at(data, scales, random() % 4 == 0);
    }
    const ReadPlan plan = plan_record(record, {}, random() % 2 ? kMergeGap : 0);
    check_plan(plan);
    // Parts and scales belong to the matrix that they came from.
    const MatrixSource* const sources[] = {&record.gate, &record.up, &record.down};
    for (const ReadPart& part : plan.parts()) {
      const FileRange& expected = part.scales ? sources[part.matrix]->scales : sources[part.matrix]->data;
      EXPECT_EQ(part.source.offset, expected.offset);
      EXPECT_EQ(part.source.bytes, expected.bytes);
      EXPECT_EQ(part.source.shard, expected.shard);
    }
    if (testing::Test::HasFailure()) FAIL() << "round " << round;
  }
}

TEST(ReadPlan, FinishWidensAndFindsBadScales) {
  ExpertRecord record;
  record.gate = source_at({0, 0, 64}, {0, 64, 16}, true);
  record.up = source_at({0, 128, 64}, {0, 192, 16});
  record.down = source_at({0, 256, 64});
  const ReadPlan plan = plan_record(record, {});
  AlignedBytes slot(plan.slot_bytes);
  std::byte* const narrow = [&] {
    for (const ReadPart& part : plan.parts())
      if (part.widen) return slot.data() + part.raw_offset();
    return static_cast<std::byte*>(nullptr);
  }();
  ASSERT_NE(narrow, nullptr);
  std::uint16_t values[8];
  for (int i = 0; i < 8; ++i) values[i] = static_cast<std::uint16_t>(0x3f80 + i);
  std::memcpy(narrow, values, sizeof(values));
  ASSERT_FALSE(finish_record(plan, slot.data()));
  const ExpertWeights weights = weights_in_slot(plan, slot.data());
  for (int i = 0; i < 8; ++i) EXPECT_EQ(weights.gate.scales[i], f32_from_bf16(values[i]));
  EXPECT_EQ(weights.down.scales, nullptr);

  const_cast<float*>(weights.up.scales)[2] = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(narrow, values, sizeof(values));
  const auto bad = finish_record(plan, slot.data());
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->part->matrix, 1);
  EXPECT_EQ(bad->index, 2u);
}

// ---- the tree's models, read through plans and compared with Checkpoint::read_matrix

class ModelRecords : public testing::TestWithParam<std::string> {};

TEST_P(ModelRecords, AreReadAsTheCheckpointReadsThem) {
  const std::filesystem::path dir = std::filesystem::path(COLIBRI_SOURCE_DIR) / GetParam();
  const auto checkpoint = Checkpoint::open(dir);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto config = ModelConfig::load(dir);
  ASSERT_TRUE(config) << config.error().message;
  std::vector<std::filesystem::path> paths;
  for (const auto& shard : checkpoint->shards()) paths.push_back(shard.path);
  TestOps ops;
  ReaderOptions options;
  options.direct = true;
  auto reader = RecordReader::open(paths, options, &ops);
  ASSERT_TRUE(reader) << reader.error().message;

  int records = 0;
  const std::int64_t hidden = config->hidden_size, inner = config->moe_intermediate_size;
  for (std::int64_t layer = 0; layer < config->layers + config->mtp_layers; ++layer)
    for (std::int32_t e = 0; e < config->experts; ++e) {
      const std::string name = fmt::format("model.layers.{}.mlp.experts.{}.", layer, e);
      if (!checkpoint->find(name + "gate_proj.weight")) continue;
      ExpertRecord record;
      record.gate = checkpoint->find_matrix(name + "gate_proj.weight", inner, hidden).value();
      record.up = checkpoint->find_matrix(name + "up_proj.weight", inner, hidden).value();
      record.down = checkpoint->find_matrix(name + "down_proj.weight", hidden, inner).value();
      const ReadPlan plan = plan_record(record, {layer, e});
      check_plan(plan);
      if (record.gate.scales.bytes > 0) {
        EXPECT_LE(plan.runs().size(), 2u) << name;
      }
      AlignedBytes slot(plan.slot_bytes, kDirectAlignment);
      (*reader)->submit(plan, slot.data(), ReadPriority::kDemand);
      std::vector<ReadCompletion> completed;
      ASSERT_EQ((*reader)->wait_any(completed), 1u);
      ASSERT_TRUE(completed[0].result) << completed[0].result.error().message;
      const ExpertWeights weights = weights_in_slot(plan, slot.data());
      const std::pair<const MatrixSource*, const Matrix*> pairs[] = {
          {&record.gate, &weights.gate}, {&record.up, &weights.up}, {&record.down, &weights.down}};
      for (const auto& [source, got] : pairs) {
        AlignedBytes memory(Checkpoint::matrix_bytes(*source) + kReadSlack);
        const auto expected = checkpoint->read_matrix(*source, memory.data());
        ASSERT_TRUE(expected) << expected.error().message;
        EXPECT_EQ(std::memcmp(got->data, expected->data, source->data.bytes), 0) << name;
        const std::uint64_t scale_bytes = source->scales.bytes * (source->scales_are_bf16 ? 2 : 1);
        if (scale_bytes > 0) {
          EXPECT_EQ(std::memcmp(got->scales, expected->scales, scale_bytes), 0) << name;
        }
        EXPECT_EQ(got->format, expected->format);
        EXPECT_EQ(got->rows, expected->rows);
        EXPECT_EQ(got->row_bytes, expected->row_bytes);
        EXPECT_EQ(got->scale_stride, expected->scale_stride);
      }
      ++records;
    }
  EXPECT_GE(records, config->experts);
}

INSTANTIATE_TEST_SUITE_P(Models, ModelRecords,
                         testing::Values("models/demo", "tests/oracle/cases/glm-dsa-tiny", "tests/oracle/cases/glm-dsa-tiny-g64",
                                         "tests/oracle/cases/glm-dsa-tiny-i4row", "tests/oracle/cases/glm-dsa-tiny-mixed",
                                         "tests/oracle/cases/glm-odd-dims"),
                         [](const auto& instance) {
                           std::string name;
                           for (const char c : std::filesystem::path(instance.param).filename().string())
                             name += c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace colibri::experts_io

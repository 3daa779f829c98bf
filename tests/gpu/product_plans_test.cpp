// Launches of products and experts at the sizes of GLM-5.2, up to steps of 200,000 rows: every output of every row is somebody's,
// nothing overflows, no launch is larger than a device takes. Nothing is computed.
#include <gtest/gtest.h>

#include "base/aligned.h"
#include "gpu/experts.h"
#include "gpu/kernels/dot_shape.h"
#include "gpu/kernels/products.h"
#include "recording_device.h"

namespace colibri::gpu::test {
namespace {

using Launches = std::vector<RecordingDevice::Launch>;

// An address space that nobody touches, large enough for any of this.
const auto kMemory = std::uintptr_t{1} << 32;
constexpr std::uint64_t kMemoryBytes = std::uint64_t{1} << 37;
constexpr Address kSomewhere = std::uint64_t{1} << 33;
constexpr std::int64_t kRows[] = {1, 2, 3, 4, 5, 15, 16, 17, 64, 512, 4096, 200000};

Launches record(const std::function<void(Encoder&)>& encode) {
  RecordingDevice device;
  EXPECT_TRUE(device.register_region(reinterpret_cast<void*>(kMemory), kMemoryBytes));
  KernelSet kernels(device);
  EncoderCounts counts;
  Encoder encoder(kernels, counts);
  encode(encoder);
  EXPECT_FALSE(encoder.error());
  EXPECT_EQ(counts.dispatches, device.launches().size());
  EXPECT_FALSE(device.launches().empty());
  return device.launches();
}

Matrix matrix(std::int64_t rows, std::int64_t cols) {
  Matrix m;
  m.format = WeightFormat::kInt4Grouped;
  m.group = 64;
  m.rows = rows;
  m.cols = cols;
  m.row_bytes = format_row_bytes(m.format, cols);
  m.scale_stride = format_row_scales(m.format, cols, m.group);
  m.data = reinterpret_cast<const std::byte*>(kMemory);
  m.scales = reinterpret_cast<const float*>(kMemory);
  return m;
}

// Threadgroups in x over the launches of one operation, which follow each other without gaps.
template <class Args>
std::int64_t groups_in_x(const Launches& launches) {
  std::int64_t next = 0;
  for (const RecordingDevice::Launch& l : launches) {
    EXPECT_EQ(l.as<Args>().first_group, next);
    EXPECT_LE(l.groups.x, kMaxGroupsX);
    EXPECT_EQ(l.groups.y, 1u);
    EXPECT_EQ(l.threads, kGroupThreads);
    next += l.groups.x;
  }
  EXPECT_EQ(static_cast<std::int64_t>(launches.size()), ceil_div(next, kMaxGroupsX));
  return next;
}

// Every pair of a block of outputs and a block of rows once, for every head.
void expect_covers(const Launches& launches, std::int64_t outputs, std::int64_t per_group, std::int64_t rows,
                   std::int64_t heads) {
  const auto a = launches[0].as<ProductArgs>();
  const std::int64_t at_once = launches[0].constants[1], row_blocks = a.row_blocks;
  EXPECT_EQ(row_blocks, ceil_div(rows, at_once));
  EXPECT_EQ(a.rows, rows);
  EXPECT_EQ(groups_in_x<ProductArgs>(launches), row_blocks * ceil_div(outputs, per_group));
  for (const RecordingDevice::Launch& l : launches) EXPECT_EQ(l.groups.z, heads);
}

TEST(ProductPlans, EveryMatrixOfTheModel) {
  const struct {
    const char* name;
    std::int64_t outputs, inputs;
  } kMatrices[] = {{"q_a", 2048, 6144},    {"q_b", 16384, 2048},  {"kv_a", 576, 6144},           {"o", 6144, 16384},
                   {"dense", 12288, 6144}, {"router", 256, 6144}, {"index queries", 4096, 2048}, {"index keys", 128, 6144},
                   {"head", 154880, 6144}};
  for (const auto& m : kMatrices)
    for (const std::int64_t rows : kRows) {
      SCOPED_TRACE(fmt::format("{}, {} rows", m.name, rows));
      const Launches launches = record([&](Encoder& e) {
        product(e, {}, matrix(m.outputs, m.inputs), {kSomewhere, rows, m.inputs, m.inputs}, kSomewhere, m.outputs);
      });
      expect_covers(launches, m.outputs, kGroupOutputs, rows, 1);
      EXPECT_EQ(launches[0].function, rows < 16 ? "product" : "product_tile");
      const auto a = launches[0].as<ProductArgs>();
      EXPECT_EQ(a.count, m.outputs);
      EXPECT_EQ(a.y_stride, static_cast<u64>(m.outputs));
      EXPECT_EQ(a.x_stride, static_cast<u64>(m.inputs));
      EXPECT_EQ(a.w.row_bytes, static_cast<u64>(m.inputs / 2));
      EXPECT_EQ(a.w.aligned, 1u);
    }
}

// One row costs one row's work; up to four share what was loaded.
TEST(ProductPlans, RowsAtOnce) {
  EXPECT_EQ(plan_product({}, 100, 1, 1).at_once, 1);
  EXPECT_EQ(plan_product({}, 100, 2, 1).at_once, 2);
  EXPECT_EQ(plan_product({}, 100, 3, 1).at_once, 4);
  EXPECT_EQ(plan_product({}, 100, 4, 1).row_blocks, 1);
  EXPECT_EQ(plan_product({}, 100, 7, 1).row_blocks, 2);
  EXPECT_FALSE(plan_product({}, 100, 15, 1).tiled);
  EXPECT_TRUE(plan_product({}, 100, 16, 1).tiled);
  EXPECT_TRUE(plan_product({3}, 100, 3, 1).tiled);
  EXPECT_FALSE(plan_product({1000}, 100, 999, 1).tiled);
}

TEST(ProductPlans, HeadsOfAbsorbedAttention) {
  constexpr std::int64_t kHeads = 64, kNope = 192, kValue = 256, kRope = 64, kLatent = 512;
  const Matrix kv_b = matrix(kHeads * (kNope + kValue), kLatent);
  for (const std::int64_t rows : kRows) {
    SCOPED_TRACE(rows);
    const Launches queries = record([&](Encoder& e) {
      transposed_head_products(e, kv_b, {kHeads, kNope + kValue, 0, kNope}, {kSomewhere, rows, kNope, kHeads * (kNope + kRope)},
                               kNope + kRope, kSomewhere, kHeads * (kLatent + kRope), kLatent + kRope);
    });
    expect_covers(queries, kLatent, kGroupThreads, rows, kHeads);
    EXPECT_EQ(queries[0].as<ProductArgs>().count, kNope);
    const Launches values = record([&](Encoder& e) {
      head_products(e, {}, kv_b, {kHeads, kNope + kValue, kNope, kValue}, {kSomewhere, rows, kLatent, kHeads * kLatent}, kLatent,
                    kSomewhere, kHeads * kValue, kValue);
    });
    expect_covers(values, kValue, kGroupOutputs, rows, kHeads);
    const auto a = values[0].as<ProductArgs>();
    EXPECT_EQ(a.first_row, kNope);
    EXPECT_EQ(a.head_rows, kNope + kValue);
    EXPECT_EQ(a.y_head, static_cast<u64>(kValue));
  }
}

TEST(ExpertPlans, EveryTileHasItsOutputs) {
  const ExpertShape shape{.hidden = 6144,
                          .intermediate = 2048,
                          .experts = 256,
                          .per_token = 8,
                          .gate = WeightFormat::kInt4Grouped,
                          .up = WeightFormat::kInt4Grouped,
                          .down = WeightFormat::kInt8Row};
  for (const std::int64_t rows : kRows) {
    SCOPED_TRACE(rows);
    const std::int64_t slots = rows * shape.per_token, tiles = max_expert_tiles(shape, rows);
    // Enough when one expert is chosen by every row and when all are, and no more than experts' last tiles need.
    EXPECT_GE(tiles, shape.per_token * ceil_div(rows, kExpertTileRows));
    EXPECT_GE(tiles, std::min(slots, shape.experts));
    EXPECT_LE(tiles, slots / kExpertTileRows + shape.experts);
    EXPECT_TRUE(rows > 1 || tiles == shape.per_token);
    const ExpertGroups groups = place_expert_groups(shape, rows, kSomewhere);
    EXPECT_GE(groups.row_of, groups.slot_of + 4 * static_cast<u64>(slots));
    EXPECT_GE(groups.tiles, groups.row_of + 4 * static_cast<u64>(slots));
    EXPECT_GE(groups.tile_count, groups.tiles + sizeof(ExpertTile) * static_cast<u64>(tiles));
    EXPECT_LE(groups.tile_count + 4, kSomewhere + expert_groups_bytes(shape, rows));

    const u32 most = rows == 1 ? 1 : rows <= 4 ? 4 : 8;
    const Launches swiglu = record([&](Encoder& e) {
      expert_swiglu(e, shape, kSomewhere, groups, {kSomewhere, rows, shape.hidden, shape.hidden}, kSomewhere);
    });
    EXPECT_EQ(groups_in_x<ExpertArgs>(swiglu), tiles * 2048 / kGroupOutputs);
    EXPECT_EQ(swiglu[0].as<ExpertArgs>().tiles_launched, tiles);
    EXPECT_EQ(swiglu[0].constants, (std::vector<u32>{kStoredInt4, kStoredInt4, most}));
    const Launches down = record([&](Encoder& e) { expert_down(e, shape, kSomewhere, groups, rows, kSomewhere, kSomewhere); });
    EXPECT_EQ(groups_in_x<ExpertArgs>(down), tiles * 6144 / kGroupOutputs);
    EXPECT_EQ(down[0].constants[0], kStoredInt8);
    const Launches sums = record([&](Encoder& e) {
      combine_experts(e, shape, groups, rows, kSomewhere, kSomewhere, kSomewhere, kSomewhere, kSomewhere + 64, kSomewhere);
    });
    EXPECT_EQ(groups_in_x<CombineArgs>(sums), rows * 6144 / kGroupThreads);
  }
}

}  // namespace
}  // namespace colibri::gpu::test

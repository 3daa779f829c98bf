// Routed experts on the device against the scalar kernels, one slot at a time, bit for bit.
#include "gpu/experts.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "device_matrix.h"
#include "gpu/kernels/step.h"

namespace colibri::gpu::test {
namespace {

template <class T>
T& at(std::span<T> values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

class ExpertsTest : public GpuTest {
 protected:
  std::int64_t pick(std::initializer_list<std::int64_t> values) { return values.begin()[rng_() % values.size()]; }

  // per_token distinct experts for each row. Some experts are popular, so that tiles of every size come up.
  std::vector<std::int32_t> random_choice(const ExpertShape& shape, std::int64_t rows) {
    std::vector<std::int32_t> chosen;
    std::vector<std::int32_t> order(static_cast<std::size_t>(shape.experts));
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t r = 0; r < rows; ++r) {
      if (rng_() % 3 == 0 || r == 0) std::shuffle(order.begin(), order.end(), rng_);
      for (std::int64_t i = 0; i < shape.per_token / 2; ++i)
        std::swap(order[static_cast<std::size_t>(i)], order[rng_() % order.size()]);
      chosen.insert(chosen.end(), order.begin(), order.begin() + shape.per_token);
    }
    return chosen;
  }
};

TEST_F(ExpertsTest, EveryExpertsSlotsStandTogether) {
  for (const std::int64_t experts : {8, 24, 168, 256, 257, 600})
    for (const std::int64_t per_token : {1, 2, 8})
      for (const std::int64_t rows : {1, 2, 3, 4, 7, 16, 17, 64, 300}) {
        SCOPED_TRACE(fmt::format("{} experts, {} a row, {} rows", experts, per_token, rows));
        ExpertShape shape{.experts = experts, .per_token = per_token};
        const std::int64_t slots = rows * per_token, most = max_expert_tiles(shape, rows);
        const auto bytes = static_cast<std::int64_t>(expert_groups_bytes(shape, rows));
        DeviceArena arena(device(), static_cast<std::uint64_t>(bytes + 4 * slots) + 4096);
        const auto chosen = arena.block(random_choice(shape, rows));
        const auto memory = arena.block<std::byte>(bytes);
        std::fill(memory.begin(), memory.end(), std::byte{0xee});
        const ExpertGroups groups = place_expert_groups(shape, rows, arena.at(memory));
        run([&](Encoder& e) { group_by_expert(e, shape, rows, arena.at(chosen), groups); });
        EXPECT_TRUE(arena.guards_hold());
        const auto part = [&]<class T>(Address a, std::int64_t count, T) {
          return std::span<const T>(reinterpret_cast<const T*>(memory.data() + (a - groups.slot_of)),
                                    static_cast<std::size_t>(count));
        };
        const auto slot_of = part(groups.slot_of, slots, i32{}), row_of = part(groups.row_of, slots, i32{});
        const u32 count = part(groups.tile_count, 1, u32{})[0];
        ASSERT_LE(count, most);
        const auto tiles = part(groups.tiles, most, ExpertTile{});

        std::map<std::int32_t, std::vector<std::int64_t>> want;  // by rising expert: its (row, rank) pairs in order
        for (std::int64_t i = 0; i < slots; ++i) want[at(chosen, i)].push_back(i);
        std::int64_t slot = 0;
        u32 tile = 0;
        for (const auto& [expert, pairs] : want) {
          for (std::size_t first = 0; first < pairs.size(); first += kExpertTileRows, ++tile) {
            ASSERT_LT(tile, count);
            EXPECT_EQ(tiles[tile].expert, static_cast<u32>(expert));
            EXPECT_EQ(tiles[tile].first, static_cast<u32>(slot) + first);
            EXPECT_EQ(tiles[tile].count, std::min<std::size_t>(kExpertTileRows, pairs.size() - first));
          }
          for (const std::int64_t i : pairs) {
            ASSERT_EQ(at(slot_of, i), slot);
            ASSERT_EQ(at(row_of, slot), i / per_token);
            ++slot;
          }
        }
        ASSERT_EQ(tile, count);
      }
}

// One sparse block with `stored` different experts in memory; expert e uses weights e % stored, so that any number of experts
// costs the memory of a few.
class Block {
 public:
  Block(Device& device, std::mt19937_64& rng, const ExpertShape& s, std::int64_t row_count, std::int64_t stored, bool odd,
        bool wild)
      : shape(s), rows(row_count), arena_(device, bytes(s, row_count, stored)) {
    for (std::int64_t e = 0; e < stored; ++e) {
      const auto matrix = [&](WeightFormat format, std::int64_t outputs, std::int64_t inputs) {
        const std::int64_t unit = stored_bytes(format);
        return device_matrix(arena_, rng,
                             {.format = format,
                              .rows = outputs,
                              .cols = inputs,
                              .group = 64,
                              .offset = odd ? static_cast<std::uint64_t>(3 * unit) : 0,
                              .extra_bytes = odd ? unit : (16 - format_row_bytes(format, inputs) % 16) % 16,
                              .wild = wild});
      };
      gate.push_back(matrix(s.gate, s.intermediate, s.hidden));
      up.push_back(matrix(s.up, s.intermediate, s.hidden));
      down.push_back(matrix(s.down, s.hidden, s.intermediate));
    }
    const std::int64_t slots = rows * s.per_token;
    table = arena_.block<ExpertEntry>(s.experts);
    second_table = arena_.block<ExpertEntry>(s.experts);
    memory = arena_.block<std::byte>(static_cast<std::int64_t>(expert_groups_bytes(s, rows)));
    groups = place_expert_groups(s, rows, address(memory));
    input_stride = s.hidden + (odd ? 3 : 4);
    input = arena_.block<float>(rows * input_stride);
    act = arena_.block<float>(slots * s.intermediate);
    out = arena_.block<float>(slots * s.hidden);
    weights = arena_.block<float>(slots);
    x = arena_.block<float>(rows * s.hidden);
    shared = arena_.block<float>(rows * s.hidden);
    x_out = arena_.block<float>(rows * s.hidden);
    damage = arena_.block<u32>(1);
    for (const auto& values : {input, weights, x, shared})
      for (float& v : values) v = test_float(rng, wild);
    for (const auto& values : {act, out, x_out}) std::fill(values.begin(), values.end(), kPoison);
    damage[0] = 0;
  }
  template <class T>
  Address address(std::span<T> block) const {
    return arena_.at(block);
  }
  void choose(const std::vector<std::int32_t>& ids) { chosen = arena_.block(ids); }
  bool guards_hold() const { return arena_.guards_hold(); }
  const Matrix& of(const std::vector<Matrix>& m, std::int64_t expert) const {
    return m[static_cast<std::size_t>(expert) % m.size()];
  }
  Rows rows_of_input() const { return {address(input), rows, shape.hidden, input_stride}; }

  // Entries of the experts that `there` names; the others are not there.
  void fill(Encoder& e, std::span<ExpertEntry> to, const std::function<bool(std::int64_t)>& there) {
    for (std::int64_t i = 0; i < shape.experts; ++i)
      at(to, i) = there(i) ? ExpertEntry{matrix_args(e, of(gate, i)), matrix_args(e, of(up, i)), matrix_args(e, of(down, i))}
                           : ExpertEntry{};
  }
  void compute(Encoder& e, std::span<ExpertEntry> from) {
    expert_swiglu(e, shape, address(from), groups, rows_of_input(), address(act));
    e.barrier();
    expert_down(e, shape, address(from), groups, rows, address(act), address(out));
    e.barrier();
  }
  void combine(Encoder& e, bool with_shared) {
    combine_experts(e, shape, groups, rows, address(weights), address(out), with_shared ? address(shared) : 0, address(x),
                    address(x_out), address(damage));
  }

  std::int64_t slot_of(std::int64_t row, std::int64_t rank) const {
    i32 slot;
    std::memcpy(&slot, memory.data() + 4 * (row * shape.per_token + rank), 4);
    return slot;
  }
  // What the contract says of outputs [first, last) of one slot's activation.
  std::vector<float> want_act(std::int64_t row, std::int64_t expert, std::int64_t first, std::int64_t last) const {
    const float* from = input.data() + row * input_stride;
    const std::vector<float> g = scalar_products(of(gate, expert), first, last, from, shape.hidden, 1);
    const std::vector<float> u = scalar_products(of(up, expert), first, last, from, shape.hidden, 1);
    std::vector<float> a(static_cast<std::size_t>(last - first));
    find_kernels("scalar")->swiglu(g.data() + first, u.data() + first, a.data(), last - first);
    return a;
  }
  // C8 over whatever `out` holds.
  std::vector<float> want_sums(bool with_shared) const {
    const Kernels& scalar = *find_kernels("scalar");
    std::vector<float> sums(x.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      float* sum = sums.data() + r * shape.hidden;
      for (std::int64_t rank = 0; rank < shape.per_token; ++rank)
        scalar.accumulate(out.data() + slot_of(r, rank) * shape.hidden, at(weights, r * shape.per_token + rank), sum,
                          shape.hidden);
      if (with_shared) scalar.add(sum, shared.data() + r * shape.hidden, sum, shape.hidden);
      scalar.add(x.data() + r * shape.hidden, sum, sum, shape.hidden);
    }
    return sums;
  }

  ExpertShape shape;
  std::int64_t rows, input_stride = 0;
  std::vector<Matrix> gate, up, down;
  std::span<ExpertEntry> table, second_table;
  std::span<std::byte> memory;
  ExpertGroups groups;
  std::span<std::int32_t> chosen;
  std::span<float> input, act, out, weights, x, shared, x_out;
  std::span<u32> damage;

 private:
  static std::uint64_t bytes(const ExpertShape& s, std::int64_t rows, std::int64_t stored) {
    const MatrixShape in{.format = s.gate, .rows = s.intermediate, .cols = s.hidden, .extra_bytes = 16};
    MatrixShape up = in, down{.format = s.down, .rows = s.hidden, .cols = s.intermediate, .extra_bytes = 16};
    up.format = s.up;
    const std::int64_t slots = rows * s.per_token;
    return static_cast<std::uint64_t>(stored) * (matrix_bytes(in) + matrix_bytes(up) + matrix_bytes(down)) +
           expert_groups_bytes(s, rows) + static_cast<std::uint64_t>(2 * s.experts) * sizeof(ExpertEntry) +
           4 * static_cast<std::uint64_t>(slots * (s.intermediate + s.hidden + 2) + rows * (4 * s.hidden + 4)) + 65536;
  }
  DeviceArena arena_;
};

class ExpertBlockTest : public ExpertsTest {
 protected:
  static void expect_same(std::span<const float> want, std::span<const float> got, const char* what) {
    ASSERT_EQ(want.size(), got.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_TRUE(same_bits(want[i], got[i])) << what << " at " << i << ": expected " << want[i] << ", found " << got[i];
  }
  // Every slot of every row.
  static void expect_slots(const Block& b) {
    for (std::int64_t r = 0; r < b.rows; ++r)
      for (std::int64_t rank = 0; rank < b.shape.per_token; ++rank) {
        const std::int64_t slot = b.slot_of(r, rank), expert = at(b.chosen, r * b.shape.per_token + rank);
        const std::vector<float> act = b.want_act(r, expert, 0, b.shape.intermediate);
        expect_same(act, b.act.subspan(static_cast<std::size_t>(slot * b.shape.intermediate), act.size()), "act");
        const std::vector<float> out = scalar_products(b.of(b.down, expert), act.data(), b.shape.intermediate, 1);
        expect_same(out, b.out.subspan(static_cast<std::size_t>(slot * b.shape.hidden), out.size()), "out");
        if (HasFatalFailure()) return;
      }
  }
  // The whole block in one command buffer.
  void check(const ExpertShape& shape, std::int64_t rows, std::int64_t stored, bool odd, bool wild) {
    SCOPED_TRACE(fmt::format("{} {} {}, {} experts, {} a row, {} -> {}, {} rows, odd {}", format_name(shape.gate),
                             format_name(shape.up), format_name(shape.down), shape.experts, shape.per_token, shape.hidden,
                             shape.intermediate, rows, odd));
    Block b(device(), rng_, shape, rows, stored, odd, wild);
    b.choose(random_choice(shape, rows));
    const bool with_shared = rng_() % 2;
    run([&](Encoder& e) {
      b.fill(e, b.table, [](std::int64_t) { return true; });
      group_by_expert(e, shape, rows, b.address(b.chosen), b.groups);
      e.barrier();
      b.compute(e, b.table);
      b.combine(e, with_shared);
    });
    EXPECT_TRUE(b.guards_hold());
    EXPECT_EQ(counts_.dispatches, 4u);
    expect_slots(b);
    const std::vector<float> sums = b.want_sums(with_shared);
    expect_same(sums, b.x_out, "x");
    const bool finite = std::all_of(sums.begin(), sums.end(), [](float v) { return std::isfinite(v); });
    EXPECT_EQ(b.damage[0], finite ? 0u : kDamageFeedForward);
  }
};

TEST_F(ExpertBlockTest, EveryFormatAndRowCount) {
  for (const WeightFormat format : kAllFormats)
    for (const std::int64_t rows : {1, 2, 3, 4, 7, 16, 17}) {
      const ExpertShape shape{.hidden = pick({40, 256, 300}),
                              .intermediate = pick({33, 64, 257}),
                              .experts = 24,
                              .per_token = pick({1, 4, 8}),
                              .gate = format,
                              .up = format,
                              .down = format};
      check(shape, rows, 5, rng_() % 2, rng_() % 4 == 0);
      if (HasFatalFailure()) return;
    }
}

TEST_F(ExpertBlockTest, FormatsMayDiffer) {
  for (int i = 0; i < 24; ++i) {
    const auto format = [&] { return kAllFormats[rng_() % kAllFormats.size()]; };
    const ExpertShape shape{
        .hidden = 288, .intermediate = 96, .experts = 16, .per_token = 4, .gate = format(), .up = format(), .down = format()};
    check(shape, pick({1, 3, 9, 33}), 4, rng_() % 2, false);
    if (HasFatalFailure()) return;
  }
}

TEST_F(ExpertBlockTest, ManyExperts) {
  for (const std::int64_t experts : {24, 168, 256, 257, 600})
    for (const std::int64_t rows : {1, 3, 4, 7, 64}) {
      const ExpertShape shape{.hidden = 192,
                              .intermediate = 64,
                              .experts = experts,
                              .per_token = 8,
                              .gate = WeightFormat::kInt4Grouped,
                              .up = WeightFormat::kInt4Grouped,
                              .down = WeightFormat::kInt4Grouped};
      check(shape, rows, 7, false, false);
      if (HasFatalFailure()) return;
    }
}

// Rows that all choose the same experts fill their tiles.
TEST_F(ExpertBlockTest, FullTiles) {
  const ExpertShape shape{.hidden = 320,
                          .intermediate = 100,
                          .experts = 8,
                          .per_token = 8,
                          .gate = WeightFormat::kInt8Row,
                          .up = WeightFormat::kInt3G64,
                          .down = WeightFormat::kBF16};
  for (const std::int64_t rows : {4, 5, 8, 24}) check(shape, rows, 8, true, false);
}

// Experts that arrive later are computed later, from another table, and nothing changes.
TEST_F(ExpertBlockTest, ArrivalInAnyOrder) {
  for (const std::int64_t rows : {1, 4, 7, 33}) {
    const ExpertShape shape{.hidden = 256,
                            .intermediate = 128,
                            .experts = 24,
                            .per_token = 6,
                            .gate = WeightFormat::kInt4Grouped,
                            .up = WeightFormat::kInt4Grouped,
                            .down = WeightFormat::kInt8Row};
    Block b(device(), rng_, shape, rows, 24, false, false);
    b.choose(random_choice(shape, rows));
    std::vector<bool> early(24);
    for (auto&& v : early) v = rng_() % 2;
    early[static_cast<std::size_t>(b.chosen[0])] = true;
    early[static_cast<std::size_t>(b.chosen[1])] = false;
    run([&](Encoder& e) {
      b.fill(e, b.table, [&](std::int64_t i) { return early[static_cast<std::size_t>(i)]; });
      group_by_expert(e, shape, rows, b.address(b.chosen), b.groups);
      e.barrier();
      b.compute(e, b.table);
    });
    for (std::int64_t i = 0; i < rows * shape.per_token; ++i) {
      const std::int64_t slot = b.slot_of(i / shape.per_token, i % shape.per_token);
      const bool there = early[static_cast<std::size_t>(at(b.chosen, i))];
      EXPECT_EQ(at(b.out, slot * shape.hidden + 5) == kPoison, !there) << slot;
      EXPECT_EQ(at(b.act, slot * shape.intermediate + 5) == kPoison, !there) << slot;
    }
    run([&](Encoder& e) {
      b.fill(e, b.second_table, [&](std::int64_t i) { return !early[static_cast<std::size_t>(i)]; });
      b.compute(e, b.second_table);
      b.combine(e, true);
    });
    EXPECT_TRUE(b.guards_hold());
    expect_slots(b);
    expect_same(b.want_sums(true), b.x_out, "x");
    EXPECT_EQ(b.damage[0], 0u);
  }
}

TEST_F(ExpertBlockTest, WhatIsNotFiniteIsMarked) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const bool in_shared : {false, true}) {
      const ExpertShape shape{.hidden = 130, .intermediate = 32, .experts = 4, .per_token = 2};
      Block b(device(), rng_, shape, 3, 4, false, false);
      b.choose(random_choice(shape, 3));
      (in_shared ? b.shared : b.x)[static_cast<std::size_t>(rng_() % b.x.size())] = bad;
      b.damage[0] = kDamageAttention;
      run([&](Encoder& e) {
        b.fill(e, b.table, [](std::int64_t) { return true; });
        group_by_expert(e, shape, 3, b.address(b.chosen), b.groups);
        e.barrier();
        b.compute(e, b.table);
        b.combine(e, true);
      });
      EXPECT_EQ(b.damage[0], kDamageAttention | kDamageFeedForward);
    }
}

// Experts of GLM-5.2's size, three in memory for all 256. Slots and outputs are sampled.
TEST_F(ExpertBlockTest, LargeExperts) {
  const ExpertShape shape{.hidden = 6144,
                          .intermediate = 2048,
                          .experts = 256,
                          .per_token = 8,
                          .gate = WeightFormat::kInt4Grouped,
                          .up = WeightFormat::kInt4Grouped,
                          .down = WeightFormat::kInt4Grouped};
  for (const std::int64_t rows : {1, 3, 4, 7, 64}) {
    SCOPED_TRACE(rows);
    ExpertShape s = shape;
    s.per_token = rows == 1 ? 8 : rows == 64 ? 1 : 3;
    Block b(device(), rng_, s, rows, 2, false, false);
    b.choose(random_choice(s, rows));
    run([&](Encoder& e) {
      b.fill(e, b.table, [](std::int64_t) { return true; });
      group_by_expert(e, s, rows, b.address(b.chosen), b.groups);
      e.barrier();
      b.compute(e, b.table);
      b.combine(e, true);
    });
    EXPECT_TRUE(b.guards_hold());
    for (int sample = 0; sample < 24; ++sample) {
      const auto i = static_cast<std::int64_t>(rng_() % static_cast<std::uint64_t>(rows * s.per_token));
      const std::int64_t row = i / s.per_token, slot = b.slot_of(row, i % s.per_token), expert = at(b.chosen, i);
      const auto first = static_cast<std::int64_t>(rng_() % 2040), output = static_cast<std::int64_t>(rng_() % 6136);
      expect_same(b.want_act(row, expert, first, first + 8),
                  b.act.subspan(static_cast<std::size_t>(slot * s.intermediate + first), 8), "act");
      const std::vector<float> out =
          scalar_products(b.of(b.down, expert), output, output + 8, b.act.data() + slot * s.intermediate, s.intermediate, 1);
      expect_same(std::span(out).subspan(static_cast<std::size_t>(output), 8),
                  b.out.subspan(static_cast<std::size_t>(slot * s.hidden + output), 8), "out");
      ASSERT_FALSE(HasFatalFailure());
    }
    expect_same(b.want_sums(true), b.x_out, "x");
    EXPECT_EQ(std::count(b.out.begin(), b.out.end(), kPoison), 0);
    EXPECT_EQ(std::count(b.act.begin(), b.act.end(), kPoison), 0);
  }
}

}  // namespace
}  // namespace colibri::gpu::test

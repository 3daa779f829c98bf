#include "selftest/checks.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/aligned.h"
#include "cpu/kernels.h"
#include "gpu/experts.h"
#include "gpu/kernels/probe.h"
#include "gpu/kernels/step.h"
#include "gpu/products.h"
#include "gpu/router.h"
#include "gpu/rowwise.h"
#include "numerics/elementary.h"
#include "numerics/norm.h"
#include "numerics/selection.h"

namespace colibri::selftest {
namespace {

using gpu::Encoder;

const Kernels& scalar() { return *find_kernels("scalar"); }

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::vector<float> products(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t rows) {
  AlignedArray<float> packed(index(PackedRows::floats(rows, w.cols)));
  const std::int64_t scratch_bytes = kernel_scratch_bytes(w.cols);
  AlignedBytes scratch(index(scratch_bytes));
  std::vector<float> y(index(rows * w.rows));
  scalar().pack_rows(x, x_stride, rows, w.cols, packed.data());
  scalar().matmul(w, 0, w.rows, {packed.data(), rows, w.cols}, y.data(), w.rows, {scratch.data(), scratch_bytes});
  return y;
}

struct ProductShape {
  std::int64_t outputs, inputs, rows;
};

// One row, a few, many (the tiled kernel), and sizes that no vector divides.
Result<Compared> check_products(Workbench& bench, WeightFormat format) {
  const std::vector<ProductShape> shapes =
      bench.small() ? std::vector<ProductShape>{{67, 256, 1}, {40, 512, 4}, {66, 256, 17}, {35, 515, 3}}
                    : std::vector<ProductShape>{{2048, 6144, 1}, {6144, 2048, 4}, {2048, 6144, 17}, {2050, 6146, 3}};
  Compared all;
  for (const ProductShape& s : shapes) {
    bench.clear();
    const Matrix w = bench.matrix(format, s.outputs, s.inputs);
    const auto x = bench.floats(s.rows * s.inputs), y = bench.take<float>(s.rows * s.outputs);
    COLIBRI_CHECK(bench.run(
        [&](Encoder& e) { gpu::product(e, {}, w, {bench.at(x), s.rows, s.inputs, s.inputs}, bench.at(y), s.outputs); }));
    all.add(y, products(w, x.data(), s.inputs, s.rows));
    ++all.shapes;
  }
  return all;
}

// The two products of absorbed attention: with the head's rows of kv_b, transposed and as they are.
Result<Compared> check_head_products(Workbench& bench, bool transposed) {
  const std::int64_t heads = bench.small() ? 3 : 64, nope = bench.small() ? 24 : 192, value = bench.small() ? 20 : 256,
                     latent = bench.small() ? 72 : 512, head_rows = nope + value;
  Compared all;
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kInt8Row, WeightFormat::kF8Block128})
    for (const std::int64_t rows : {1, 5}) {
      bench.clear();
      const Matrix w = bench.matrix(format, heads * head_rows, latent);
      const std::int64_t in = transposed ? nope : latent, out = transposed ? latent : value;
      const auto x = bench.floats(rows * heads * in), y = bench.take<float>(rows * heads * out);
      const gpu::Rows input{bench.at(x), rows, in, heads * in};
      COLIBRI_CHECK(bench.run([&](Encoder& e) {
        if (transposed)
          gpu::transposed_head_products(e, w, {heads, head_rows, 0, nope}, input, in, bench.at(y), heads * out, out);
        else
          gpu::head_products(e, {}, w, {heads, head_rows, nope, value}, input, in, bench.at(y), heads * out, out);
      }));
      const std::int64_t scratch_bytes = kernel_scratch_bytes(latent);
      AlignedBytes scratch(index(scratch_bytes));
      for (std::int64_t h = 0; h < heads; ++h) {
        const Matrix slice = w.rows_view(h * head_rows + (transposed ? 0 : nope), transposed ? nope : value);
        std::vector<float> want(index(rows * out));
        if (transposed)
          scalar().transposed_matmul(slice, x.data() + h * in, heads * in, rows, want.data(), out,
                                     {scratch.data(), scratch_bytes});
        else
          want = products(slice, x.data() + h * in, heads * in, rows);
        for (std::int64_t r = 0; r < rows; ++r)
          all.add<float>(y.subspan(index((r * heads + h) * out), index(out)),
                         std::span(want).subspan(index(r * out), index(out)));
      }
      ++all.shapes;
    }
  return all;
}

// Slots by expert, gate and up with SwiGLU, down, and the sum in rank order with the shared expert and the residual.
Result<Compared> check_experts(Workbench& bench) {
  constexpr std::int64_t kStored = 3;  // different experts; expert e has the weights of e % kStored
  Compared all;
  for (const WeightFormat format : {WeightFormat::kInt4Grouped, WeightFormat::kInt8Row, WeightFormat::kInt2Row})
    for (const std::int64_t rows : {1, 3}) {
      bench.clear();
      gpu::ExpertShape s;
      s.hidden = bench.small() ? 192 : 6144;
      s.intermediate = bench.small() ? 68 : 2048;
      s.experts = bench.small() ? 24 : 256;
      s.per_token = bench.small() ? 4 : 8;
      s.gate = s.up = s.down = format;
      const std::int64_t slots = rows * s.per_token;
      std::vector<Matrix> gate, up, down;
      for (std::int64_t e = 0; e < kStored; ++e) {
        gate.push_back(bench.matrix(format, s.intermediate, s.hidden));
        up.push_back(bench.matrix(format, s.intermediate, s.hidden));
        down.push_back(bench.matrix(format, s.hidden, s.intermediate));
      }
      std::vector<std::int32_t> ids;
      for (std::int64_t r = 0; r < rows; ++r)  // odd steps: distinct, some experts shared by rows, not in order
        for (std::int64_t i = 0; i < s.per_token; ++i)
          ids.push_back(static_cast<std::int32_t>((s.experts - 1 - 5 * i + 10 * r) % s.experts));
      const auto chosen = bench.copy(ids);
      const auto table = bench.take<gpu::ExpertEntry>(s.experts);
      const auto memory = bench.take<std::byte>(static_cast<std::int64_t>(gpu::expert_groups_bytes(s, rows)));
      const gpu::ExpertGroups groups = gpu::place_expert_groups(s, rows, bench.at(memory));
      const auto input = bench.floats(rows * s.hidden), weights = bench.floats(slots), x = bench.floats(rows * s.hidden),
                 shared = bench.floats(rows * s.hidden);
      const auto act = bench.take<float>(slots * s.intermediate), out = bench.take<float>(slots * s.hidden),
                 x_out = bench.take<float>(rows * s.hidden);
      const auto damage = bench.damage_word();
      COLIBRI_CHECK(bench.run([&](Encoder& e) {
        for (std::int64_t i = 0; i < s.experts; ++i) {
          const std::size_t stored = index(i % kStored);
          table[index(i)] = {gpu::matrix_args(e, gate[stored]), gpu::matrix_args(e, up[stored]),
                             gpu::matrix_args(e, down[stored])};
        }
        gpu::group_by_expert(e, s, rows, bench.at(chosen), groups);
        e.barrier();
        gpu::expert_swiglu(e, s, bench.at(table), groups, {bench.at(input), rows, s.hidden, s.hidden}, bench.at(act));
        e.barrier();
        gpu::expert_down(e, s, bench.at(table), groups, rows, bench.at(act), bench.at(out));
        e.barrier();
        gpu::combine_experts(e, s, groups, rows, bench.at(weights), bench.at(out), bench.at(shared), bench.at(x), bench.at(x_out),
                             bench.at(damage));
      }));
      // The contract's slots: by rising expert, then by row.
      std::vector<std::int64_t> order(index(slots));
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(),
                [&](std::int64_t a, std::int64_t b) { return std::pair(ids[index(a)], a) < std::pair(ids[index(b)], b); });
      std::vector<std::int32_t> slot_of(index(slots));
      std::vector<std::vector<float>> outputs(index(slots));
      for (std::int64_t slot = 0; slot < slots; ++slot) {
        const std::int64_t pair = order[index(slot)];
        slot_of[index(pair)] = static_cast<std::int32_t>(slot);
        const std::size_t stored = index(ids[index(pair)] % kStored);
        const float* const row = input.data() + pair / s.per_token * s.hidden;
        std::vector<float> a = products(gate[stored], row, s.hidden, 1);
        const std::vector<float> u = products(up[stored], row, s.hidden, 1);
        scalar().swiglu(a.data(), u.data(), a.data(), s.intermediate);
        all.add(act.subspan(index(slot * s.intermediate), a.size()), a);
        outputs[index(slot)] = products(down[stored], a.data(), s.intermediate, 1);
        all.add(out.subspan(index(slot * s.hidden), index(s.hidden)), outputs[index(slot)]);
      }
      all.add({reinterpret_cast<const std::int32_t*>(memory.data() + (groups.slot_of - bench.at(memory))), index(slots)},
              slot_of);
      for (std::int64_t r = 0; r < rows; ++r) {
        std::vector<float> sum(index(s.hidden));
        for (std::int64_t i = r * s.per_token; i < (r + 1) * s.per_token; ++i)
          scalar().accumulate(outputs[index(slot_of[index(i)])].data(), weights[index(i)], sum.data(), s.hidden);
        scalar().add(sum.data(), shared.data() + r * s.hidden, sum.data(), s.hidden);
        scalar().add(x.data() + r * s.hidden, sum.data(), sum.data(), s.hidden);
        all.add(x_out.subspan(index(r * s.hidden), sum.size()), sum);
      }
      all.add<std::uint32_t>(damage, std::vector<std::uint32_t>{0});
      ++all.shapes;
    }
  return all;
}

Result<Compared> check_norms(Workbench& bench) {
  Compared all;
  for (const std::int64_t cols : {100, 512, 576, 1536, 6144}) {
    bench.clear();
    const std::int64_t rows = 3;
    const float eps = 1e-5f;
    const auto x = bench.floats(rows * cols, 30.0f), weight = bench.floats(cols), out = bench.take<float>(rows * cols);
    COLIBRI_CHECK(bench.run(
        [&](Encoder& e) { gpu::rms_norm(e, {bench.at(x), rows, cols, cols}, bench.at(weight), eps, bench.at(out), cols); }));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<float> want(index(cols));
      numerics::rms_norm(x.data() + r * cols, weight.data(), eps, want.data(), cols);
      all.add(out.subspan(index(r * cols), want.size()), want);
    }
    ++all.shapes;
  }
  return all;
}

Result<Compared> check_swiglu(Workbench& bench) {
  Compared all;
  for (const std::int64_t n : {1025, 12288}) {
    bench.clear();
    const auto gate = bench.floats(n, 70.0f), up = bench.floats(n), out = bench.take<float>(n);  // past the ends of exp, too
    COLIBRI_CHECK(bench.run([&](Encoder& e) { gpu::swiglu(e, bench.at(gate), bench.at(up), bench.at(out), n); }));
    std::vector<float> want(index(n));
    scalar().swiglu(gate.data(), up.data(), want.data(), n);
    all.add(out, want);
    ++all.shapes;
  }
  return all;
}

// Sums, and the bit that says that a number is not finite: not set without one, set with one.
Result<Compared> check_sums(Workbench& bench) {
  Compared all;
  for (const std::int64_t n : {1025, 6144}) {
    bench.clear();
    const auto a = bench.floats(n), b = bench.floats(n), out = bench.take<float>(n);
    const auto clean = bench.damage_word(), damaged = bench.damage_word();
    const auto sum = [&](std::span<const std::uint32_t> damage) {
      return bench.run(
          [&](Encoder& e) { gpu::add(e, bench.at(a), bench.at(b), bench.at(out), n, bench.at(damage), gpu::kDamageHead); });
    };
    COLIBRI_CHECK(sum(clean));
    std::vector<float> want(index(n));
    scalar().add(a.data(), b.data(), want.data(), n);
    all.add(out, want);
    a[index(n - 1)] = std::numeric_limits<float>::infinity();
    COLIBRI_CHECK(sum(damaged));
    const std::uint32_t found[] = {clean[0], damaged[0]};
    const std::uint32_t expected[] = {0, gpu::kDamageHead};
    all.add<std::uint32_t>(found, expected);
    ++all.shapes;
  }
  return all;
}

Result<Compared> check_router(Workbench& bench) {
  Compared all;
  for (const gpu::RouterShape& s : {gpu::RouterShape{24, 4, true, 1.5f}, {257, 8, false, 1.0f}, {256, 8, true, 2.5f}}) {
    bench.clear();
    const std::int64_t rows = 4;
    const auto logits = bench.floats(rows * s.experts, 4.0f), bias = bench.floats(s.experts, 0.5f);
    std::copy_n(logits.begin(), s.experts / 2, logits.begin() + s.experts / 2);  // equal scores: the lower index wins
    std::copy_n(bias.begin(), s.experts / 2, bias.begin() + s.experts / 2);
    const auto chosen = bench.take<std::int32_t>(rows * s.per_token);
    const auto weights = bench.take<float>(rows * s.per_token);
    const auto damage = bench.damage_word();
    COLIBRI_CHECK(bench.run([&](Encoder& e) {
      gpu::route(e, s, rows, bench.at(logits), bench.at(bias), bench.at(chosen), bench.at(weights), bench.at(damage));
    }));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<float> scores(index(s.experts)), want;
      std::vector<std::int32_t> ids;
      for (std::int64_t e = 0; e < s.experts; ++e) scores[index(e)] = numerics::sigmoid(logits[index(r * s.experts + e)]);
      numerics::route_sigmoid(scores, bias, {s.per_token, s.renormalise, s.factor}, ids, want);
      all.add(chosen.subspan(index(r * s.per_token), ids.size()), ids);
      all.add(weights.subspan(index(r * s.per_token), want.size()), want);
    }
    all.add<std::uint32_t>(damage, std::vector<std::uint32_t>{0});
    ++all.shapes;
  }
  return all;
}

// The kernel that the bandwidth is measured with: whole numbers, one sum a thread.
Result<Compared> check_probe(Workbench& bench) {
  bench.clear();
  const std::int64_t words = 100'000, threads = 512;
  const auto data = bench.take<std::uint32_t>(words), out = bench.take<std::uint32_t>(threads);
  for (std::uint32_t& word : data) word = static_cast<std::uint32_t>(bench.random());
  gpu::ProbeArgs args{};
  args.data = bench.at(data);
  args.out = bench.at(out);
  args.words = static_cast<std::uint64_t>(words);
  args.threads = static_cast<std::uint32_t>(threads);
  COLIBRI_CHECK(bench.run([&](Encoder& e) { e.dispatch({"probe", "probe_read"}, args, {threads / 256}, 256); }));
  std::vector<std::uint32_t> want(index(threads));
  for (std::int64_t i = 0; i < words; ++i) want[index(i / 4 % threads)] += data[index(i)];
  Compared all;
  all.add<std::uint32_t>(out, want);
  ++all.shapes;
  return all;
}

}  // namespace

std::vector<Check> all_checks() {
  std::vector<Check> checks;
  for (int f = 0; f < kWeightFormatCount; ++f) {
    const auto format = static_cast<WeightFormat>(f);
    checks.push_back(
        {fmt::format("products, {}", format_name(format)), [format](Workbench& bench) { return check_products(bench, format); }});
  }
  checks.push_back({"head products", [](Workbench& bench) { return check_head_products(bench, false); }});
  checks.push_back({"transposed products", [](Workbench& bench) { return check_head_products(bench, true); }});
  checks.push_back({"routed experts", check_experts});
  checks.push_back({"RMS norm", check_norms});
  checks.push_back({"SwiGLU", check_swiglu});
  checks.push_back({"sums and damage", check_sums});
  checks.push_back({"router", check_router});
  for (Check& check : attention_checks()) checks.push_back(std::move(check));
  checks.push_back({"reading probe", check_probe});
  return checks;
}

}  // namespace colibri::selftest

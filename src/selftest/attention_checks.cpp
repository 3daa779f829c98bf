// Checks of attention: cache entries, rotated queries, the weighted sums, and the indexer that chooses positions.
#include <algorithm>

#include "base/aligned.h"
#include "cpu/kernels.h"
#include "gpu/attention.h"
#include "gpu/indexer.h"
#include "numerics/attention.h"
#include "numerics/norm.h"
#include "numerics/rotary.h"
#include "numerics/selection.h"
#include "selftest/checks.h"

namespace colibri::selftest {
namespace {

using gpu::Encoder;

const Kernels& scalar() { return *find_kernels("scalar"); }

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

gpu::AttentionShape attention_shape(bool small) {
  gpu::AttentionShape s = small ? gpu::AttentionShape{3, 48, 16, 24} : gpu::AttentionShape{64, 512, 64, 192};
  s.score_scale = numerics::inverse_sqrt(s.query_dim());
  return s;
}

gpu::IndexerShape indexer_shape(bool small, std::int64_t top_k) {
  gpu::IndexerShape s = small ? gpu::IndexerShape{4, 32, 16} : gpu::IndexerShape{32, 128, 64};
  s.top_k = top_k;
  s.dot_scale = numerics::inverse_sqrt(s.head_dim);
  s.head_scale = numerics::inverse_sqrt(s.heads);
  return s;
}

// Rows of two sequences at positions of their own, each sequence with a cache of `width` floats a position.
class Step {
 public:
  Step(Workbench& bench, std::vector<std::int64_t> positions, std::int64_t width, std::int64_t rope)
      : positions_(std::move(positions)), width_(width), half_(rope / 2) {
    for (const std::int64_t p : positions_) longest_ = std::max(longest_, p + 1);
    caches_ = bench.floats(2 * longest_ * width);
    rows_ = bench.take<gpu::RowArgs>(rows());
    cosine_ = bench.take<float>(rows() * half_);
    sine_ = bench.take<float>(rows() * half_);
    const numerics::RotaryTable rotary(1e6, rope);
    for (std::int64_t r = 0; r < rows(); ++r) {
      const gpu::Address cache = bench.device().address(entry(r, 0));
      rows_[index(r)] = {cache, cache, static_cast<std::uint32_t>(position(r)), 0, 0, 0};
      rotary.angles(position(r), cosine_.data() + r * half_, sine_.data() + r * half_);
    }
    table_ = {bench.at(rows_), rows(), longest_, bench.at(cosine_), bench.at(sine_)};
  }
  std::int64_t rows() const { return static_cast<std::int64_t>(positions_.size()); }
  std::int64_t position(std::int64_t r) const { return positions_[index(r)]; }
  std::int64_t longest() const { return longest_; }
  const gpu::StepTable& table() const { return table_; }
  float* entry(std::int64_t r, std::int64_t at) const { return caches_.data() + (r % 2 * longest_ + at) * width_; }
  void rotate(std::int64_t r, const float* x, float* y) const {
    numerics::rotate_interleaved_to_halves(x, cosine_.data() + r * half_, sine_.data() + r * half_, 2 * half_, y);
  }

 private:
  std::vector<std::int64_t> positions_;
  std::int64_t width_, half_, longest_ = 0;
  std::span<float> caches_, cosine_, sine_;
  std::span<gpu::RowArgs> rows_;
  gpu::StepTable table_;
};

// Cache entries (norm, rotated key) and the rotated part of the queries.
Result<Compared> check_rotary(Workbench& bench) {
  bench.clear();
  const gpu::AttentionShape s = attention_shape(bench.small());
  const Step step(bench, {0, 77, 5, 4099}, s.cache_dim(), s.rope);
  const auto kv = bench.floats(step.rows() * s.cache_dim()), weight = bench.floats(s.latent),
             queries = bench.floats(step.rows() * s.heads * s.query_dim()),
             absorbed = bench.floats(step.rows() * s.heads * s.cache_dim());
  const auto damage = bench.damage_word();
  const std::vector<float> before(absorbed.begin(), absorbed.end());
  COLIBRI_CHECK(bench.run([&](Encoder& e) {
    gpu::write_cache_entries(e, s, step.table(), bench.at(kv), bench.at(weight), numerics::kLatentNormEps, bench.at(damage));
    gpu::rotate_queries(e, s, step.table(), bench.at(queries), bench.at(absorbed), bench.at(damage));
  }));
  Compared all;
  for (std::int64_t r = 0; r < step.rows(); ++r) {
    std::vector<float> want(index(s.cache_dim()));
    const float* const row = kv.data() + r * s.cache_dim();
    numerics::rms_norm(row, weight.data(), numerics::kLatentNormEps, want.data(), s.latent);
    step.rotate(r, row + s.latent, want.data() + s.latent);
    all.add({step.entry(r, step.position(r)), want.size()}, want);
    for (std::int64_t h = r * s.heads; h < (r + 1) * s.heads; ++h) {
      std::copy_n(before.data() + h * s.cache_dim(), s.latent, want.data());
      step.rotate(r, queries.data() + h * s.query_dim() + s.nope, want.data() + s.latent);
      all.add(absorbed.subspan(index(h * s.cache_dim()), want.size()), want);
    }
  }
  all.add<std::uint32_t>(damage, std::vector<std::uint32_t>{0});
  ++all.shapes;
  return all;
}

// Rule C6 for one head over the entries at `list`.
std::vector<float> attend_reference(const gpu::AttentionShape& s, const float* query, const Step& step, std::int64_t r,
                                    const std::vector<std::int32_t>& list) {
  const auto n = static_cast<std::int64_t>(list.size());
  std::vector<float> p, values, sum(index(s.latent)), out(index(s.latent), 0.0f);
  for (const std::int32_t at : list) {
    const float* const entry = step.entry(r, at);
    p.push_back(scalar().dot(query, entry, s.cache_dim()));
    values.insert(values.end(), entry, entry + s.latent);
  }
  scalar().scale(p.data(), s.score_scale, n);
  scalar().exp_minus(p.data(), scalar().max(p.data(), n), n);
  const std::vector<float> ones(index(numerics::kSumGroup), 1.0f);
  float denominator = 0.0f;
  for (std::int64_t first = 0; first < n; first += numerics::kSumGroup) {
    const std::int64_t size = std::min(numerics::kSumGroup, n - first);
    numerics::weighted_sum(p.data() + first, values.data() + first * s.latent, s.latent, size, s.latent, sum.data());
    scalar().add(out.data(), sum.data(), out.data(), s.latent);
    denominator = denominator + scalar().dot(ones.data(), p.data() + first, size);
  }
  scalar().scale(out.data(), 1.0f / denominator, s.latent);
  return out;
}

// top_k 0: every visible entry; else rows that see more than top_k have a list of every third entry from the end.
Result<Compared> check_attention(Workbench& bench, const std::vector<std::vector<std::int64_t>>& steps, std::int64_t top_k) {
  Compared all;
  const gpu::AttentionShape s = attention_shape(bench.small());
  for (const std::vector<std::int64_t>& positions : steps) {
    bench.clear();
    const Step step(bench, positions, s.cache_dim(), s.rope);
    const auto absorbed = bench.floats(step.rows() * s.heads * s.cache_dim(), 8.0f),
               context = bench.take<float>(step.rows() * s.heads * s.latent);
    const std::int64_t most = top_k > 0 ? std::min(step.longest(), top_k) : step.longest();
    const std::uint64_t scratch_bytes = gpu::attention_scratch_bytes(s, step.rows(), most);
    const auto scratch = bench.take<std::byte>(static_cast<std::int64_t>(scratch_bytes));
    std::vector<std::vector<std::int32_t>> lists(positions.size());
    const auto chosen = bench.take<std::int32_t>(step.rows() * std::max<std::int64_t>(top_k, 1));
    const auto counts = bench.take<std::uint32_t>(step.rows());
    for (std::int64_t r = 0; r < step.rows(); ++r) {
      std::vector<std::int32_t>& list = lists[index(r)];
      const bool chooses = top_k > 0 && step.position(r) >= top_k;
      for (std::int64_t at = step.position(r); at >= 0; at -= chooses ? 3 : 1) list.push_back(static_cast<std::int32_t>(at));
      if (chooses && static_cast<std::int64_t>(list.size()) > top_k) list.resize(index(top_k));
      std::reverse(list.begin(), list.end());
      counts[index(r)] = chooses ? static_cast<std::uint32_t>(list.size()) : 0;
      if (chooses) std::copy(list.begin(), list.end(), chosen.begin() + r * top_k);
    }
    gpu::SelectionTable selection;
    if (top_k > 0) selection = {bench.at(chosen), bench.at(counts), top_k};
    COLIBRI_CHECK(bench.run([&](Encoder& e) {
      gpu::attend(e, s, step.table(), selection, bench.at(absorbed), bench.at(context), bench.at(scratch), scratch_bytes);
    }));
    for (std::int64_t r = 0; r < step.rows(); ++r)
      for (std::int64_t h = r * s.heads; h < (r + 1) * s.heads; ++h)
        all.add(context.subspan(index(h * s.latent), index(s.latent)),
                attend_reference(s, absorbed.data() + h * s.cache_dim(), step, r, lists[index(r)]));
    ++all.shapes;
  }
  return all;
}

Result<Compared> check_index_keys(Workbench& bench) {
  bench.clear();
  const gpu::IndexerShape s = indexer_shape(bench.small(), 64);
  const Step step(bench, {0, 77, 5}, s.head_dim, s.rope);
  const auto keys = bench.floats(step.rows() * s.head_dim), weight = bench.floats(s.head_dim), bias = bench.floats(s.head_dim);
  const auto damage = bench.damage_word();
  COLIBRI_CHECK(bench.run([&](Encoder& e) {
    gpu::write_index_keys(e, s, step.table(), bench.at(keys), bench.at(weight), bench.at(bias), bench.at(damage));
  }));
  Compared all;
  for (std::int64_t r = 0; r < step.rows(); ++r) {
    std::vector<float> normed(index(s.head_dim));
    numerics::layer_norm(keys.data() + r * s.head_dim, weight.data(), bias.data(), numerics::kLatentNormEps, normed.data(),
                         s.head_dim);
    std::vector<float> want = normed;
    step.rotate(r, normed.data(), want.data());
    all.add({step.entry(r, step.position(r)), want.size()}, want);
  }
  all.add<std::uint32_t>(damage, std::vector<std::uint32_t>{0});
  ++all.shapes;
  return all;
}

// Rule C11 for one row.
std::vector<float> index_scores(const gpu::IndexerShape& s, const Step& step, std::int64_t r, const float* queries,
                                const float* weights) {
  const std::int64_t visible = step.position(r) + 1;
  std::vector<float> scores(index(visible)), dots(index(visible)), rotated(index(s.head_dim));
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const float* const query = queries + h * s.head_dim;
    std::copy_n(query, s.head_dim, rotated.data());
    step.rotate(r, query, rotated.data());
    for (std::int64_t t = 0; t < visible; ++t) dots[index(t)] = scalar().dot(step.entry(r, t), rotated.data(), s.head_dim);
    scalar().indexer_accumulate(dots.data(), s.dot_scale, weights[h], scores.data(), visible);
  }
  scalar().scale(scores.data(), s.head_scale, visible);
  return scores;
}

Result<Compared> check_indexer(Workbench& bench) {
  Compared all;
  const std::int64_t top_k = bench.small() ? 64 : 2048;
  const gpu::IndexerShape s = indexer_shape(bench.small(), top_k);
  const std::vector<std::int64_t> longs = bench.small() ? std::vector<std::int64_t>{400, 63, 200}  // one row chooses nothing
                                                        : std::vector<std::int64_t>{9000, 100, 2500};
  for (const std::vector<std::int64_t>& positions : {std::vector<std::int64_t>{longs[2]}, longs}) {
    bench.clear();
    const Step step(bench, positions, s.head_dim, s.rope);
    const std::int64_t rows = step.rows(), stride = (step.longest() + 3) / 4 * 4;
    const auto queries = bench.floats(rows * s.heads * s.head_dim), weights = bench.floats(rows * s.heads),
               rotated = bench.take<float>(rows * gpu::rotated_query_floats(s)), scores = bench.take<float>(rows * stride);
    const auto chosen = bench.take<std::int32_t>(rows * top_k);
    const auto counts = bench.take<std::uint32_t>(rows), damage = bench.damage_word();
    const std::uint64_t scratch_bytes = gpu::indexer_scratch_bytes(s, rows, step.longest());
    const auto scratch = bench.take<std::byte>(static_cast<std::int64_t>(scratch_bytes));
    COLIBRI_CHECK(bench.run([&](Encoder& e) {
      gpu::score_positions(e, s, step.table(), {0, rows}, bench.at(queries), bench.at(weights), bench.at(rotated),
                           bench.at(scores), stride, bench.at(damage));
      e.barrier();
      gpu::select_positions(e, s, step.table(), bench.at(queries), bench.at(weights), {bench.at(chosen), bench.at(counts), top_k},
                            bench.at(scratch), scratch_bytes, bench.at(damage));
    }));
    std::vector<std::uint32_t> want_counts;
    for (std::int64_t r = 0; r < rows; ++r) {
      want_counts.push_back(step.position(r) < top_k ? 0 : static_cast<std::uint32_t>(top_k));
      if (step.position(r) < top_k) continue;
      const std::vector<float> want =
          index_scores(s, step, r, queries.data() + r * s.heads * s.head_dim, weights.data() + r * s.heads);
      all.add(scores.subspan(index(r * stride), want.size()), want);
      std::vector<std::int32_t> best;
      numerics::top_k(want, top_k, best);
      std::sort(best.begin(), best.end());
      all.add(chosen.subspan(index(r * top_k), best.size()), best);
    }
    all.add<std::uint32_t>(counts, want_counts);
    all.add<std::uint32_t>(damage, std::vector<std::uint32_t>{0});
    ++all.shapes;
  }
  return all;
}

}  // namespace

std::vector<Check> attention_checks() {
  return {
      {"cache entries, rotary", check_rotary},
      {"attention", [](Workbench& bench) { return check_attention(bench, {{0}, {63, 200}, {700, 64, 65, 701}}, 0); }},
      {"attention, 2,049 on", [](Workbench& bench) { return check_attention(bench, {{2048}, {4200, 2100}}, 0); }},
      {"attention, chosen", [](Workbench& bench) { return check_attention(bench, {{3000}, {900, 100, 50}}, 512); }},
      {"indexer keys", check_index_keys},
      {"indexer, selection", check_indexer},
  };
}

}  // namespace colibri::selftest

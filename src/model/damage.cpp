#include "model/damage.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>

#include "numerics/finite.h"

namespace colibri {
namespace {

// The first row with a weight that is not finite, or rows.
std::int64_t first_bad_row(const Matrix& m, ThreadTeam& team) {
  constexpr std::int64_t kRows = 16;  // one piece of work
  std::atomic<std::int64_t> first{m.rows};
  team.parallel_for(ceil_div(m.rows, kRows), 1, [&](std::int64_t begin, std::int64_t end, int) {
    std::vector<float> row(static_cast<std::size_t>(m.cols));
    for (std::int64_t r = begin * kRows; r < std::min(end * kRows, m.rows) && r < first; ++r) {
      dequantize_row(m, r, row.data());
      if (numerics::all_finite(row.data(), m.cols)) continue;
      std::int64_t known = first;
      while (r < known && !first.compare_exchange_weak(known, r)) {
      }
    }
  });
  return first;
}

// Where a weight is not finite, in words; nullopt when all are.
std::optional<std::string> describe_damage(const Matrix& m, ThreadTeam& team) {
  const std::int64_t r = first_bad_row(m, team);
  if (r == m.rows) return std::nullopt;
  std::vector<float> row(static_cast<std::size_t>(m.cols));
  dequantize_row(m, r, row.data());
  const auto bad = std::find_if(row.begin(), row.end(), [](float v) { return !std::isfinite(v); });
  return fmt::format("the weight in row {}, column {} is {}, expected a finite number", r, bad - row.begin(), *bad);
}

constexpr const char* kAdvice = "the file is damaged: fetch or convert it again";

// Whether its bytes came from memory or from the disk makes no difference, so every expert is read anew.
Result<void> search_expert(const ModelWeights& weights, const Suspects& suspects, std::int32_t expert, ThreadTeam& team) {
  const ExpertRecord& record = weights.experts[static_cast<std::size_t>(suspects.layer)][static_cast<std::size_t>(expert)];
  for (const auto& [name, source] : {std::pair{"gate", &record.gate}, {"up", &record.up}, {"down", &record.down}}) {
    AlignedBytes bytes(Checkpoint::matrix_bytes(*source));
    COLIBRI_TRY(matrix, weights.checkpoint().read_matrix(*source, bytes.data()));
    if (const auto found = describe_damage(matrix, team))
      return fail("{}: {} of expert {}: {}; {} (noticed in {})", weights.checkpoint().owner(source->data), name, expert, *found,
                  kAdvice, suspects.where);
  }
  return {};
}

}  // namespace

Suspects attention_suspects(const LayerWeights& layer, std::int64_t index) {
  const MlaWeights& a = layer.attention;
  Suspects suspects{fmt::format("layer {}, attention", index), {&a.q_a, &a.kv_a, &a.q_b, &a.kv_b, &a.o}, index, {}};
  if (a.indexer) suspects.matrices.insert(suspects.matrices.end(), {&a.indexer->wk, &a.indexer->weights_proj, &a.indexer->wq_b});
  return suspects;
}

Suspects feed_forward_suspects(const LayerWeights& layer, std::int64_t index, std::span<const std::int32_t> experts) {
  const MlpWeights& mlp = layer.mlp;
  return {fmt::format("layer {}, {}", index, layer.sparse ? "experts" : "dense part"),
          {&layer.router, &mlp.gate, &mlp.up, &mlp.down},
          index,
          experts};
}

Error find_damage(const ModelWeights& weights, const Suspects& suspects, ThreadTeam& team) {
  for (const Matrix* m : suspects.matrices) {
    if (m->rows == 0) continue;
    if (const auto found = describe_damage(*m, team))
      return {fmt::format("{}: {}; {} (noticed in {})", weights.checkpoint().owner(weights.source_of(*m).data), *found, kAdvice,
                          suspects.where)};
  }
  for (const std::int32_t expert : suspects.experts)
    if (auto searched = search_expert(weights, suspects, expert, team); !searched) return std::move(searched).error();
  return {
      fmt::format("{}: {}: a result is not a finite number although every weight used there is; the weights or config.json "
                  "are wrong in another way: compare them with where they come from",
                  weights.checkpoint().dir().string(), suspects.where)};
}

}  // namespace colibri

#include "model/indexer.h"

#include <algorithm>
#include <atomic>

#include "numerics/attention.h"
#include "numerics/finite.h"
#include "numerics/norm.h"
#include "numerics/rotary.h"
#include "numerics/selection.h"

namespace colibri {
namespace {

constexpr std::int64_t kMaxWave = 16;
constexpr std::int64_t kScoreBlock = 512;  // positions of one piece of work

// Rotates the first dims of a head, the rest is copied.
void rotate_head(const float* x, const float* cosine, const float* sine, std::int64_t rope_dims, std::int64_t dims, float* y) {
  numerics::rotate_interleaved_to_halves(x, cosine, sine, rope_dims, y);
  std::copy(x + rope_dims, x + dims, y + rope_dims);
}

}  // namespace

Indexer::Indexer(Ops& ops, const ModelConfig& config, std::int64_t max_rows, std::int64_t max_context)
    : ops_(ops),
      shape_(config.indexer),
      rope_dims_(config.mla.qk_rope_head_dim),
      max_context_(max_context),
      dot_scale_(numerics::inverse_sqrt(shape_.head_dim)),
      head_scale_(numerics::inverse_sqrt(shape_.heads)),
      wave_(std::min(max_rows, kMaxWave)),
      keys_(static_cast<std::size_t>(max_rows * shape_.head_dim)),
      head_weights_(static_cast<std::size_t>(max_rows * shape_.heads)),
      queries_(static_cast<std::size_t>(max_rows * shape_.heads * shape_.head_dim)),
      rotated_(static_cast<std::size_t>(wave_ * shape_.heads * shape_.head_dim)),
      packed_(static_cast<std::size_t>(wave_ * PackedRows::floats(shape_.heads, shape_.head_dim))),
      scores_(static_cast<std::size_t>(wave_ * max_context)),
      dots_(static_cast<std::size_t>(ops.threads() * shape_.heads * kScoreBlock)),
      chosen_(static_cast<std::size_t>(wave_)) {}

std::uint64_t Indexer::scratch_bytes() const {
  std::uint64_t count = 0;
  for (const auto* a : {&keys_, &head_weights_, &queries_, &rotated_, &packed_, &scores_, &dots_}) count += a->size();
  return count * sizeof(float);
}

void Indexer::add_input_products(const IndexerWeights& w, const PackedRows& input, std::vector<Product>& products) {
  products.push_back({w.wk, input, keys_.data(), shape_.head_dim});
  products.push_back({w.weights_proj, input, head_weights_.data(), shape_.heads});
}

void Indexer::add_query_product(const IndexerWeights& w, const PackedRows& q_latent, std::vector<Product>& products) {
  products.push_back({w.wq_b, q_latent, queries_.data(), shape_.heads * shape_.head_dim});
}

bool Indexer::select(const IndexerWeights& w, std::int64_t layer, const StepRows& step, Selection& selection) {
  const std::int64_t dim = shape_.head_dim, heads = shape_.heads, half = rope_dims_ / 2;
  if (!numerics::all_finite(keys_.data(), step.count() * dim) ||
      !numerics::all_finite(head_weights_.data(), step.count() * heads) ||
      !numerics::all_finite(queries_.data(), step.count() * heads * dim))
    return false;
  std::vector<float> normed(static_cast<std::size_t>(dim));
  for (std::int64_t r = 0; r < step.count(); ++r) {
    const Row& row = step.rows[static_cast<std::size_t>(r)];
    numerics::layer_norm(keys_.data() + r * dim, w.k_norm.data(), w.k_norm_bias.data(), numerics::kLatentNormEps, normed.data(),
                         dim);
    rotate_head(normed.data(), step.cosine + r * half, step.sine + r * half, rope_dims_, dim,
                row.cache->index_key(layer, row.position));
  }
  selection.clear(step.rows.size());

  // Rows that see more than top_k positions, a wave at a time so that the scores of a long context stay small.
  std::vector<std::int64_t> todo;
  for (std::int64_t r = 0; r < step.count(); ++r)
    if (step.rows[static_cast<std::size_t>(r)].position + 1 > shape_.top_k) todo.push_back(r);
  std::atomic<bool> nan{false};
  for (std::size_t first = 0; first < todo.size(); first += static_cast<std::size_t>(wave_)) {
    const auto wave = std::span(todo).subspan(first, std::min(todo.size() - first, static_cast<std::size_t>(wave_)));
    struct Piece {
      std::int64_t slot, begin, end;
    };
    std::vector<Piece> pieces;
    for (std::int64_t slot = 0; slot < static_cast<std::int64_t>(wave.size()); ++slot) {
      const std::int64_t r = wave[static_cast<std::size_t>(slot)];
      float* rotated = rotated_.data() + slot * heads * dim;
      for (std::int64_t h = 0; h < heads; ++h)
        rotate_head(queries_.data() + (r * heads + h) * dim, step.cosine + r * half, step.sine + r * half, rope_dims_, dim,
                    rotated + h * dim);
      ops_.pack(rotated, dim, heads, dim, packed_.data() + slot * PackedRows::floats(heads, dim));
      const std::int64_t visible = step.rows[static_cast<std::size_t>(r)].position + 1;
      for (std::int64_t t = 0; t < visible; t += kScoreBlock) pieces.push_back({slot, t, std::min(t + kScoreBlock, visible)});
    }
    ops_.team().parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end, int worker) {
      float* dots = dots_.data() + worker * heads * kScoreBlock;
      for (std::int64_t i = begin; i < end; ++i) {
        const Piece& p = pieces[static_cast<std::size_t>(i)];
        const std::int64_t r = wave[static_cast<std::size_t>(p.slot)], n = p.end - p.begin;
        const Matrix keys = f32_matrix(step.rows[static_cast<std::size_t>(r)].cache->index_key(layer, p.begin), n, dim, dim);
        const PackedRows queries{packed_.data() + p.slot * PackedRows::floats(heads, dim), heads, dim};
        ops_.kernels().matmul(keys, 0, n, queries, dots, kScoreBlock, ops_.scratch(worker));
        float* score = scores_.data() + p.slot * max_context_ + p.begin;
        std::fill(score, score + n, 0.0f);
        for (std::int64_t h = 0; h < heads; ++h)
          ops_.kernels().indexer_accumulate(dots + h * kScoreBlock, dot_scale_,
                                            head_weights_[static_cast<std::size_t>(r * heads + h)], score, n);
        ops_.kernels().scale(score, head_scale_, n);
      }
    });
    ops_.team().parallel_for(static_cast<std::int64_t>(wave.size()), 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t slot = begin; slot < end; ++slot) {
        const auto r = static_cast<std::size_t>(wave[static_cast<std::size_t>(slot)]);
        const auto visible = static_cast<std::size_t>(step.rows[r].position + 1);
        std::vector<std::int32_t>& chosen = chosen_[static_cast<std::size_t>(slot)];
        if (!numerics::top_k({scores_.data() + slot * max_context_, visible}, shape_.top_k, chosen)) nan = true;
        std::sort(chosen.begin(), chosen.end());
        selection.positions[r].assign(chosen.begin(), chosen.end());
      }
    });
    if (nan) return false;
  }
  return true;
}

}  // namespace colibri

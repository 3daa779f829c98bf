#include "model/mla_attention.h"

#include <algorithm>
#include <atomic>

#include "model/damage.h"
#include "numerics/attention.h"
#include "numerics/finite.h"
#include "numerics/norm.h"
#include "numerics/rotary.h"

namespace colibri {
namespace {

constexpr std::int64_t kMaxHeadGroup = 8;  // heads that share one pass over the keys
constexpr std::int64_t kMaxTileRows = 4;
constexpr std::int64_t kScoreFloats = 1 << 23;  // scores a worker holds at the longest context

AlignedArray<float> floats(std::int64_t count) { return AlignedArray<float>(static_cast<std::size_t>(count)); }

}  // namespace

MlaAttention::MlaAttention(Ops& ops, const ModelConfig& config, const ModelWeights& weights, std::int64_t max_rows,
                           std::int64_t max_context)
    : ops_(ops),
      weights_(weights),
      shape_(config.mla),
      hidden_(config.hidden_size),
      heads_(config.heads),
      max_context_(static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(max_context), 16))),
      eps_(config.rms_norm_eps),
      score_scale_(numerics::inverse_sqrt(shape_.qk_head_dim())),
      head_group_(std::clamp<std::int64_t>(ceil_div(heads_, ops.threads()), 1, kMaxHeadGroup)),
      tile_rows_(std::clamp<std::int64_t>(kScoreFloats / (max_context_ * head_group_), 1, kMaxTileRows)) {
  const std::int64_t n = max_rows, cache = shape_.cache_dim();
  if (config.indexer.top_k > 0) indexer_.emplace(ops, config, max_rows, max_context_);
  normed_ = floats(n * hidden_);
  packed_ = floats(PackedRows::floats(n, std::max({hidden_, shape_.q_lora_rank, heads_ * shape_.v_head_dim})));
  q_latent_ = floats(n * shape_.q_lora_rank);
  queries_ = floats(n * heads_ * shape_.qk_head_dim());
  kv_ = floats(n * cache);
  absorbed_ = floats(n * heads_ * cache);
  latent_context_ = floats(n * heads_ * shape_.kv_lora_rank);
  packed_context_ = floats(heads_ * PackedRows::floats(n, shape_.kv_lora_rank));
  context_ = floats(n * heads_ * shape_.v_head_dim);
  out_ = floats(n * hidden_);
  if (config.indexer.top_k > 0) gathered_ = floats(ops.threads() * config.indexer.top_k * cache);
  const std::int64_t queries = tile_rows_ * head_group_;
  thread_floats_ =
      queries * cache + PackedRows::floats(queries, cache) + head_group_ * shape_.kv_lora_rank + queries * max_context_;
  thread_floats_ = static_cast<std::int64_t>(round_up(static_cast<std::uint64_t>(thread_floats_), 16));
  thread_scratch_ = floats(thread_floats_ * ops.threads());
  ones_ = floats(numerics::kSumGroup);
  std::fill(ones_.data(), ones_.data() + ones_.size(), 1.0f);
}

std::uint64_t MlaAttention::scratch_bytes() const {
  std::uint64_t count = 0;
  for (const auto* a : {&normed_, &packed_, &q_latent_, &queries_, &kv_, &absorbed_, &latent_context_, &packed_context_,
                        &context_, &out_, &gathered_, &thread_scratch_, &ones_})
    count += a->size();
  return count * sizeof(float) + (indexer_ ? indexer_->scratch_bytes() : 0);
}

Result<void> MlaAttention::run(const LayerWeights& layer, std::int64_t index, const StepRows& step, Selection& selection,
                               float* x) {
  const MlaWeights& w = layer.attention;
  const std::int64_t n = step.count(), cache = shape_.cache_dim();
  const auto damaged = [&] { return pass(find_damage(weights_, attention_suspects(layer, index), ops_.team())); };
  std::vector<Product> products;

  ops_.rms_norm(x, layer.input_norm.data(), eps_, normed_.data(), n, hidden_);
  const PackedRows input = ops_.pack(normed_.data(), hidden_, n, hidden_, packed_.data());
  products = {{w.q_a, input, q_latent_.data(), shape_.q_lora_rank}, {w.kv_a, input, kv_.data(), cache}};
  if (w.indexer) indexer_->add_input_products(*w.indexer, input, products);
  ops_.multiply(products);

  ops_.rms_norm(q_latent_.data(), w.q_a_norm.data(), numerics::kLatentNormEps, q_latent_.data(), n, shape_.q_lora_rank);
  const PackedRows q_latent = ops_.pack(q_latent_.data(), shape_.q_lora_rank, n, shape_.q_lora_rank, packed_.data());
  products = {{w.q_b, q_latent, queries_.data(), heads_ * shape_.qk_head_dim()}};
  if (w.indexer) indexer_->add_query_product(*w.indexer, q_latent, products);
  ops_.multiply(products);

  // An infinite score may vanish in the softmax, so what scores are made of is looked at.
  if (!numerics::all_finite(kv_.data(), n * cache)) return damaged();
  const std::int64_t half = shape_.qk_rope_head_dim / 2;
  for (std::int64_t r = 0; r < n; ++r) {
    const Row& row = step.rows[static_cast<std::size_t>(r)];
    const float* kv = kv_.data() + r * cache;
    float* entry = row.cache->row(index, row.position);
    ops_.kernels().rms_norm(kv, w.kv_a_norm.data(), numerics::kLatentNormEps, entry, shape_.kv_lora_rank);
    numerics::rotate_interleaved_to_halves(kv + shape_.kv_lora_rank, step.cosine + r * half, step.sine + r * half,
                                           shape_.qk_rope_head_dim, entry + shape_.kv_lora_rank);
  }
  if (w.indexer && !indexer_->select(*w.indexer, index, step, selection)) return damaged();

  if (!absorb_queries(w, step)) return damaged();
  attend(index, step, selection);

  // Values per head, then the output projection.
  const std::int64_t latent = shape_.kv_lora_rank, packed_head = PackedRows::floats(n, latent);
  ops_.team().parallel_for(heads_, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t h = begin; h < end; ++h)
      ops_.pack(latent_context_.data() + h * latent, heads_ * latent, n, latent, packed_context_.data() + h * packed_head);
  });
  products.clear();
  const std::int64_t per_head = shape_.qk_nope_head_dim + shape_.v_head_dim;
  for (std::int64_t h = 0; h < heads_; ++h)
    products.push_back({w.kv_b.rows_view(h * per_head + shape_.qk_nope_head_dim, shape_.v_head_dim),
                        {packed_context_.data() + h * packed_head, n, latent},
                        context_.data() + h * shape_.v_head_dim,
                        heads_ * shape_.v_head_dim});
  ops_.multiply(products);
  const PackedRows context =
      ops_.pack(context_.data(), heads_ * shape_.v_head_dim, n, heads_ * shape_.v_head_dim, packed_.data());
  ops_.multiply({{w.o, context, out_.data(), hidden_}});
  ops_.kernels().add(x, out_.data(), x, n * hidden_);
  if (!numerics::all_finite(x, n * hidden_)) return damaged();
  return {};
}

// absorbed_[r][h] = W_K of head h transposed times the query, then the rotated rope part. False when one is not finite.
bool MlaAttention::absorb_queries(const MlaWeights& w, const StepRows& step) {
  const std::int64_t n = step.count(), query = shape_.qk_head_dim(), cache = shape_.cache_dim(),
                     half = shape_.qk_rope_head_dim / 2;
  const std::int64_t per_head = shape_.qk_nope_head_dim + shape_.v_head_dim;
  std::atomic<bool> finite{true};
  ops_.team().parallel_for(heads_, 1, [&](std::int64_t begin, std::int64_t end, int worker) {
    for (std::int64_t h = begin; h < end; ++h) {
      const float* q = queries_.data() + h * query;
      float* out = absorbed_.data() + h * cache;
      ops_.kernels().transposed_matmul(w.kv_b.rows_view(h * per_head, shape_.qk_nope_head_dim), q, heads_ * query, n, out,
                                       heads_ * cache, ops_.scratch(worker));
      for (std::int64_t r = 0; r < n; ++r) {
        float* row = out + r * heads_ * cache;
        numerics::rotate_interleaved_to_halves(q + r * heads_ * query + shape_.qk_nope_head_dim, step.cosine + r * half,
                                               step.sine + r * half, shape_.qk_rope_head_dim, row + shape_.kv_lora_rank);
        if (!numerics::all_finite(row, cache)) finite = false;
      }
    }
  });
  return finite;
}

std::int64_t MlaAttention::entries(const StepRows& step, const Selection& selection, std::int64_t r) const {
  const auto& chosen = selection.positions[static_cast<std::size_t>(r)];
  return chosen.empty() ? step.rows[static_cast<std::size_t>(r)].position + 1 : static_cast<std::int64_t>(chosen.size());
}

void MlaAttention::attend(std::int64_t index, const StepRows& step, const Selection& selection) {
  const auto dense = [&](std::int64_t r) { return selection.positions[static_cast<std::size_t>(r)].empty(); };
  Wave wave;
  std::int64_t r = 0;
  for (const ContiguousRows& rows : step.sequences) {
    const std::int64_t end = r + rows.count();
    while (r < end) {
      Tile tile{r, 1, rows.cache().row(index, 0), -1};
      if (dense(r))
        while (tile.rows < tile_rows_ && r + tile.rows < end && dense(r + tile.rows)) ++tile.rows;
      else
        tile.gathered = wave.slots++;
      wave.tiles.push_back(tile);
      r += tile.rows;
      if (wave.slots == ops_.threads()) attend_wave(wave, step, selection);
    }
  }
  attend_wave(wave, step, selection);
}

void MlaAttention::attend_wave(Wave& wave, const StepRows& step, const Selection& selection) {
  if (wave.slots > 0) gather(wave, selection);
  const std::int64_t groups = ceil_div(heads_, head_group_);
  ops_.team().parallel_for(static_cast<std::int64_t>(wave.tiles.size()) * groups, 1,
                           [&](std::int64_t begin, std::int64_t end, int worker) {
                             for (std::int64_t i = begin; i < end; ++i) {
                               const std::int64_t first_head = i % groups * head_group_;
                               attend_tile(wave.tiles[static_cast<std::size_t>(i / groups)], first_head,
                                           std::min(head_group_, heads_ - first_head), step, selection, worker);
                             }
                           });
  wave = {};
}

// Puts the chosen entries of every row that has a list side by side.
void MlaAttention::gather(Wave& wave, const Selection& selection) {
  constexpr std::int64_t kBlock = 64;  // entries copied by one piece of work
  const std::int64_t cache = shape_.cache_dim();
  const std::int64_t top_k = static_cast<std::int64_t>(gathered_.size()) / (ops_.threads() * cache);
  const std::int64_t blocks = ceil_div(top_k, kBlock);
  ops_.team().parallel_for(
      static_cast<std::int64_t>(wave.tiles.size()) * blocks, 1, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          const Tile& tile = wave.tiles[static_cast<std::size_t>(i / blocks)];
          if (tile.gathered < 0) continue;
          const auto& chosen = selection.positions[static_cast<std::size_t>(tile.first)];
          float* target = gathered_.data() + tile.gathered * top_k * cache;
          const std::int64_t last = std::min<std::int64_t>((i % blocks + 1) * kBlock, static_cast<std::int64_t>(chosen.size()));
          for (std::int64_t e = i % blocks * kBlock; e < last; ++e) {
            const float* source = tile.keys + chosen[static_cast<std::size_t>(e)] * cache;
            std::copy(source, source + cache, target + e * cache);
          }
        }
      });
  for (Tile& tile : wave.tiles)
    if (tile.gathered >= 0) tile.keys = gathered_.data() + tile.gathered * top_k * cache;
}

// Scores, exact maximum, exponentials, then the sums in order (rule C6).
void MlaAttention::attend_tile(const Tile& tile, std::int64_t first_head, std::int64_t heads, const StepRows& step,
                               const Selection& selection, int worker) {
  const std::int64_t cache = shape_.cache_dim(), latent = shape_.kv_lora_rank, count = tile.rows * heads;
  float* queries = thread_scratch_.data() + worker * thread_floats_;
  float* packed = queries + tile_rows_ * head_group_ * cache;
  float* group_sum = packed + PackedRows::floats(tile_rows_ * head_group_, cache);
  float* scores = group_sum + head_group_ * latent;
  const Kernels& k = ops_.kernels();

  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const float* source = absorbed_.data() + ((tile.first + r) * heads_ + first_head) * cache;
    std::copy(source, source + heads * cache, queries + r * heads * cache);
  }
  const std::int64_t longest = entries(step, selection, tile.first + tile.rows - 1);  // positions rise
  k.matmul(f32_matrix(tile.keys, longest, cache, cache), 0, longest, ops_.pack(queries, cache, count, cache, packed), scores,
           max_context_, ops_.scratch(worker));

  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const std::int64_t n = entries(step, selection, tile.first + r);
    float* p = scores + r * heads * max_context_;
    float* out = latent_context_.data() + ((tile.first + r) * heads_ + first_head) * latent;
    for (std::int64_t h = 0; h < heads; ++h) {
      k.scale(p + h * max_context_, score_scale_, n);
      k.exp_minus(p + h * max_context_, k.max(p + h * max_context_, n), n);
    }
    std::fill(out, out + heads * latent, 0.0f);
    for (std::int64_t first = 0; first < n; first += numerics::kSumGroup) {
      const std::int64_t size = std::min(numerics::kSumGroup, n - first);
      k.weighted_sum(p + first, max_context_, heads, tile.keys + first * cache, cache, size, latent, group_sum, latent);
      k.add(out, group_sum, out, heads * latent);
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      float denominator = 0.0f;
      for (std::int64_t first = 0; first < n; first += numerics::kSumGroup)
        denominator = denominator + k.dot(ones_.data(), p + h * max_context_ + first, std::min(numerics::kSumGroup, n - first));
      k.scale(out + h * latent, 1.0f / denominator, latent);
    }
  }
}

}  // namespace colibri

// Multi-head latent attention in absorbed form, prefill included: queries meet the compressed cache directly, no
// per-head keys or values are ever formed (rules C2t, C5, C6 and C9 of docs/numerics.md).
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "format/config.h"
#include "model/indexer.h"
#include "model/ops.h"
#include "model/step.h"
#include "model/weights.h"

namespace colibri {

class MlaAttention {
 public:
  // weights: those that layers come from, for messages.
  MlaAttention(Ops& ops, const ModelConfig& config, const ModelWeights& weights, std::int64_t max_rows, std::int64_t max_context);

  // x: the residual rows [rows, hidden]; the layer's attention output is added. Writes the rows' cache entries. A layer with
  // an indexer replaces `selection`, others use it as it stands. Fails when a number is not finite.
  Result<void> run(const LayerWeights& layer, std::int64_t index, const StepRows& step, Selection& selection, float* x);

  std::uint64_t scratch_bytes() const;

 private:
  // Rows that read the same keys: neighbours that see everything share one tile, a row with its own selection stands alone.
  struct Tile {
    std::int64_t first = 0, rows = 0;
    const float* keys = nullptr;  // entries of cache_dim floats
    std::int64_t gathered = -1;   // slot of gathered_ when the keys were selected
  };
  // As many tiles as there is room for gathered keys.
  struct Wave {
    std::vector<Tile> tiles;
    std::int64_t slots = 0;
  };
  [[nodiscard]] bool absorb_queries(const MlaWeights& w, const StepRows& step);
  void attend(std::int64_t index, const StepRows& step, const Selection& selection);
  void attend_wave(Wave& wave, const StepRows& step, const Selection& selection);
  void gather(Wave& wave, const Selection& selection);
  void attend_tile(const Tile& tile, std::int64_t first_head, std::int64_t heads, const StepRows& step,
                   const Selection& selection, int worker);
  std::int64_t entries(const StepRows& step, const Selection& selection, std::int64_t r) const;

  Ops& ops_;
  const ModelWeights& weights_;
  MlaShape shape_;
  std::int64_t hidden_, heads_, max_context_;
  float eps_, score_scale_;
  std::int64_t head_group_, tile_rows_;
  std::optional<Indexer> indexer_;
  AlignedArray<float> normed_, packed_, q_latent_, queries_, kv_, absorbed_, latent_context_, packed_context_, context_, out_;
  AlignedArray<float> gathered_;        // [threads][index top_k][cache_dim]
  AlignedArray<float> thread_scratch_;  // per worker: queries, packed queries, group sums, scores
  std::int64_t thread_floats_ = 0;
  AlignedArray<float> ones_;
};

}  // namespace colibri

// Multi-head latent attention in absorbed form over the compressed cache (rules C5, C6 and C9 of docs/numerics.md).
#pragma once

#include "gpu/matrix_args.h"
#include "gpu/step_rows.h"

namespace colibri::gpu {

struct AttentionShape {
  std::int64_t heads = 0, latent = 0, rope = 0, nope = 0;  // latent: kv_lora_rank
  float score_scale = 0;
  std::int64_t cache_dim() const { return latent + rope; }
  std::int64_t query_dim() const { return nope + rope; }
};

// kv: f32[rows][latent + rope], the kv_a products. Writes every row's cache entry: RMSNorm (eps 1e-6) of the latent part, the
// rope part rotated. Values of kv that are not finite set kDamageAttention.
void write_cache_entries(Encoder& encoder, const AttentionShape& shape, const StepTable& step, Address kv, Address norm_weight,
                         float eps, Address damage);

// queries: f32[rows][heads][nope + rope]. Rotates the rope parts into absorbed: f32[rows][heads][latent + rope], whose latent
// parts transposed_head_products has written; then a value of absorbed that is not finite sets kDamageAttention.
void rotate_queries(Encoder& encoder, const AttentionShape& shape, const StepTable& step, Address queries, Address absorbed,
                    Address damage);

// Scores, exact maximum, exponentials, sums in order. context: f32[rows][heads][latent]. Where cache_dim() is a multiple of 4,
// the rows' entries start at multiples of 16 bytes. With a selection (chosen not 0) a row without a list sees at most top_k
// entries. Scores of as many rows as fit into scratch (16-byte aligned) are formed at a time; it holds at least
// attention_scratch_bytes(shape, 1, longest). Barriers between the passes are set here; none before the first or after the last.
void attend(Encoder& encoder, const AttentionShape& shape, const StepTable& step, const SelectionTable& selection,
            Address absorbed, Address context, Address scratch, std::uint64_t scratch_bytes);
// Bytes with which `rows` rows are computed at once, in the way that is fastest for so many. longest: entries that one row
// attends to at most (top_k with a selection).
std::uint64_t attention_scratch_bytes(const AttentionShape& shape, std::int64_t rows, std::int64_t longest);

// How attend() goes about it; the choice shows in speed and memory, never in bits.
struct AttentionPlan {
  std::int64_t tile_heads = 1;  // heads that share the entries a thread loads
  std::int64_t stride = 0;      // floats of one head's scores
  std::int64_t groups = 0;      // of 2,048 entries, of a row that sees `longest`
  std::int64_t parts_per_group =
      1;  // weighted sums are kept by group, or 32: by chunk of 64 entries while there is room and too few threads
  std::int64_t rows_at_once = 0;  // 0: scratch is too small

  std::uint64_t score_bytes(const AttentionShape& shape, std::int64_t rows) const;
  std::uint64_t group_bytes(const AttentionShape& shape, std::int64_t rows) const;  // of the maxima; of the denominators
  std::uint64_t part_bytes(const AttentionShape& shape, std::int64_t rows) const;
  std::uint64_t bytes(const AttentionShape& shape, std::int64_t rows) const;  // all of it
};
AttentionPlan plan_attention(const AttentionShape& shape, std::int64_t rows, std::int64_t longest, std::uint64_t scratch_bytes);

}  // namespace colibri::gpu

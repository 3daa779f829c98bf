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

// Scores, exact maximum, exponentials, sums in order. context: f32[rows][heads][latent]. Scores of as many rows as fit into
// scratch are formed at a time; scratch holds at least attention_scratch_bytes(shape, 1, longest).
void attend(Encoder& encoder, const AttentionShape& shape, const StepTable& step, const SelectionTable& selection, Address absorbed,
            Address context, Address scratch, std::uint64_t scratch_bytes);
std::uint64_t attention_scratch_bytes(const AttentionShape& shape, std::int64_t rows, std::int64_t longest);

}  // namespace colibri::gpu

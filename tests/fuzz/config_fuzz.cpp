// Any two texts as config.json and generation_config.json (split at the first line that is "---"): an error, or a
// configuration inside its limits.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "format/config.h"

using namespace colibri;

namespace {

void require(bool promise) {
  if (!promise) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size), cut = "\n---\n";
  const std::size_t at = text.find(cut);
  const auto c = ModelConfig::parse(text.substr(0, at), at == text.npos ? std::string_view() : text.substr(at + cut.size()));
  if (!c) {
    require(!c.error().message.empty());
    return 0;
  }
  require(c->layers >= 1 && c->layers <= 1024 && c->mtp_layers >= 0);
  require(c->sparse.size() == static_cast<std::size_t>(c->layers) && c->indexer_full.size() == c->sparse.size() &&
          c->indexer_full[0]);
  require(c->experts_per_token >= 1 && c->experts_per_token <= c->experts);
  require(c->mla.qk_rope_head_dim % 2 == 0 && c->indexer.head_dim >= c->mla.qk_rope_head_dim);
  require(c->rms_norm_eps > 0 && std::isfinite(c->rope_theta) && std::isfinite(c->routed_scaling_factor));
  for (const std::int32_t id : c->eos_ids) require(id >= 0 && id < c->vocab_size);
  // The largest arrays that the engine makes of these numbers can be counted in 64 bits.
  std::int64_t product = 0;
  const std::int64_t head_dims = c->mla.qk_head_dim() + c->mla.v_head_dim;
  require(!__builtin_mul_overflow(4 * c->heads * head_dims, std::max(c->hidden_size, c->mla.kv_lora_rank), &product));
  require(!__builtin_mul_overflow(4 * c->vocab_size, c->hidden_size, &product));
  require(!__builtin_mul_overflow(4 * c->experts * c->moe_intermediate_size, c->hidden_size, &product));
  require(!__builtin_mul_overflow(4 * (c->layers + c->mtp_layers) * c->max_positions, c->mla.cache_dim(), &product));
  return 0;
}

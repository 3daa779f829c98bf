#include "model/kv_cache.h"

namespace colibri {

KvCache::KvCache(const ModelConfig& config, const std::vector<bool>& indexed, std::int64_t capacity)
    : capacity_(capacity), row_stride_(config.mla.cache_dim()), key_dim_(config.indexer.head_dim) {
  std::size_t bytes = 0;
  const auto take = [&](std::int64_t floats) {
    const std::size_t at = bytes;
    bytes += round_up(static_cast<std::size_t>(floats) * sizeof(float), kWeightAlignment);
    return at;
  };
  for (const bool keys : indexed) {
    Layer layer;
    layer.rows = take(capacity * row_stride_);
    layer.has_keys = keys;
    if (keys) layer.keys = take(capacity * key_dim_);
    layers_.push_back(layer);
  }
  memory_ = AlignedBytes::pages(bytes);
}

std::uint64_t KvCache::bytes_per_position(const ModelConfig& config, const std::vector<bool>& indexed) {
  std::int64_t floats = 0;
  for (const bool keys : indexed) floats += config.mla.cache_dim() + (keys ? config.indexer.head_dim : 0);
  return static_cast<std::uint64_t>(floats) * sizeof(float);
}

}  // namespace colibri

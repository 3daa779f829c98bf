#include "model/kv_cache.h"

namespace colibri {

KvCache::KvCache(const ModelConfig& config, const std::vector<bool>& indexed, std::int64_t capacity)
    : capacity_(capacity), row_stride_(config.mla.cache_dim()), key_dim_(config.indexer.head_dim) {
  for (const bool keys : indexed) {
    rows_.emplace_back(static_cast<std::size_t>(capacity * row_stride_));
    keys_.emplace_back(keys ? static_cast<std::size_t>(capacity * key_dim_) : 0);
  }
}

std::uint64_t KvCache::bytes_per_position(const ModelConfig& config, const std::vector<bool>& indexed) {
  std::int64_t floats = 0;
  for (const bool keys : indexed) floats += config.mla.cache_dim() + (keys ? config.indexer.head_dim : 0);
  return static_cast<std::uint64_t>(floats) * sizeof(float);
}

}  // namespace colibri

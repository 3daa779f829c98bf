// The state of one sequence: per layer and position the compressed key-value row, and the indexer's key.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "format/config.h"

namespace colibri {

class KvCache {
 public:
  // capacity: positions. layers: the main ones and, when the model has it, the MTP layer. indexed[l]: layer l keeps indexer
  // keys. Memory is touched only as positions are written.
  KvCache(const ModelConfig& config, const std::vector<bool>& indexed, std::int64_t capacity);

  std::int64_t capacity() const { return capacity_; }

  // Row t of layer l: kv_lora_rank latent floats (after their norm), then qk_rope_head_dim floats of the rotated rope key.
  // Rows are row_stride() floats apart.
  float* row(std::int64_t layer, std::int64_t position) {
    return rows_[static_cast<std::size_t>(layer)].data() + position * row_stride_;
  }
  std::int64_t row_stride() const { return row_stride_; }
  // Indexer key of position t: index_head_dim floats, consecutive.
  float* index_key(std::int64_t layer, std::int64_t position) {
    return keys_[static_cast<std::size_t>(layer)].data() + position * key_dim_;
  }

  static std::uint64_t bytes_per_position(const ModelConfig& config, const std::vector<bool>& indexed);

 private:
  std::int64_t capacity_, row_stride_, key_dim_;
  std::vector<AlignedArray<float>> rows_, keys_;
};

}  // namespace colibri

// The state of one sequence: per layer and position the compressed key-value row, and the indexer's key.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
    return floats(layers_[static_cast<std::size_t>(layer)].rows) + position * row_stride_;
  }
  std::int64_t row_stride() const { return row_stride_; }
  // Indexer key of position t: index_head_dim floats, consecutive. Only of layers that keep them.
  float* index_key(std::int64_t layer, std::int64_t position) {
    return floats(layers_[static_cast<std::size_t>(layer)].keys) + position * key_dim_;
  }
  bool indexed(std::int64_t layer) const { return layers_[static_cast<std::size_t>(layer)].has_keys; }

  static std::uint64_t bytes_per_position(const ModelConfig& config, const std::vector<bool>& indexed);

  // All of it, whole pages, for registration with a device; `lease` is kept until just before the memory is given back.
  std::span<std::byte> memory() { return memory_.whole_pages(); }
  void keep(std::shared_ptr<void> lease) { lease_ = std::move(lease); }

 private:
  struct Layer {  // in bytes from the start of the memory
    std::size_t rows = 0, keys = 0;
    bool has_keys = false;
  };
  float* floats(std::size_t offset) { return reinterpret_cast<float*>(memory_.data() + offset); }

  std::int64_t capacity_, row_stride_, key_dim_;
  std::vector<Layer> layers_;
  AlignedBytes memory_;
  std::shared_ptr<void> lease_;  // after memory_: goes first
};

}  // namespace colibri

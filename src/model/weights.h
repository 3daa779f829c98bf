// The dense weights of a model in memory, and where its routed experts lie: the only place that knows tensor names.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/thread_team.h"
#include "experts/expert_source.h"
#include "format/checkpoint.h"
#include "format/config.h"
#include "format/matrix_block.h"

namespace colibri {

struct IndexerWeights {
  Matrix wq_b;          // [index heads * index head dim, q_lora_rank]
  Matrix wk;            // [index head dim, hidden]
  Matrix weights_proj;  // [index heads, hidden]
  AlignedArray<float> k_norm, k_norm_bias;
};

struct MlaWeights {
  Matrix q_a;   // [q_lora_rank, hidden]
  Matrix q_b;   // [heads * (nope + rope), q_lora_rank]
  Matrix kv_a;  // [kv_lora_rank + rope, hidden]
  Matrix kv_b;  // [heads * (nope + v), kv_lora_rank]: per head W_K, then W_V
  Matrix o;     // [hidden, heads * v]
  AlignedArray<float> q_a_norm, kv_a_norm;
  std::optional<IndexerWeights> indexer;  // only on layers that make their own selection
};

// SwiGLU: down(silu(gate x) * (up x)).
struct MlpWeights {
  Matrix gate, up, down;
};

struct LayerWeights {
  AlignedArray<float> input_norm, post_attention_norm;
  MlaWeights attention;
  MlpWeights mlp;  // the dense MLP, or the shared experts of a sparse layer (rows == 0 when there are none)
  bool sparse = false;
  Matrix router;  // [experts, hidden]
  AlignedArray<float> router_bias;
};

// Multi-token prediction: a whole sparse layer of its own behind a projection of (next token, hidden state).
struct MtpWeights {
  Matrix eh_proj;  // [hidden, 2 * hidden]
  AlignedArray<float> embedding_norm, hidden_norm, head_norm;
  LayerWeights layer;
};

struct ModelWeights {
  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;

  Matrix embedding;  // [vocab, hidden]
  Matrix head;       // [vocab, hidden]
  AlignedArray<float> final_norm;
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp;                   // present when its tensors are
  std::vector<std::vector<ExpertRecord>> experts;  // [layer][expert], the MTP layer last; empty for dense layers
  std::vector<std::string> notices;                // what a user should know about this model
  std::uint64_t dense_bytes = 0;                   // matrices held in memory

  // Resolves every tensor by name and shape, reads only the norms and biases: afterwards dense_bytes, experts and notices
  // are known and the matrices are still empty. config must belong to checkpoint, which must outlive this.
  static Result<std::unique_ptr<ModelWeights>> plan(const Checkpoint& checkpoint, const ModelConfig& config);
  // Reads the matrices, in parallel.
  Result<void> read(ThreadTeam& team);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  // Where the matrices lie, whole pages, for registration with a device.
  std::span<std::byte> memory() { return memory_.whole_pages(); }
  // Where one of the matrices above came from; it must have been read.
  const MatrixSource& source_of(const Matrix& matrix) const;

 private:
  explicit ModelWeights(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  const Checkpoint& checkpoint_;
  AlignedBytes memory_;
  std::vector<MatrixRead> reads_;  // their targets are inside this object, which therefore never moves
  friend class WeightLoader;
};

}  // namespace colibri

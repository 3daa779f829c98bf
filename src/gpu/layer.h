// One layer of the graph, encoded from the operations of this room: norm, attention, norm, then a dense MLP or router, shared
// and routed experts. Nothing is updated in place: a layer reads x and writes x_out, so that it can be computed again.
#pragma once

#include <optional>

#include "gpu/attention.h"
#include "gpu/experts.h"
#include "gpu/indexer.h"
#include "gpu/router.h"

namespace colibri::gpu {

// What all layers of a model share.
struct LayerShape {
  std::int64_t hidden = 0, q_lora_rank = 0, v_head_dim = 0;
  float eps = 0;         // of the layer's own norms
  float latent_eps = 0;  // of the norms of the query and key-value latents (rule C5)
  AttentionShape attention;
  IndexerShape indexer;  // top_k 0: the model selects nothing
  RouterShape router;
  std::int64_t moe_intermediate = 0;
  std::int64_t widest_mlp = 0;  // of the dense layers and shared experts

  std::int64_t head_rows() const { return attention.nope + v_head_dim; }  // rows of kv_b per head: W_K, then W_V
};

struct IndexerView {
  Matrix wq_b, wk, weights_proj;
  Address k_norm = 0, k_norm_bias = 0;
};

// The weights of one layer: matrices in registered memory, norms and biases as f32 arrays of the device.
struct LayerView {
  Address input_norm = 0, post_attention_norm = 0, q_a_norm = 0, kv_a_norm = 0;
  Matrix q_a, q_b, kv_a, kv_b, o;
  std::optional<IndexerView> indexer;  // a layer without one uses the last selection
  Matrix gate, up, down;               // the dense MLP or the shared experts; rows == 0: none
  bool sparse = false;
  Matrix router;
  Address router_bias = 0;
  // Formats of the routed experts, and their table (ExpertEntry[experts]) when all of them are in memory, else 0.
  WeightFormat expert_gate = WeightFormat::kF32, expert_up = WeightFormat::kF32, expert_down = WeightFormat::kF32;
  Address experts = 0;
};

// Activations between the operations of a layer, laid out in one region.
struct LayerBuffers {
  Address normed, q_latent, queries, kv, absorbed, latent_context, context, attention_out, mid;
  Address index_keys, index_queries, index_weights;
  Address logits, chosen, weights, gate, up, mlp_out;
  Address predicted_normed, predicted_logits, predicted, predicted_weights;
  Address groups, expert_act, expert_out;
  Address scratch;
  std::uint64_t scratch_bytes = 0;

  // The least that works for this shape; attention and indexer take what they need for a few rows at the longest context.
  static std::uint64_t bytes(const LayerShape& shape, std::int64_t max_rows, std::int64_t max_context);
  static LayerBuffers place(const LayerShape& shape, std::int64_t max_rows, std::int64_t max_context, Address memory);
};

class LayerEncoder {
 public:
  LayerEncoder(const LayerShape& shape, const ProductPlan& plan, const LayerBuffers& buffers)
      : shape_(shape), plan_(plan), buffers_(buffers) {}
  const LayerBuffers& buffers() const { return buffers_; }
  ExpertShape expert_shape(const LayerView& layer) const;

  // mid = x + attention(x). A layer with an indexer fills `selection`, others use it as it stands.
  void attention(Encoder& e, const LayerView& layer, const StepTable& step, const SelectionTable& selection, Address x,
                 Address damage) const;
  // From mid: normed; for a sparse layer the router's choice (chosen, weights).
  void router(Encoder& e, const LayerView& layer, std::int64_t rows, Address damage) const;
  // What the next layer's router would choose for mid (predicted), to read its experts early.
  void prediction(Encoder& e, const LayerView& next, std::int64_t rows, Address damage) const;
  // mlp_out = the dense MLP or the shared experts of normed.
  void mlp(Encoder& e, const LayerView& layer, std::int64_t rows) const;
  // x_out = mid + mlp_out, for a dense layer.
  void dense_end(Encoder& e, std::int64_t rows, Address x_out, Address damage) const;
  // The rows' slots by expert, from chosen.
  void group(Encoder& e, const LayerView& layer, std::int64_t rows) const;
  // Outputs of the experts that the table holds.
  void experts(Encoder& e, const LayerView& layer, std::int64_t rows, Address table) const;
  // x_out = mid + (routed sum + shared).
  void sparse_end(Encoder& e, const LayerView& layer, std::int64_t rows, Address x_out, Address damage) const;

 private:
  LayerShape shape_;
  ProductPlan plan_;
  LayerBuffers buffers_;
};

}  // namespace colibri::gpu

// DSA's lightning indexer: scores every visible position cheaply and keeps the best (rule C11 of docs/numerics.md).
#pragma once

#include "base/result.h"
#include "format/config.h"
#include "model/ops.h"
#include "model/step.h"
#include "model/weights.h"

namespace colibri {

class Indexer {
 public:
  Indexer(Ops& ops, const ModelConfig& config, std::int64_t max_rows, std::int64_t max_context);

  // The products of the layer's normed input (packed): the keys to be and the weights of the heads.
  void add_input_products(const IndexerWeights& w, const PackedRows& input, std::vector<Product>& products);
  // The queries, from the normed q_a output (packed).
  void add_query_product(const IndexerWeights& w, const PackedRows& q_latent, std::vector<Product>& products);
  std::uint64_t scratch_bytes() const;
  // After those products: writes the rows' keys to their caches, then chooses positions for every row that sees more than
  // top_k of them. False when a number is not finite.
  [[nodiscard]] bool select(const IndexerWeights& w, std::int64_t layer, const StepRows& step, Selection& selection);

 private:
  Ops& ops_;
  IndexerShape shape_;
  std::int64_t rope_dims_, max_context_;
  float dot_scale_, head_scale_;
  std::int64_t wave_;  // rows scored together
  AlignedArray<float> keys_, head_weights_, queries_, rotated_, packed_, scores_, dots_;
  std::vector<std::vector<std::int32_t>> chosen_;
};

}  // namespace colibri

// Which experts a model would choose, without the model: a generator of expert ids that are skewed and correlated over
// time as those of real routers are. Synthetic test beds use it in place of a router's choice, so that caches and
// prefetch have something to learn.
//
// Every expert of every layer has a score per position, the sum of four parts: a lasting one (Zipf-like skew over the
// layer's experts, in an order of the layer's own), one of the topic (a few topics come and go and return), one of the
// phrase (a stretch of tokens that never returns), and noise that stays the same from one position to the next with some
// probability. The best top_k scores are chosen, as a router does.
//
// The choice is a function of (options, position, layer) alone: chunks, batches and order of asking change nothing.
// docs/cache.md has the statistics that the defaults reach beside those observed in real models.
#pragma once

#include <cstdint>
#include <vector>

#include "experts/trace.h"
#include "format/synthetic_routing.h"

namespace colibri {

// The description a model carries, and the sizes it is for. The parts' weights count only by their ratios; each part has
// unit spread, the lasting one falls with the logarithm of the rank.
struct RoutingOptions : SyntheticRouting {
  std::int64_t layers = 0;   // layer numbers run from 0 to layers - 1, whether or not all are asked for
  std::int64_t experts = 0;  // of one layer
  std::int64_t top_k = 0;
};

class RoutingModel {
 public:
  explicit RoutingModel(const RoutingOptions& options);

  const RoutingOptions& options() const { return options_; }
  // The top_k experts of one position in rank order, distinct.
  void choose(std::int64_t position, std::int64_t layer, std::vector<std::int32_t>& ids) const;
  // top_k experts as a look at the layer before would predict them: each chosen one is found with the recall (the
  // best ranks more surely than the last), the rest are near misses. Best first, distinct.
  void predict(std::int64_t position, std::int64_t layer, std::vector<std::int32_t>& ids) const;

  // What a score is made of, for yardsticks that are told a part of it: the topic's number and the position at which the
  // phrase began, and the parts, each times its weight. What is left of a score is noise.
  std::int64_t topic_at(std::int64_t position) const;
  std::int64_t phrase_at(std::int64_t position) const;
  double lasting_part(std::int64_t layer, std::int64_t expert) const;
  double topic_part(std::int64_t topic, std::int64_t layer, std::int64_t expert) const;
  double phrase_part(std::int64_t phrase, std::int64_t layer, std::int64_t expert) const;

 private:
  // Experts by falling score, the first `count` of them.
  void rank(std::int64_t position, std::int64_t layer, std::size_t count, std::vector<std::int32_t>& ids) const;
  std::uint64_t topic_key(std::int64_t topic, std::int64_t layer) const;
  std::uint64_t phrase_key(std::int64_t phrase, std::int64_t layer) const;
  std::int64_t segment_start(std::uint64_t stream, std::int64_t position, std::uint64_t threshold) const;

  RoutingOptions options_;
  std::vector<std::int32_t> lasting_;  // [layers][experts], scores in 1/4096 of a unit
  std::int64_t topic_weight_, phrase_weight_, noise_weight_;
  std::uint64_t topic_end_, phrase_end_, noise_end_;  // thresholds of a 32-bit draw
};

// A trace of the model: `prefill` positions in chunks of chunk_rows, then `decode` positions one by one; `rounds` times,
// positions running on. Only sparse_layers are asked. Times are zero.
struct RoutingRun {
  std::int64_t prefill = 0, chunk_rows = 128, decode = 0, rounds = 1;
  std::int64_t expert_bytes = 1;
};
Trace trace_of(const RoutingModel& model, const std::vector<std::int64_t>& sparse_layers, const RoutingRun& run);

}  // namespace colibri

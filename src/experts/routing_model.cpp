#include "experts/routing_model.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace colibri {
namespace {

constexpr double kUnit = 4096;
constexpr std::int64_t kLongestHold = 64;        // an expert's noise is redrawn after at most so many positions
constexpr std::int64_t kLongestSegment = 16384;  // the same for topics and phrases

enum Stream : std::uint64_t {
  kOrder = 1,
  kTopicEnd,
  kTopicDraw,
  kTopicScore,
  kPhraseEnd,
  kPhraseScore,
  kNoiseEnd,
  kNoiseDraw,
  kRecall
};

// Mixes the bits of a 64-bit number (a bijection with full avalanche).
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return mix(a ^ mix(b)); }

// A bell-shaped number of mean 0 and standard deviation kUnit: the sum of four uniform ones, in integers, so that
// every machine draws the same.
constexpr std::int64_t bell(std::uint64_t bits) {
  const auto sum = static_cast<std::int64_t>((bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48));
  // The sum's standard deviation is 65536 / sqrt(3).
  return (sum - std::int64_t{2} * 65535) * 7094 / 65536;
}

std::int64_t weight(double w) { return std::llround(w * kUnit); }
// A draw of 32 bits below the threshold ends a segment of this mean length.
std::uint64_t threshold(double probability) {
  return static_cast<std::uint64_t>(std::llround(std::clamp(probability, 0.0, 1.0) * 4294967296.0));
}

}  // namespace

RoutingModel::RoutingModel(const RoutingOptions& options)
    : options_(options),
      lasting_(static_cast<std::size_t>(options.layers * options.experts)),
      topic_weight_(weight(options.topic)),
      phrase_weight_(weight(options.phrase)),
      noise_weight_(weight(options.noise)),
      topic_end_(threshold(1 / options.topic_tokens)),
      phrase_end_(threshold(1 / options.phrase_tokens)),
      noise_end_(threshold(1 - options.sticky)) {
  assert(options.layers > 0 && options.top_k > 0 && options.top_k <= options.experts);
  assert(options.topics > 0 && options.topic_tokens >= 1 && options.phrase_tokens >= 1);
  std::vector<std::int32_t> order(static_cast<std::size_t>(options.experts));
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    const std::uint64_t key = mix(mix(options.seed, kOrder), static_cast<std::uint64_t>(layer));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return mix(key, static_cast<std::uint64_t>(a)) < mix(key, static_cast<std::uint64_t>(b));
    });
    for (std::size_t r = 0; r < order.size(); ++r)
      lasting_[static_cast<std::size_t>(layer * options.experts + order[r])] =
          static_cast<std::int32_t>(std::llround(-options.skew * kUnit * std::log(static_cast<double>(r + 1))));
  }
}

// The latest position up to `position` where a segment of this stream starts.
std::int64_t RoutingModel::segment_start(std::uint64_t stream, std::int64_t position, std::uint64_t end) const {
  const std::uint64_t key = mix(options_.seed, stream);
  const std::int64_t first = std::max<std::int64_t>(0, position - kLongestSegment);
  std::int64_t p = position;
  while (p > first && (mix(key, static_cast<std::uint64_t>(p)) >> 32) >= end) --p;
  return p;
}

std::int64_t RoutingModel::topic_at(std::int64_t position) const {
  const auto start = static_cast<std::uint64_t>(segment_start(kTopicEnd, position, topic_end_));
  return static_cast<std::int64_t>(mix(mix(options_.seed, kTopicDraw), start) % static_cast<std::uint64_t>(options_.topics));
}
std::int64_t RoutingModel::phrase_at(std::int64_t position) const { return segment_start(kPhraseEnd, position, phrase_end_); }

std::uint64_t RoutingModel::topic_key(std::int64_t topic, std::int64_t layer) const {
  return mix(mix(mix(options_.seed, kTopicScore), static_cast<std::uint64_t>(topic)), static_cast<std::uint64_t>(layer));
}
std::uint64_t RoutingModel::phrase_key(std::int64_t phrase, std::int64_t layer) const {
  return mix(mix(mix(options_.seed, kPhraseScore), static_cast<std::uint64_t>(phrase)), static_cast<std::uint64_t>(layer));
}

double RoutingModel::lasting_part(std::int64_t layer, std::int64_t expert) const {
  return lasting_[static_cast<std::size_t>(layer * options_.experts + expert)] / kUnit;
}
double RoutingModel::topic_part(std::int64_t topic, std::int64_t layer, std::int64_t expert) const {
  return static_cast<double>(topic_weight_ * bell(mix(topic_key(topic, layer) ^ static_cast<std::uint64_t>(expert)))) /
         (kUnit * kUnit);
}
double RoutingModel::phrase_part(std::int64_t phrase, std::int64_t layer, std::int64_t expert) const {
  return static_cast<double>(phrase_weight_ * bell(mix(phrase_key(phrase, layer) ^ static_cast<std::uint64_t>(expert)))) /
         (kUnit * kUnit);
}

void RoutingModel::rank(std::int64_t position, std::int64_t layer, std::size_t count, std::vector<std::int32_t>& ids) const {
  const std::uint64_t seed = options_.seed, at_layer = static_cast<std::uint64_t>(layer);
  const std::uint64_t of_topic = topic_key(topic_at(position), layer), of_phrase = phrase_key(phrase_at(position), layer);
  const std::uint64_t end_key = mix(mix(seed, kNoiseEnd), at_layer), draw_key = mix(mix(seed, kNoiseDraw), at_layer);
  std::vector<std::int64_t> scores(static_cast<std::size_t>(options_.experts));
  for (std::size_t e = 0; e < scores.size(); ++e) {
    std::int64_t drawn = position;  // where this expert's noise was last drawn
    const std::int64_t first = std::max<std::int64_t>(0, position - kLongestHold);
    const auto noise_at = [&](std::int64_t p) { return (static_cast<std::uint64_t>(p) << 20) | e; };
    while (drawn > first && (mix(end_key ^ noise_at(drawn)) >> 32) >= noise_end_) --drawn;
    scores[e] =
        std::int64_t{lasting_[static_cast<std::size_t>(layer * options_.experts) + e]} * static_cast<std::int64_t>(kUnit) +
        topic_weight_ * bell(mix(of_topic ^ e)) + phrase_weight_ * bell(mix(of_phrase ^ e)) +
        noise_weight_ * bell(mix(draw_key ^ noise_at(drawn)));
  }
  ids.resize(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  count = std::min(count, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const auto x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  ids.resize(count);
}

void RoutingModel::choose(std::int64_t position, std::int64_t layer, std::vector<std::int32_t>& ids) const {
  rank(position, layer, static_cast<std::size_t>(options_.top_k), ids);
}

void RoutingModel::predict(std::int64_t position, std::int64_t layer, std::vector<std::int32_t>& ids) const {
  const auto k = static_cast<std::size_t>(options_.top_k);
  std::vector<std::int32_t> candidates;
  rank(position, layer, 2 * k, candidates);
  const std::uint64_t key =
      mix(mix(mix(options_.seed, kRecall), static_cast<std::uint64_t>(layer)), static_cast<std::uint64_t>(position));
  // The chance falls evenly over the ranks around the mean, as far as it may.
  const double tilt = k > 1 ? std::min({0.17, options_.recall, 1 - options_.recall}) : 0;
  ids.clear();
  for (std::size_t r = 0; r < k; ++r) {
    const double place = k > 1 ? 1 - 2 * static_cast<double>(r) / static_cast<double>(k - 1) : 0;
    if ((mix(key ^ r) >> 32) < threshold(options_.recall + tilt * place)) ids.push_back(candidates[r]);
  }
  for (std::size_t r = k; r < candidates.size() && ids.size() < k; ++r) ids.push_back(candidates[r]);
}

Trace trace_of(const RoutingModel& model, const std::vector<std::int64_t>& sparse_layers, const RoutingRun& run) {
  const RoutingOptions& o = model.options();
  Trace trace;
  trace.model = {o.layers, o.experts, o.top_k, run.expert_bytes};
  std::vector<std::int32_t> ids;
  std::int64_t position = 0;
  const auto add_step = [&](StepPhase phase, std::int64_t rows) {
    TraceStep step{phase, rows, 0, {}};
    for (const std::int64_t layer : sparse_layers) {
      LayerAccess access;
      access.layer = layer;
      std::vector<std::int32_t> at(static_cast<std::size_t>(o.experts), -1);  // place in needed
      const auto collect = [&](std::vector<std::int32_t>& list, bool count) {
        for (const std::int32_t id : ids) {
          std::int32_t& place = at[static_cast<std::size_t>(id)];
          if (place < 0) {
            place = static_cast<std::int32_t>(list.size());
            list.push_back(id);
            if (count) access.rows.push_back(0);
          }
          if (count) ++access.rows[static_cast<std::size_t>(place)];
        }
      };
      for (std::int64_t row = 0; row < rows; ++row) {
        model.choose(position + row, layer, ids);
        collect(access.needed, true);
      }
      at.assign(at.size(), -1);
      for (std::int64_t row = 0; row < rows; ++row) {
        if (layer == sparse_layers.front()) break;  // nothing comes before it to predict from
        model.predict(position + row, layer, ids);
        collect(access.predicted, false);
      }
      step.accesses.push_back(std::move(access));
    }
    position += rows;
    trace.steps.push_back(std::move(step));
  };
  for (std::int64_t round = 0; round < run.rounds; ++round) {
    for (std::int64_t done = 0; done < run.prefill; done += run.chunk_rows)
      add_step(StepPhase::kPrefill, std::min(run.chunk_rows, run.prefill - done));
    for (std::int64_t i = 0; i < run.decode; ++i) add_step(StepPhase::kDecode, 1);
  }
  return trace;
}

}  // namespace colibri

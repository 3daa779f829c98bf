// The default policy: it estimates how likely each expert is to be needed at the next turn of its layer, and learns while
// it runs how to estimate that.
//
// Per expert it keeps what it was used for lately, as averages over six horizons from one turn to some hundreds; two
// figures from affinity, how often the expert was used soon after the experts that are being used now; and one from memory,
// how often it was used in those earlier passages of the text that chose experts like the present one. Routing has a
// grammar (topics, phrases, names), so what follows what tells more than how often each expert comes alone. A linear
// regression of the actual requests on these nine features gives their weights; it runs over all layers together. The
// last dozen turns count much in it, since after a change of topic other features can be relied on than before, and the
// last thousand keep it steady. No tuning per model is needed, and no division of labour between "recency" and
// "frequency" is assumed: the data decide.
//
// A prefill chunk counts as one turn in which every expert was used as often as its share of the rows. However long
// a prompt is, it moves the averages little, and what decode steps use stays on top.
#include <algorithm>
#include <array>

#include "experts/passage_memory.h"
#include "experts/policies.h"

namespace colibri {
namespace {

constexpr int kHorizons = 6;
constexpr std::array<double, kHorizons> kDecay = {0, 0.5, 0.8, 0.92, 0.98, 0.997};  // of an average, per turn
constexpr int kAffinityNow = kHorizons, kAffinityLately = kHorizons + 1, kRecalled = kHorizons + 2;
constexpr int kFeatures = kHorizons + 3;
constexpr double kForget = 0.999;        // of the regression, per decode step
constexpr double kForgetLately = 0.9;    // of its short window
constexpr double kLatelyCounts = 30;     // a step of the short window, against one of the long
constexpr double kRidge = 1e-3;          // keeps the equations solvable while features are still equal
constexpr float kAffinityRate = 0.02f;   // of the affinity's averages
constexpr double kRecentDecay = 0.8;     // what "lately" means to it
constexpr double kRecentLeast = 0.02;    // experts used less than this lately have no say
constexpr double kPresentDecay = 0.97;   // of the average that is compared with earlier passages
constexpr int kRecallEvery = 8;          // decode steps: what passage this is changes slowly
constexpr double kPredictedWorth = 1.0;  // a prediction gives way to experts expected within one turn

using Features = std::array<double, kFeatures>;

// The sums that a least-squares fit needs.
struct Equations {
  std::array<Features, kFeatures> products{};  // lower triangle: sums of products of features
  Features targets{};                          // sums of features times what they should have told

  void add(const Features& f, double target) {
    for (int i = 0; i < kFeatures; ++i) {
      targets[i] += f[i] * target;
      for (int j = 0; j <= i; ++j) products[i][j] += f[i] * f[j];
    }
  }
  void add(const Equations& other, double weight) {
    for (int i = 0; i < kFeatures; ++i) {
      targets[i] += weight * other.targets[i];
      for (int j = 0; j <= i; ++j) products[i][j] += weight * other.products[i][j];
    }
  }
  void scale(double factor) {
    for (int i = 0; i < kFeatures; ++i) {
      targets[i] *= factor;
      for (int j = 0; j <= i; ++j) products[i][j] *= factor;
    }
  }
  // The weights of least squared error: Gaussian elimination on the normal equations (positive definite by the ridge).
  Features solve() const {
    std::array<Features, kFeatures> m;
    Features v = targets, weights{};
    for (int i = 0; i < kFeatures; ++i)
      for (int j = 0; j < kFeatures; ++j) m[i][j] = products[std::max(i, j)][std::min(i, j)] + (i == j ? kRidge : 0);
    for (int i = 0; i < kFeatures; ++i)
      for (int j = i + 1; j < kFeatures; ++j) {
        const double q = m[j][i] / m[i][i];
        for (int k = i; k < kFeatures; ++k) m[j][k] -= q * m[i][k];
        v[j] -= q * v[i];
      }
    for (int i = kFeatures - 1; i >= 0; --i) {
      for (int k = i + 1; k < kFeatures; ++k) v[i] -= m[i][k] * weights[k];
      weights[i] = v[i] / m[i][i];
    }
    return weights;
  }
};

class Learned final : public CachePolicy {
 public:
  explicit Learned(const CacheShape& shape)
      : shape_(shape),
        features_(shape.count()),
        value_(shape.count()),
        recent_(shape.count()),
        present_(shape.count()),
        follows_(static_cast<std::size_t>(shape.layers)),
        passages_(shape.count()),
        used_(static_cast<std::size_t>(shape.experts)),
        sum_(static_cast<std::size_t>(shape.experts)) {
    // Until it has seen something, all features count alike.
    for (int i = 0; i < kFeatures; ++i) {
      long_.products[i][i] = 1;
      long_.targets[i] = weights_[i] = 1.0 / kFeatures;
    }
  }

  void begin_step(StepPhase phase, std::int64_t rows) override {
    phase_ = phase;
    rows_ = static_cast<double>(rows);
    if (turns_++ > 0) passages_.end_turn();
    if (phase != StepPhase::kDecode) return;
    long_.add(step_, 1);
    short_.add(step_, 1);
    step_ = {};
    Equations both = long_;
    both.add(short_, kLatelyCounts);
    weights_ = both.solve();
    long_.scale(kForget);
    short_.scale(kForgetLately);
    if (steps_++ % kRecallEvery == 0) passages_.recall(present_);
  }

  void access(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows) override {
    std::fill(used_.begin(), used_.end(), 0.0);
    for (std::size_t i = 0; i < ids.size(); ++i) used_[static_cast<std::size_t>(ids[i])] = rows[i] / rows_;
    const std::size_t first = shape_.index(layer, 0);
    auto* features = &features_[first];
    double* recent = &recent_[first];
    auto& follows = follows_[static_cast<std::size_t>(layer)];
    if (follows.empty()) follows.resize(static_cast<std::size_t>(shape_.experts * shape_.experts));
    const auto experts = static_cast<std::size_t>(shape_.experts);
    if (phase_ == StepPhase::kDecode) {
      for (std::size_t e = 0; e < experts; ++e) step_.add(features[e], used_[e]);
      for (std::size_t p = 0; p < experts; ++p) {
        if (recent[p] < kRecentLeast) continue;
        float* row = &follows[p * experts];
        const float rate = kAffinityRate * static_cast<float>(recent[p]);
        for (std::size_t e = 0; e < experts; ++e) row[e] += rate * (static_cast<float>(used_[e]) - row[e]);
      }
    }
    passages_.note(first, used_);
    for (std::size_t e = 0; e < experts; ++e) {
      for (int i = 0; i < kHorizons; ++i) features[e][i] += (1 - kDecay[i]) * (used_[e] - features[e][i]);
      features[e][kRecalled] = passages_.recalled(first + e);
      recent[e] += (1 - kRecentDecay) * (used_[e] - recent[e]);
      present_[first + e] += (1 - kPresentDecay) * (used_[e] - present_[first + e]);
    }
    set_affinity(follows, used_.data(), 0, features, kAffinityNow);
    set_affinity(follows, recent, kRecentLeast, features, kAffinityLately);
    for (std::size_t e = 0; e < experts; ++e) {
      double sum = 0;
      for (int i = 0; i < kFeatures; ++i) sum += weights_[i] * features[e][i];
      value_[first + e] = sum;
    }
  }

  double value(std::int64_t layer, std::int64_t expert) const override { return value_[shape_.index(layer, expert)]; }

  // One over the turns until the next use that this probability lets expect: the layer's turn comes after `turns`, and
  // then it is as many whole turns again as the probability says.
  double value_ahead(double value, double turns) const override {
    const double p = std::clamp(value, 1e-9, 1.0);
    return 1 / (turns + 1 / p - 1);
  }
  bool admits_prefetch(double victim) const override { return victim < kPredictedWorth; }

 private:
  // The weighted mean of what follows the experts in `weight`, as feature `index` of every expert.
  void set_affinity(const std::vector<float>& follows, const double* weight, double least, Features* features, int index) {
    const std::size_t experts = sum_.size();
    std::fill(sum_.begin(), sum_.end(), 0.0f);
    double total = 1e-9;
    for (std::size_t p = 0; p < experts; ++p) {
      if (weight[p] <= least) continue;
      total += weight[p];
      const auto w = static_cast<float>(weight[p]);
      const float* row = &follows[p * experts];
      for (std::size_t e = 0; e < experts; ++e) sum_[e] += w * row[e];
    }
    for (std::size_t e = 0; e < experts; ++e) features[e][static_cast<std::size_t>(index)] = sum_[e] / total;
  }

  CacheShape shape_;
  std::vector<Features> features_;           // per expert
  std::vector<double> value_;                // per expert: the estimate made of them
  std::vector<double> recent_;               // per expert: use lately, for the affinity
  std::vector<double> present_;              // per expert: use in the present passage, for the memory
  std::vector<std::vector<float>> follows_;  // per layer [p][e]: use of e in the turn after recent use of p
  PassageMemory passages_;
  std::vector<double> used_;  // per expert of the layer at hand: share of the rows that chose it
  std::vector<float> sum_;
  Equations step_, short_, long_;  // of the step at hand, the last dozen and the last thousand
  Features weights_{};
  std::int64_t steps_ = 0;  // of decode
  std::int64_t turns_ = 0;  // those and prefill chunks
  StepPhase phase_ = StepPhase::kDecode;
  double rows_ = 1;
};

}  // namespace

std::unique_ptr<CachePolicy> make_learned(const CacheShape& shape) { return std::make_unique<Learned>(shape); }

}  // namespace colibri

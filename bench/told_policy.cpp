#include "told_policy.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <span>

namespace colibri {
namespace {

// Scores are whole multiples of 1 / kSteps, so that a function of a score is a table.
constexpr int kSteps = 64;
constexpr int kRange = 10 * kSteps;  // entries below 0 and above

int to_steps(double score) { return static_cast<int>(std::lround(score * kSteps)); }

class Table {
 public:
  template <class F>
  explicit Table(const F& f) : values_(2 * kRange + 1) {
    for (int i = -kRange; i <= kRange; ++i) values_[static_cast<std::size_t>(i + kRange)] = static_cast<float>(f(i));
  }
  Table() = default;
  float at(int steps) const { return values_[static_cast<std::size_t>(std::clamp(steps, -kRange, kRange) + kRange)]; }

 private:
  std::vector<float> values_;
};

// The chance that a bell-shaped draw of the generator, the sum of four uniform ones of unit spread, is above x.
double bell_above(double x) {
  const double u = 2 - x / std::sqrt(3.0);  // mirrored, from 0 to 4
  if (u <= 0) return 0;
  if (u >= 4) return 1;
  constexpr std::array<double, 4> kBinomial = {1, -4, 6, -4};
  double sum = 0;
  for (std::size_t k = 0; k < kBinomial.size() && u > static_cast<double>(k); ++k)
    sum += kBinomial[k] * std::pow(u - static_cast<double>(k), 4);
  return sum / 24;
}

// A part of a score: a few values and how likely each is before anything is seen. A part that is told is one value, 0.
struct Part {
  std::vector<int> value{0};
  std::vector<float> weight{1};
  std::size_t size() const { return value.size(); }
};

Part bell_part(double spread, int points) {
  Part part{{}, {}};
  const double width = 7.0 / points;
  for (int i = 0; i < points; ++i) {
    const double low = -3.5 + width * i;
    part.value.push_back(to_steps(spread * (low + width / 2)));
    part.weight.push_back(static_cast<float>(bell_above(low) - bell_above(low + width)));
  }
  return part;
}

// The lasting part of an expert whose rank is not known: few values for many ranks where they are close together.
Part lasting_part(double skew, std::int64_t experts, int points) {
  Part part{{}, {}};
  double first = 0;
  for (int i = 0; i < points; ++i) {
    const double last = std::max(first + 1, std::round(std::pow(static_cast<double>(experts), (i + 1.0) / points)));
    double mean = 0;
    for (double rank = first; rank < last; ++rank) mean -= skew * std::log(rank + 1) / (last - first);
    part.value.push_back(to_steps(mean));
    part.weight.push_back(static_cast<float>((last - first) / static_cast<double>(experts)));
    first = last;
  }
  return part;
}

void normalise(std::span<float> weights) {
  float sum = 0;
  for (const float w : weights) sum += w;
  if (sum > 0)
    for (float& w : weights) w /= sum;
}

class ToldPolicy final : public CachePolicy {
 public:
  ToldPolicy(const RoutingModel& model, const CacheShape& shape, const Told& told)
      : model_(model),
        shape_(shape),
        told_(told),
        topics_(told.topic == Told::Part::kNothing ? 1 : static_cast<std::size_t>(model.options().topics)),
        sticky_(told.phrase == Told::Part::kIgnored ? 0 : static_cast<float>(model.options().sticky)),
        topic_ends_(static_cast<float>(1 / model.options().topic_tokens)),
        phrase_ends_(static_cast<float>(1 / model.options().phrase_tokens)),
        discount_(1 - 1 / told.horizon),
        layers_(static_cast<std::size_t>(shape.layers)),
        worth_(shape.count()) {
    assert(told.phrase != Told::Part::kIgnored || (told.lasting && told.topic == Told::Part::kScores));
    const RoutingOptions& o = model.options();
    const Part phrases = bell_part(o.phrase, 9);
    if (!told.lasting) lasting_ = lasting_part(o.skew, o.experts, 10);
    if (told.topic != Told::Part::kScores) topic_ = bell_part(o.topic, 13);
    if (told.phrase != Told::Part::kScores) phrase_ = phrases;
    make_tables(phrases);
  }

  void begin_step([[maybe_unused]] StepPhase phase, [[maybe_unused]] std::int64_t rows) override {
    assert(phase == StepPhase::kDecode && rows == 1);
    ++position_;
  }

  void access(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t>) override {
    Layer& l = layers_[static_cast<std::size_t>(layer)];
    if (l.experts.empty()) begin_layer(l, layer);
    const bool unaware = told_.phrase == Told::Part::kNothing;
    const std::int64_t topic = told_.topic == Told::Part::kNothing ? 0 : model_.topic_at(position_);
    const std::int64_t phrase = unaware ? position_ / kTurnsPerBar : model_.phrase_at(position_);
    const bool new_topic = topic != l.topic, new_phrase = phrase != l.phrase && !unaware;
    if (new_topic || new_phrase) {
      for (Expert& e : l.experts) begin_segment(e, l.topic, topic);
      tell_scores(l, layer, topic, phrase);
    }
    if (new_topic || phrase != l.phrase) {
      find_bar(l);
      for (Expert& e : l.experts) look_around(e, l.bar);
    }
    l.topic = topic;
    l.phrase = phrase;
    std::vector<bool> used(l.experts.size());
    for (const std::int32_t id : ids) used[static_cast<std::size_t>(id)] = true;
    for (std::size_t i = 0; i < used.size(); ++i) {
      Expert& e = l.experts[i];
      if (told_.phrase != Told::Part::kIgnored) learn(e, l.bar, used[i], new_topic || new_phrase ? 0 : sticky_);
      e.used = used[i];
      worth_[shape_.index(layer, static_cast<std::int64_t>(i))] = worth(e, l.bar);
    }
  }

  double value(std::int64_t layer, std::int64_t expert) const override { return worth_[shape_.index(layer, expert)]; }
  double value_ahead(double value, double turns) const override { return 1 / (turns + 1 / std::clamp(value, 1e-9, 1.0) - 1); }

 private:
  static constexpr std::int64_t kTurnsPerBar = 12;  // where nobody says when a phrase begins

  struct Expert {
    std::vector<float> weight;  // [lasting][topic][phrase]: how likely these values are, of the topic that is on
    // Of every topic [lasting][topic]: how likely these values make what was seen in its visits, times the weight that the
    // topic's value had before.
    std::vector<std::vector<float>> visits;
    std::vector<int> topic_told;        // the part of every topic, where it is told
    int lasting_told = 0;               // the same for the others
    int phrase_told = 0, now_told = 0;  // now: of the topic that is on and the lasting part
    double elsewhere = 0;               // expected discount of its next use, seen from the end of a topic
    bool used = false;                  // at the last turn
  };
  struct Layer {
    std::int64_t topic = -1, phrase = -1;
    int bar = 0;  // the score that is needed to be chosen
    std::vector<Expert> experts;
  };

  std::size_t pairs() const { return lasting_.size() * topic_.size(); }

  // What follows from a score x above the bar, in turns in which the expert stays unused. Where the noise stays, it goes
  // on being unused. In a phrase, h = arrives(x) + passes(x) * (discount expected at its end).
  void make_tables(const Part& phrases) {
    const RoutingOptions& o = model_.options();
    const double stay = (1 - topic_ends_) * (1 - phrase_ends_);
    chance_ = Table([&](int x) { return bell_above(-x / (kSteps * o.noise)); });
    const auto scale = [&](double p) { return discount_ / (1 - discount_ * (1 - p) * stay); };
    const auto fresh = [&](int x) { return (1 - double{sticky_}) * chance_.at(x); };
    arrives_ = Table([&](int x) { return scale(fresh(x)) * fresh(x); });
    passes_ = Table([&](int x) { return scale(fresh(x)) * (1 - fresh(x)); });
    const auto mean = [&](const Table& table) {
      return Table([&](int x) {
        double sum = 0;
        for (std::size_t i = 0; i < phrases.size(); ++i) sum += phrases.weight[i] * table.at(x + phrases.value[i]);
        return sum;
      });
    };
    any_chance_ = mean(chance_);
    any_arrives_ = mean(arrives_);
    any_passes_ = mean(passes_);
  }

  void begin_layer(Layer& l, std::int64_t layer) const {
    l.experts.resize(static_cast<std::size_t>(shape_.experts));
    std::vector<float> unseen;
    for (std::size_t i = 0; i < lasting_.size(); ++i) unseen.insert(unseen.end(), topic_.weight.begin(), topic_.weight.end());
    for (std::size_t i = 0; i < l.experts.size(); ++i) {
      Expert& e = l.experts[i];
      const auto id = static_cast<std::int64_t>(i);
      e.visits.assign(topics_, unseen);
      if (told_.lasting) e.lasting_told = to_steps(model_.lasting_part(layer, id));
      for (std::size_t k = 0; k < topics_; ++k)
        e.topic_told.push_back(
            told_.topic == Told::Part::kScores ? to_steps(model_.topic_part(static_cast<std::int64_t>(k), layer, id)) : 0);
    }
  }

  void tell_scores(Layer& l, std::int64_t layer, std::int64_t topic, std::int64_t phrase) const {
    for (std::size_t i = 0; i < l.experts.size(); ++i) {
      Expert& e = l.experts[i];
      e.now_told = e.lasting_told + e.topic_told[static_cast<std::size_t>(topic)];
      if (told_.phrase == Told::Part::kScores)
        e.phrase_told = to_steps(model_.phrase_part(phrase, layer, static_cast<std::int64_t>(i)));
    }
  }

  // How likely each lasting part is by all that was seen in topics other than this one.
  std::vector<float> lasting_by_others(const Expert& e, std::size_t topic) const {
    std::vector<float> weight = lasting_.weight;
    if (weight.size() == 1) return weight;
    for (std::size_t k = 0; k < topics_; ++k) {
      if (k == topic) continue;
      for (std::size_t i = 0; i < weight.size(); ++i) {
        float sum = 0;
        for (std::size_t j = 0; j < topic_.size(); ++j) sum += e.visits[k][i * topic_.size() + j];
        weight[i] *= sum;
      }
      normalise(weight);
    }
    return weight;
  }

  // Puts away what was learned of the topic that was on, forgets the phrase, and takes out what is known of the topic.
  void begin_segment(Expert& e, std::int64_t last, std::int64_t topic) const {
    if (last >= 0) {
      const std::vector<float> others = lasting_by_others(e, static_cast<std::size_t>(last));
      auto& visits = e.visits[static_cast<std::size_t>(last)];
      for (std::size_t p = 0; p < visits.size(); ++p) {
        float sum = 0;
        for (std::size_t q = 0; q < phrase_.size(); ++q) sum += e.weight[p * phrase_.size() + q];
        visits[p] = sum / std::max(others[p / topic_.size()], 1e-20F);
      }
      normalise(visits);
    }
    e.weight.resize(pairs() * phrase_.size());
    const std::vector<float> others = lasting_by_others(e, static_cast<std::size_t>(topic));
    const auto& visits = e.visits[static_cast<std::size_t>(topic)];
    for (std::size_t p = 0; p < pairs(); ++p)
      for (std::size_t q = 0; q < phrase_.size(); ++q)
        e.weight[p * phrase_.size() + q] = others[p / topic_.size()] * visits[p] * phrase_.weight[q];
    normalise(e.weight);
  }

  // f(score without the told parts, weight) for every value of the parts that are estimated.
  template <class F>
  void for_each_score(const Expert& e, const F& f) const {
    const float* weight = e.weight.data();
    for (const int l : lasting_.value)
      for (const int t : topic_.value)
        for (const int p : phrase_.value) f(l + t + p, *weight++);
  }

  // So high that top_k experts are above it on average.
  void find_bar(Layer& l) const {
    int low = -4 * kSteps, high = 8 * kSteps;
    while (high - low > 1) {
      const int bar = (low + high) / 2;
      double sum = 0;
      for (const Expert& e : l.experts) {
        const int told = e.now_told + e.phrase_told - bar;
        for_each_score(e, [&](int score, float weight) { sum += weight * chance_.at(told + score); });
      }
      (sum > static_cast<double>(shape_.top_k) ? low : high) = bar;
    }
    l.bar = low;
  }

  // What the expert will be worth in topics to come.
  void look_around(Expert& e, int bar) const {
    double chance = 0;
    for (std::size_t k = 0; k < topics_; ++k) {
      std::vector<float> weight = lasting_by_others(e, k);
      double sum = 0, total = 0;
      for (std::size_t p = 0; p < pairs(); ++p) {
        const std::size_t i = p / topic_.size(), j = p % topic_.size();
        const double w = double{weight[i]} * (told_.topic == Told::Part::kNothing ? topic_.weight[j] : e.visits[k][p]);
        total += w;
        sum += w * any_chance_.at(e.lasting_told + e.topic_told[k] + lasting_.value[i] + topic_.value[j] - bar);
      }
      chance += sum / total / static_cast<double>(topics_);
    }
    e.elsewhere = discount_ * chance / (1 - discount_ * (1 - chance));
  }

  // Bayes' rule for one turn; `sticky`: how likely the noise is that of the turn before.
  void learn(Expert& e, int bar, bool used, float sticky) const {
    const std::size_t phrases = phrase_.size(), topics = topic_.size();
    if (told_.phrase == Told::Part::kNothing)
      for (std::size_t p = 0; p < pairs(); ++p) {
        float* w = &e.weight[p * phrases];
        float sum = 0;
        for (std::size_t q = 0; q < phrases; ++q) sum += w[q];
        for (std::size_t q = 0; q < phrases; ++q) w[q] += phrase_ends_ * (sum * phrase_.weight[q] - w[q]);
      }
    if (told_.topic == Told::Part::kNothing)
      for (std::size_t i = 0; i < lasting_.size(); ++i)
        for (std::size_t q = 0; q < phrases; ++q) {
          float* w = &e.weight[i * topics * phrases + q];
          float sum = 0;
          for (std::size_t j = 0; j < topics; ++j) sum += w[j * phrases];
          for (std::size_t j = 0; j < topics; ++j) w[j * phrases] += topic_ends_ * (sum * topic_.weight[j] - w[j * phrases]);
        }
    const int told = e.now_told + e.phrase_told - bar;
    const float stayed = sticky * (e.used ? 1.0F : 0.0F);
    float* weight = e.weight.data();
    for_each_score(e, [&](int score, float) {
      const float p = stayed + (1 - sticky) * chance_.at(told + score);
      *weight++ *= used ? p : 1 - p;
    });
    normalise(e.weight);
  }

  double worth(const Expert& e, int bar) const {
    const double to_topic = topic_ends_, to_phrase = (1 - to_topic) * phrase_ends_;
    const std::size_t phrases = phrase_.size();
    double h = 0;
    for (std::size_t p = 0; p < pairs(); ++p) {
      const int x = e.now_told + lasting_.value[p / topic_.size()] + topic_.value[p % topic_.size()] - bar;
      const double passes = any_passes_.at(x);
      const double in_new_phrase = (any_arrives_.at(x) + passes * to_topic * e.elsewhere) / (1 - passes * to_phrase);
      const double at_end = to_phrase * in_new_phrase + to_topic * e.elsewhere;
      for (std::size_t q = 0; q < phrases; ++q) {
        const int y = x + e.phrase_told + phrase_.value[q];
        const double chance = sticky_ * (e.used ? 1 : 0) + (1 - sticky_) * chance_.at(y);
        h += e.weight[p * phrases + q] * discount_ * (chance + (1 - chance) * (arrives_.at(y) + passes_.at(y) * at_end));
      }
    }
    return h * (1 - discount_) / (discount_ * (1 - h));
  }

  const RoutingModel& model_;
  CacheShape shape_;
  Told told_;
  std::size_t topics_;
  float sticky_, topic_ends_, phrase_ends_;
  double discount_;
  Part lasting_, topic_, phrase_;  // what is estimated
  Table chance_, arrives_, passes_, any_chance_, any_arrives_, any_passes_;
  std::vector<Layer> layers_;
  std::vector<double> worth_;
  std::int64_t position_ = -1;
};

}  // namespace

std::unique_ptr<CachePolicy> make_told(const RoutingModel& model, const CacheShape& shape, const Told& told) {
  return std::make_unique<ToldPolicy>(model, shape, told);
}

}  // namespace colibri

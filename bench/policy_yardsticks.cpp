// How far policies could come on synthetic routing that are told some of what the generator draws, beside the policies that
// are told nothing: shares of the gap between LRU and Belady's optimum. docs/cache.md has results and what they mean.
//
//   policy_yardsticks [TOKENS [SEED [HORIZON [ROWS]]]]     default: 1500 1 10 abcdefgh
//
// HORIZON is that of told_policy.h, ROWS are the letters of the rows wanted. Rows e, f and g are slow: about a
// minute each for 1,500 tokens, ten for 12,000.
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "experts/replay.h"
#include "experts/routing_model.h"
#include "told_policy.h"

namespace colibri {
namespace {

constexpr double kFractions[] = {0.11, 0.25, 0.50, 0.76};

struct Arguments {
  std::int64_t tokens = 1500;
  std::uint64_t seed = 1;
  std::int64_t horizon = 10;
  std::string_view rows = "abcdefgh";
};

using Make = std::function<std::unique_ptr<CachePolicy>()>;
struct Row {
  char letter;
  const char* told;
  Make make;
};

// The worth of a layer's experts after each of its accesses. No policy here depends on the size of the cache, so its
// estimates are made once and serve all sizes.
std::vector<std::vector<float>> worths(const Trace& trace, CachePolicy& policy) {
  std::vector<std::vector<float>> all;
  for (const TraceStep& step : trace.steps) {
    policy.begin_step(step.phase, step.rows);
    for (const LayerAccess& access : step.accesses) {
      policy.access(access.layer, access.needed, access.rows);
      auto& values = all.emplace_back();
      for (std::int64_t e = 0; e < trace.model.experts; ++e) values.push_back(static_cast<float>(policy.value(access.layer, e)));
    }
  }
  return all;
}

class Recorded final : public CachePolicy {
 public:
  Recorded(const CacheShape& shape, const std::vector<std::vector<float>>& worths, const CachePolicy& policy)
      : worths_(worths), policy_(policy), now_(static_cast<std::size_t>(shape.layers)) {}
  void access(std::int64_t layer, std::span<const std::int32_t>, std::span<const std::int32_t>) override {
    now_[static_cast<std::size_t>(layer)] = next_++;
  }
  double value(std::int64_t layer, std::int64_t expert) const override {
    return double{worths_[now_[static_cast<std::size_t>(layer)]][static_cast<std::size_t>(expert)]};
  }
  double value_ahead(double value, double turns) const override { return policy_.value_ahead(value, turns); }

 private:
  const std::vector<std::vector<float>>& worths_;
  const CachePolicy& policy_;
  std::vector<std::size_t> now_;  // per layer: its last access
  std::size_t next_ = 0;
};

std::vector<Row> make_rows(const RoutingModel& model, const CacheShape& shape, double horizon) {
  using enum Told::Part;
  const auto told = [&](bool lasting, Told::Part topic, Told::Part phrase) -> Make {
    return [&model, shape, what = Told{lasting, topic, phrase, horizon}] { return make_told(model, shape, what); };
  };
  const auto named = [&](std::string_view name) -> Make {
    return [shape, name] { return std::move(*make_cache_policy(name, shape)); };
  };
  return {
      {'a', "lasting part, topic, phrase", told(true, kScores, kScores)},
      {'b', "lasting part, topic; phrase not looked at", told(true, kScores, kIgnored)},
      {'c', "lasting part, topic; when phrases begin", told(true, kScores, kSwitches)},
      {'d', "lasting part; which topic is on, when phrases begin", told(true, kSwitches, kSwitches)},
      {'e', "which topic is on, when phrases begin", told(false, kSwitches, kSwitches)},
      {'f', "when phrases begin", told(false, kNothing, kSwitches)},
      {'g', "form and constants alone", told(false, kNothing, kNothing)},
      {'h', "nothing: the default policy", named("default")},
  };
}

void compare(const Arguments& arguments) {
  RoutingOptions options;
  options.seed = arguments.seed;
  options.layers = 5;
  options.experts = 256;
  options.top_k = 8;
  const RoutingModel model(options);
  RoutingRun run;
  run.decode = arguments.tokens;
  const Trace trace = trace_of(model, {0, 1, 2, 3, 4}, run);
  const CacheShape shape = cache_shape(trace.model);
  std::vector<std::int64_t> sizes;
  for (const double f : kFractions) sizes.push_back(std::llround(f * static_cast<double>(shape.count())));

  const auto print = [](std::string_view name, const std::vector<double>& percent) {
    fmt::print("{:<54}", name);
    for (const double p : percent) fmt::print(" {:6.1f}", p);
  };
  std::vector<double> rates_of_lru, rates_of_optimum, shares;
  for (const double f : kFractions) shares.push_back(100 * f);
  print("percent of the experts in memory", shares);
  for (const std::int64_t slots : sizes) {
    CacheDirectory directory(shape, slots, std::move(*make_cache_policy("lru", shape)));
    rates_of_lru.push_back(100 * replay(trace, directory).decode.rate());
    rates_of_optimum.push_back(100 * belady_hits(trace, slots).decode.rate());
  }
  print("\nhits of LRU, percent", rates_of_lru);
  print("\nhits of the optimum, percent", rates_of_optimum);
  fmt::print("\nshare of the way between them, percent; told:{:>38}\n", "ms a layer and token");

  for (const Row& row : make_rows(model, shape, static_cast<double>(arguments.horizon))) {
    if (arguments.rows.find(row.letter) == std::string_view::npos) continue;
    const auto policy = row.make();
    const auto start = std::chrono::steady_clock::now();
    const auto values = worths(trace, *policy);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    std::vector<double> closed;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CacheDirectory directory(shape, sizes[i], std::make_unique<Recorded>(shape, values, *policy));
      const double rate = 100 * replay(trace, directory).decode.rate();
      closed.push_back(100 * (rate - rates_of_lru[i]) / (rates_of_optimum[i] - rates_of_lru[i]));
    }
    print(fmt::format("{}  {}", row.letter, row.told), closed);
    fmt::print(" {:8.3f}\n", took.count() / static_cast<double>(values.size()));
    std::fflush(stdout);
  }
}

template <class T>
bool parse(const char* text, T& value) {
  const char* const end = text + std::strlen(text);
  const auto result = std::from_chars(text, end, value);
  return result.ec == std::errc() && result.ptr == end && value > 0;
}

int run_program(int argc, char** argv) {
  Arguments arguments;
  const bool understood = (argc < 2 || parse(argv[1], arguments.tokens)) && (argc < 3 || parse(argv[2], arguments.seed)) &&
                          (argc < 4 || (parse(argv[3], arguments.horizon) && arguments.horizon > 1)) &&
                          (argc < 5 || std::string_view(argv[4]).find_first_not_of(arguments.rows) == std::string_view::npos) &&
                          argc < 6;
  if (!understood) {
    fmt::print(
        stderr,
        "usage: policy_yardsticks [TOKENS [SEED [HORIZON [ROWS]]]]: numbers from 1 (HORIZON from 2), letters from a to h\n");
    return 2;
  }
  if (argc == 5) arguments.rows = argv[4];
  compare(arguments);
  return 0;
}

}  // namespace
}  // namespace colibri

int main(int argc, char** argv) { return colibri::run_program(argc, argv); }

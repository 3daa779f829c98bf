#include "format/synthetic_routing.h"

#include <nlohmann/json.hpp>

#include "format/file.h"

namespace colibri {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxConfigBytes = 16 << 20;

struct Number {
  const char* key;
  double SyntheticRouting::* field;
  double low, high;
};
constexpr Number kNumbers[] = {
    {"skew", &SyntheticRouting::skew, 0, 1000},
    {"topic", &SyntheticRouting::topic, 0, 1000},
    {"phrase", &SyntheticRouting::phrase, 0, 1000},
    {"noise", &SyntheticRouting::noise, 0, 1000},
    {"topic_tokens", &SyntheticRouting::topic_tokens, 1, 1e6},
    {"phrase_tokens", &SyntheticRouting::phrase_tokens, 1, 1e6},
    {"sticky", &SyntheticRouting::sticky, 0, 1},
    {"recall", &SyntheticRouting::recall, 0, 1},
};
constexpr std::int64_t kMaxTopics = 1 << 16;

}  // namespace

std::string synthetic_routing_json(const SyntheticRouting& routing) {
  json object = {{"seed", routing.seed}, {"topics", routing.topics}};
  for (const Number& n : kNumbers) object[n.key] = routing.*n.field;
  return object.dump();
}

Result<std::optional<SyntheticRouting>> parse_synthetic_routing(std::string_view config) {
  const json root = json::parse(config.begin(), config.end(), nullptr, false);
  if (!root.is_object()) return fail("config.json: expected a JSON object");
  const auto it = root.find(kSyntheticRoutingKey);
  if (it == root.end()) return std::nullopt;
  if (!it->is_object()) return fail("config.json: {}: expected an object", kSyntheticRoutingKey);
  SyntheticRouting routing;
  for (const Number& n : kNumbers) {
    const auto value = it->find(n.key);
    if (value == it->end()) continue;
    const double number = value->is_number() ? value->get<double>() : n.low - 1;
    if (!(number >= n.low && number <= n.high))
      return fail("config.json: {}.{}: expected a number from {} to {}", kSyntheticRoutingKey, n.key, n.low, n.high);
    routing.*n.field = number;
  }
  if (const auto value = it->find("seed"); value != it->end()) {
    if (!value->is_number_unsigned()) return fail("config.json: {}.seed: expected an integer from 0", kSyntheticRoutingKey);
    routing.seed = value->get<std::uint64_t>();
  }
  if (const auto value = it->find("topics"); value != it->end()) {
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 || value->get<std::uint64_t>() > kMaxTopics)
      return fail("config.json: {}.topics: expected an integer from 1 to {}", kSyntheticRoutingKey, kMaxTopics);
    routing.topics = value->get<std::int64_t>();
  }
  return routing;
}

Result<std::optional<SyntheticRouting>> load_synthetic_routing(const std::filesystem::path& model_dir) {
  COLIBRI_TRY(text, read_text(model_dir / "config.json", kMaxConfigBytes));
  return parse_synthetic_routing(text);
}

}  // namespace colibri

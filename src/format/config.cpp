#include "format/config.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "format/file.h"

namespace colibri {
namespace {

using nlohmann::json;

// Upper bounds of single values. The largest products that the engine forms of them (heads x head sizes x hidden,
// vocabulary x hidden, experts x sizes, each times four bytes) stay far below 2^63.
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxHidden = 1 << 20;
constexpr std::int64_t kMaxVocab = 1 << 24;
constexpr std::int64_t kMaxHeads = 1 << 12;
constexpr std::int64_t kMaxHeadDim = 1 << 14;
constexpr std::int64_t kMaxRank = 1 << 18;
constexpr std::int64_t kMaxInner = 1 << 22;
constexpr std::int64_t kMaxExperts = 1 << 16;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;
constexpr std::size_t kMaxEosIds = 64;
constexpr std::uint64_t kMaxFileBytes = 16 << 20;
constexpr int kMaxDepth = 32;

// A value as it may stand in a message.
std::string found(const json& value) {
  return in_quotes(value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 256));
}

// One JSON object. Getters check type and range; the first thing wrong is kept and later calls return harmless
// values, so that a family reads like its list of keys. A key that is null counts as absent.
class Keys {
 public:
  explicit Keys(const json& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

  const json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high, std::optional<std::int64_t> absent = {}) {
    const json* value = find(key);
    if (!value) {
      if (!absent) problem(key, fmt::format("is missing, expected an integer from {} to {}", low, high));
      return absent.value_or(low);
    }
    if (const auto number = as_integer(*value); number && *number >= low && *number <= high) return *number;
    problem(key, fmt::format("expected an integer from {} to {}, found {}", low, high, found(*value)));
    return low;
  }

  // Above low, at most high.
  double number(const char* key, double low, double high, std::optional<double> absent = {}) {
    const json* value = find(key);
    if (!value) {
      if (!absent) problem(key, fmt::format("is missing, expected a number above {} and up to {}", low, high));
      return absent.value_or(high);
    }
    if (value->is_number())
      if (const double number = value->get<double>(); number > low && number <= high) return number;
    problem(key, fmt::format("expected a number above {} and up to {}, found {}", low, high, found(*value)));
    return high;
  }

  bool boolean(const char* key, bool absent) {
    const json* value = find(key);
    if (!value) return absent;
    if (value->is_boolean()) return value->get<bool>();
    problem(key, "expected true or false, found " + found(*value));
    return absent;
  }

  // A key that may be there, but only with this value: the engine computes nothing else.
  void only(const char* key, const json& value) {
    const json* have = find(key);
    if (have && *have != value) problem(key, fmt::format("is {}, colibri computes only {}", found(*have), value.dump()));
  }

  // A list of one word per layer, true where it is `yes`. Layers past `layers` (MTP) may be listed too.
  std::optional<std::vector<bool>> layer_words(const char* key, std::int64_t layers, std::int64_t extra, const char* yes,
                                               const char* no) {
    const json* list = find(key);
    if (!list) return std::nullopt;
    std::vector<bool> result(static_cast<std::size_t>(layers));
    if (!list->is_array() || (list->size() != result.size() && list->size() != result.size() + static_cast<std::size_t>(extra))) {
      problem(key, fmt::format("expected a list of {} words \"{}\" or \"{}\", found {}", layers, yes, no,
                               list->is_array() ? fmt::format("{} entries", list->size()) : found(*list)));
      return result;
    }
    for (std::size_t i = 0; i < result.size(); ++i) {
      const json& word = (*list)[i];
      result[i] = word == yes;
      if (word != yes && word != no)
        problem(key, fmt::format("entry {}: expected \"{}\" or \"{}\", found {}", i, yes, no, found(word)));
    }
    return result;
  }

  // An id or a list of ids, appended to `ids` unless already there.
  void token_ids(const char* key, std::int64_t vocab, std::vector<std::int32_t>& ids) {
    const json* value = find(key);
    if (!value) return;
    const json list = value->is_array() ? *value : json::array({*value});
    if (list.size() > kMaxEosIds) return problem(key, fmt::format("{} ids, expected at most {}", list.size(), kMaxEosIds));
    for (const json& entry : list) {
      const auto id = as_integer(entry);
      if (!id || *id < 0 || *id >= vocab)
        return problem(key, fmt::format("expected ids from 0 to {}, found {}", vocab - 1, found(entry)));
      if (std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(static_cast<std::int32_t>(*id));
    }
  }

  void problem(const char* key, const std::string& text) {
    if (problem_.empty()) problem_ = fmt::format("{}{}: {}", prefix_, key, text);
  }
  Result<void> check() const {
    if (problem_.empty()) return {};
    return fail("{}", problem_);
  }

 private:
  static std::optional<std::int64_t> as_integer(const json& value) {
    if (!value.is_number_integer()) return std::nullopt;  // 128.0 is a float, not a size
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
    return value.get<std::int64_t>();
  }
  const json& object_;
  std::string prefix_;
  std::string problem_;
};

// rope_parameters (transformers 5) or the older pair of rope_theta and rope_scaling.
Result<double> read_rope_theta(const json& root, Keys& keys) {
  constexpr double kDefaultTheta = 10000;
  double theta = keys.number("rope_theta", 1, 1e15, kDefaultTheta);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* object = keys.find(key);
    if (!object) continue;
    if (!object->is_object()) return fail("{}: expected an object, found {}", key, found(*object));
    Keys rope(*object, std::string(key) + ".");
    rope.only("rope_type", "default");
    rope.only("type", "default");
    rope.only("partial_rotary_factor", 1.0);
    const double inner = rope.number("rope_theta", 1, 1e15, theta);
    if (root.contains("rope_theta") && inner != theta)
      rope.problem("rope_theta", fmt::format("is {}, but the top-level rope_theta is {}", inner, theta));
    theta = inner;
    COLIBRI_CHECK(rope.check());
  }
  return theta;
}

// Which layers compute their own selection of positions.
std::vector<bool> read_indexer_layers(Keys& keys, std::int64_t layers, std::int64_t mtp_layers) {
  std::vector<bool> full;
  const char* source = "indexer_types";
  if (auto words = keys.layer_words(source, layers, mtp_layers, "full", "shared")) {
    full = std::move(*words);
  } else {
    source = "index_skip_topk_offset";
    const std::int64_t every = keys.integer("index_topk_freq", 1, kMaxLayers, 1);
    const std::int64_t offset = keys.integer(source, 0, kMaxLayers, 2);
    for (std::int64_t i = 0; i < layers; ++i) full.push_back(std::max<std::int64_t>(i - offset + 1, 0) % every == 0);
  }
  if (!full.empty() && !full[0]) keys.problem(source, "layer 0 would share a selection, but no layer before it makes one");
  return full;
}

std::vector<bool> read_sparse_layers(Keys& keys, std::int64_t layers, std::int64_t mtp_layers) {
  if (auto words = keys.layer_words("mlp_layer_types", layers, mtp_layers, "sparse", "dense")) return std::move(*words);
  keys.only("moe_layer_freq", 1);
  const std::int64_t dense = keys.integer("first_k_dense_replace", 0, layers);
  std::vector<bool> sparse(static_cast<std::size_t>(layers), true);
  std::fill_n(sparse.begin(), dense, false);
  return sparse;
}

// FP8 checkpoints describe their blocks here; other quantisation methods show in the tensors' dtypes.
Result<void> check_quantization(const json& root) {
  const auto it = root.find("quantization_config");
  if (it == root.end() || !it->is_object()) return {};
  Keys keys(*it, "quantization_config.");
  keys.only("weight_block_size", json::array({128, 128}));
  return keys.check();
}

Result<ModelConfig> read_glm_moe_dsa(const json& root) {
  Keys keys(root);
  ModelConfig c;
  c.hidden_size = keys.integer("hidden_size", 1, kMaxHidden);
  c.vocab_size = keys.integer("vocab_size", 1, kMaxVocab);
  c.layers = keys.integer("num_hidden_layers", 1, kMaxLayers);
  c.mtp_layers = keys.integer("num_nextn_predict_layers", 0, 16, 0);
  c.heads = keys.integer("num_attention_heads", 1, kMaxHeads);
  c.max_positions = keys.integer("max_position_embeddings", 1, kMaxPositions);
  c.rms_norm_eps = static_cast<float>(keys.number("rms_norm_eps", 0, 1, 1e-5));
  if (!(c.rms_norm_eps > 0)) keys.problem("rms_norm_eps", "is too small for a 32-bit float");
  c.tie_word_embeddings = keys.boolean("tie_word_embeddings", false);

  c.mla.q_lora_rank = keys.integer("q_lora_rank", 1, kMaxRank);
  c.mla.kv_lora_rank = keys.integer("kv_lora_rank", 1, kMaxRank);
  c.mla.qk_nope_head_dim = keys.integer("qk_nope_head_dim", 1, kMaxHeadDim);
  c.mla.qk_rope_head_dim = keys.integer("qk_rope_head_dim", 2, kMaxHeadDim);
  c.mla.v_head_dim = keys.integer("v_head_dim", 1, kMaxHeadDim);
  if (c.mla.qk_rope_head_dim % 2 != 0) keys.problem("qk_rope_head_dim", "is odd, but rotary positions turn pairs");
  keys.only("qk_head_dim", c.mla.qk_head_dim());
  keys.only("attention_bias", false);
  keys.only("rope_interleave", true);
  keys.only("indexer_rope_interleave", true);

  c.indexer.heads = keys.integer("index_n_heads", 1, kMaxHeads);
  c.indexer.head_dim = keys.integer("index_head_dim", 1, kMaxHeadDim);
  c.indexer.top_k = keys.integer("index_topk", 1, kMaxPositions);
  if (c.indexer.head_dim < c.mla.qk_rope_head_dim)
    keys.problem("index_head_dim",
                 fmt::format("is {}, less than qk_rope_head_dim, {}", c.indexer.head_dim, c.mla.qk_rope_head_dim));
  c.indexer_full = read_indexer_layers(keys, c.layers, c.mtp_layers);

  c.sparse = read_sparse_layers(keys, c.layers, c.mtp_layers);
  c.intermediate_size = keys.integer("intermediate_size", 1, kMaxInner);
  c.moe_intermediate_size = keys.integer("moe_intermediate_size", 1, kMaxInner);
  c.experts = keys.integer("n_routed_experts", 1, kMaxExperts);
  c.experts_per_token = keys.integer("num_experts_per_tok", 1, c.experts);
  c.shared_experts = keys.integer("n_shared_experts", 0, 64, 0);
  c.router = RouterKind::kSigmoid;
  c.norm_topk_prob = keys.boolean("norm_topk_prob", true);
  c.routed_scaling_factor = static_cast<float>(keys.number("routed_scaling_factor", 0, 1e6, 1));
  keys.only("scoring_func", "sigmoid");
  keys.only("topk_method", "noaux_tc");
  keys.only("n_group", 1);
  keys.only("topk_group", 1);
  keys.only("hidden_act", "silu");
  keys.only("mlp_bias", false);
  COLIBRI_CHECK(keys.check());

  COLIBRI_TRY(theta, read_rope_theta(root, keys));
  c.rope_theta = theta;
  COLIBRI_CHECK(keys.check());
  return c;
}

struct Family {
  const char* model_type;
  Result<ModelConfig> (*read)(const json& root);
};
constexpr Family kFamilies[] = {{"glm_moe_dsa", read_glm_moe_dsa}};

std::string family_names() {
  std::string names;
  for (const Family& family : kFamilies) names += (names.empty() ? "" : ", ") + std::string(family.model_type);
  return names;
}

// A JSON object of limited depth: the library copies and prints values recursively.
Result<json> parse_object(std::string_view text) {
  bool too_deep = false;
  const auto keep = [&](int depth, json::parse_event_t, const json&) {
    if (depth > kMaxDepth) too_deep = true;
    return !too_deep;
  };
  json root = json::parse(text.begin(), text.end(), keep, false);
  if (too_deep) return fail("nested more than {} levels deep", kMaxDepth);
  if (root.is_discarded()) return fail("not valid JSON");
  if (!root.is_object()) return fail("expected a JSON object, found {}", found(root));
  return root;
}

}  // namespace

Result<ModelConfig> ModelConfig::parse(std::string_view config, std::string_view generation_config) {
  auto root = parse_object(config);
  if (!root) return fail("config.json: {}", root.error().message);
  const auto type = root->find("model_type");
  if (type == root->end() || !type->is_string())
    return fail("config.json: model_type: expected one of {}, found {}", family_names(),
                type == root->end() ? "no such key" : found(*type));
  const auto* family =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& f) { return *type == f.model_type; });
  if (family == std::end(kFamilies))
    return fail("config.json: model_type {} is not supported; colibri runs {}", in_quotes(type->get<std::string>()),
                family_names());

  auto result = family->read(*root);
  if (result) {
    result->model_type = family->model_type;
    if (auto check = check_quantization(*root); !check) result = pass(std::move(check).error());
  }
  if (!result) return fail("config.json: {}", result.error().message);

  if (!generation_config.empty()) {
    auto generation = parse_object(generation_config);
    if (!generation) return fail("generation_config.json: {}", generation.error().message);
    Keys keys(*generation);
    keys.token_ids("eos_token_id", result->vocab_size, result->eos_ids);
    if (auto check = keys.check(); !check) return fail("generation_config.json: {}", check.error().message);
  }
  Keys keys(*root);
  keys.token_ids("eos_token_id", result->vocab_size, result->eos_ids);
  if (auto check = keys.check(); !check) return fail("config.json: {}", check.error().message);
  return result;
}

Result<ModelConfig> ModelConfig::load(const std::filesystem::path& dir) {
  COLIBRI_TRY(config, read_text(dir / "config.json", kMaxFileBytes));
  std::string generation_config;
  std::error_code error;
  if (const auto path = dir / "generation_config.json"; std::filesystem::exists(path, error)) {
    COLIBRI_TRY(text, read_text(path, kMaxFileBytes));
    generation_config = std::move(text);
  }
  auto result = parse(config, generation_config);
  if (!result) return fail("{}/{}", dir.string(), result.error().message);
  return result;
}

}  // namespace colibri

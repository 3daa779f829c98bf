// The documents and the plan of a synthetic model.
#include <nlohmann/json.hpp>

#include "convert/matrix_units.h"
#include "convert/synth.h"
#include "convert/synth_jobs.h"

namespace colibri {
namespace {

using json = nlohmann::ordered_json;

constexpr const char* kSpecialTokens[] = {
    "<|endoftext|>",   "[MASK]",           "[gMASK]",         "[sMASK]",    "<sop>",       "<eop>",        "<|system|>",
    "<|user|>",        "<|assistant|>",    "<|observation|>", "<think>",    "</think>",    "<tool_call>",  "</tool_call>",
    "<tool_response>", "</tool_response>", "<arg_key>",       "</arg_key>", "<arg_value>", "</arg_value>", "/nothink"};
constexpr std::int64_t kSpecials = std::size(kSpecialTokens);
constexpr std::int64_t kSmallestVocab = 256 + kSpecials;

std::int64_t special_id(const SynthShape& shape, std::size_t index) {
  return shape.vocab - kSpecials + static_cast<std::int64_t>(index);
}

json eos_ids(const SynthShape& shape) {  // <|endoftext|>, <|user|>, <|observation|>, as the family has them
  return {special_id(shape, 0), special_id(shape, 7), special_id(shape, 9)};
}

std::string utf8(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 63))};
}

// The characters that stand for bytes in byte-level vocabularies: printable Latin-1 for itself, the others from U+0100 on.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> alphabet;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    alphabet.push_back(utf8(itself ? byte : next++));
  }
  return alphabet;
}

bool is_full_indexer_layer(std::int64_t i) { return std::max<std::int64_t>(i - 1, 0) % 4 == 0; }

Result<void> check_shape(const SynthOptions& o) {
  const SynthShape& s = o.shape;
  if (s.vocab < kSmallestVocab)
    return fail("a vocabulary of {}: expected at least {}, for bytes and special tokens", s.vocab, kSmallestVocab);
  if (o.sparse_layers < 1 || o.dense_layers < 0)
    return fail("{} sparse and {} dense layers: expected at least 1 sparse layer", o.sparse_layers, o.dense_layers);
  // The reader's own checks cover the rest.
  auto config = ModelConfig::parse(synth_config(o), synth_generation_config(s));
  if (!config) return fail("a synthetic model of this shape cannot be: {}", config.error().message);
  return {};
}

std::map<std::string, std::string> parameters_of(const SynthOptions& o) {
  return {{"made by", "coli synth"},
          {"config", synth_config(o)},
          {"seed", fmt::format("{}", o.seed)},
          {"experts", target_format_text(o.experts)},
          {"layout", o.packed ? "packed" : "plain"},
          {"shard bytes", fmt::format("{}", o.shard_bytes)}};
}

}  // namespace

Result<SynthShape> synth_shape(std::string_view like) {
  SynthShape s;
  if (like == "glm-5.2") {
    s.hidden = 6144, s.vocab = 154880, s.heads = 64;
    s.q_lora = 2048, s.kv_lora = 512, s.qk_nope = 192, s.qk_rope = 64, s.v_head = 256;
    s.index_heads = 32, s.index_head_dim = 128, s.index_topk = 2048;
    s.intermediate = 12288, s.moe_intermediate = 2048;
    s.experts = 256, s.experts_per_token = 8;
    s.max_positions = 202752;
    return s;
  }
  if (like == "tiny") {
    s.hidden = 128, s.vocab = 320, s.heads = 4;
    s.q_lora = 96, s.kv_lora = 64, s.qk_nope = 32, s.qk_rope = 16, s.v_head = 48;
    s.index_heads = 4, s.index_head_dim = 32, s.index_topk = 32;
    s.intermediate = 192, s.moe_intermediate = 64;
    s.experts = 16, s.experts_per_token = 4;
    s.max_positions = 4096;
    return s;
  }
  return fail("--like {}: expected glm-5.2 or tiny", like);
}

std::string synth_config(const SynthOptions& o) {
  const SynthShape& s = o.shape;
  const std::int64_t layers = o.dense_layers + o.sparse_layers;
  json mlp_types = json::array(), indexer_types = json::array();
  for (std::int64_t i = 0; i < layers; ++i) {
    mlp_types.push_back(i < o.dense_layers ? "dense" : "sparse");
    indexer_types.push_back(is_full_indexer_layer(i) ? "full" : "shared");
  }
  json root = {
      {"architectures", {"GlmMoeDsaForCausalLM"}},
      {"model_type", "glm_moe_dsa"},
      {"hidden_size", s.hidden},
      {"vocab_size", s.vocab},
      {"num_hidden_layers", layers},
      {"num_nextn_predict_layers", o.mtp ? 1 : 0},
      {"num_attention_heads", s.heads},
      {"num_key_value_heads", s.heads},
      {"max_position_embeddings", s.max_positions},
      {"q_lora_rank", s.q_lora},
      {"kv_lora_rank", s.kv_lora},
      {"qk_nope_head_dim", s.qk_nope},
      {"qk_rope_head_dim", s.qk_rope},
      {"qk_head_dim", s.qk_nope + s.qk_rope},
      {"v_head_dim", s.v_head},
      {"index_n_heads", s.index_heads},
      {"index_head_dim", s.index_head_dim},
      {"index_topk", s.index_topk},
      {"indexer_types", indexer_types},
      {"first_k_dense_replace", o.dense_layers},
      {"mlp_layer_types", mlp_types},
      {"intermediate_size", s.intermediate},
      {"moe_intermediate_size", s.moe_intermediate},
      {"n_routed_experts", s.experts},
      {"num_experts_per_tok", s.experts_per_token},
      {"n_shared_experts", s.shared_experts},
      {"n_group", 1},
      {"topk_group", 1},
      {"norm_topk_prob", true},
      {"routed_scaling_factor", 2.5},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"rms_norm_eps", 1e-5},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1000000.0}}},
      {"tie_word_embeddings", false},
      {"eos_token_id", eos_ids(s)},
      {"pad_token_id", special_id(s, 0)},
      {"colibri_synthetic", {{"like", o.like}, {"seed", o.seed}, {"note", "random weights: what this model says is noise"}}}};
  if (o.routing) root[kSyntheticRoutingKey] = json::parse(synthetic_routing_json(*o.routing));
  return root.dump(1) + "\n";
}

std::string synth_generation_config(const SynthShape& shape) {
  const json root = {{"eos_token_id", eos_ids(shape)}, {"temperature", 0.7}, {"top_p", 0.9}};
  return root.dump(1) + "\n";
}

std::string synth_tokenizer(const SynthShape& shape) {
  // The vocabulary as text: as a JSON object that keeps its order it would be searched for every entry.
  std::string vocab = "{";
  std::int64_t id = 0;
  const auto add = [&](const std::string& token) {
    vocab += fmt::format("{}{}:{}", id == 0 ? "" : ",", json(token).dump(), id);
    ++id;
  };
  const std::vector<std::string> alphabet = byte_alphabet();
  for (const std::string& character : alphabet) add(character);
  while (id < shape.vocab - kSpecials) add(fmt::format("{}w{}", alphabet[' '], id));
  json added = json::array();
  for (const char* token : kSpecialTokens)
    added.push_back({{"id", id++},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return fmt::format(
      "{{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":{},\"normalizer\":null,\"pre_tokenizer\":{},"
      "\"post_processor\":null,\"decoder\":{},\"model\":{{\"type\":\"BPE\",\"vocab\":{}}},\"merges\":[]}}}}\n",
      added.dump(), byte_level.dump(), byte_level.dump(), vocab);
}

Result<SynthPlan> plan_synth_jobs(const SynthOptions& options) {
  COLIBRI_CHECK(check_shape(options));
  COLIBRI_TRY(config, ModelConfig::parse(synth_config(options), {}));
  SynthPlan plan;
  std::vector<PlannedUnit> units;
  const auto add_job = [&](SynthJob job, PlannedUnit unit) {
    unit.job = plan.jobs.size();
    plan.jobs.push_back(std::move(job));
    units.push_back(std::move(unit));
  };
  const auto add_matrix = [&](const std::string& name, const TargetFormat& target, std::int64_t rows, std::int64_t cols,
                              double gain) -> Result<void> {
    const TargetFormat simple = simplified(target, cols);
    COLIBRI_TRY(tensors, matrix_tensors(name, simple, rows, cols));
    PlannedUnit unit;
    unit.tensors = std::move(tensors);
    add_job({{{name, describe_matrix(simple, rows, cols), gain}}}, std::move(unit));
    return {};
  };
  constexpr TargetFormat kInt8 = {WeightFormat::kInt8Row, 0}, kF32 = {WeightFormat::kF32, 0};
  const OptionalParts parts{.indexer = true, .mtp = options.mtp, .mtp_indexer = false, .head = true};
  const std::int64_t d = config.hidden_size, inner = config.moe_intermediate_size;
  for (const LayerCensus& layer : model_census(config, parts)) {
    for (const TensorSpec& spec : layer.dense) {
      if (spec.tensor_class == TensorClass::kFloats) {
        PlannedUnit unit;
        unit.tensors.push_back(planned_tensor(spec.name, DType::kF32, {spec.cols}));
        add_job({{{spec.name, describe_matrix(kF32, 1, spec.cols), 0}}}, std::move(unit));
      } else {
        COLIBRI_CHECK(add_matrix(spec.name, spec.tensor_class == TensorClass::kRouter ? kF32 : kInt8, spec.rows, spec.cols,
                                 synth_gain(spec)));
      }
    }
    for (const ExpertGroup& group : layer.experts) {
      const TargetFormat target = group.tensor_class == TensorClass::kMtpExperts ? kInt8 : options.experts;
      for (std::int64_t e = 0; e < config.experts; ++e) {
        SynthJob job;
        PlannedUnit unit;
        std::vector<PlannedTensor> blobs, scales;
        for (const char* which : {"gate", "up", "down"}) {
          const bool down = which[0] == 'd';
          const std::int64_t rows = down ? d : inner, cols = down ? inner : d;
          const TargetFormat simple = simplified(target, cols);
          const std::string name = fmt::format("{}{}.{}_proj.weight", group.prefix, e, which);
          job.matrices.push_back({name, describe_matrix(simple, rows, cols), 1});
          if (options.packed) continue;
          COLIBRI_TRY(tensors, matrix_tensors(name, simple, rows, cols));
          blobs.push_back(tensors.front());
          if (tensors.size() > 1) scales.push_back(tensors.back());
        }
        if (options.packed) {
          unit.record = make_packed_layout(job.matrices[0].matrix, job.matrices[1].matrix, job.matrices[2].matrix);
          unit.tensors.push_back(planned_tensor(packed_expert_name(group.prefix, e), DType::kU8,
                                                {static_cast<std::int64_t>(unit.record->record_bytes)}));
        } else {
          unit.tensors = std::move(blobs);
          unit.tensors.insert(unit.tensors.end(), scales.begin(), scales.end());
        }
        add_job(std::move(job), std::move(unit));
      }
    }
  }
  plan.files.shards = plan_shards(std::move(units), {options.shard_bytes, "coli " COLIBRI_VERSION, "synthetic " + options.like});
  plan.files.parameters = parameters_of(options);
  plan.files.documents = {{"config.json", synth_config(options)},
                          {"generation_config.json", synth_generation_config(options.shape)},
                          {"tokenizer.json", synth_tokenizer(options.shape)}};
  return plan;
}

}  // namespace colibri

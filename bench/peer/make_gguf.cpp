// Writes a GGUF file of random weights with the dimensions of a synthetic model that `coli synth` made, for the peer
// benchmark: routed experts in Q4_0 (the bits per weight of int4-g64), the other matrices in Q8_0.
//   make_gguf MODEL_DIR OUT.gguf
// Format: the GGUF specification, version 3; the names of keys and tensors are those of llama.cpp's glm-dsa architecture.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace {

using nlohmann::json;

enum class Type : std::uint32_t { kF32 = 0, kQ4_0 = 2, kQ8_0 = 8 };  // numbers of the format
constexpr std::int64_t kBlock = 32;                                  // values of a quantised block, one half-precision scale each
constexpr std::uint64_t kAlignment = 32;

std::uint64_t bytes_of(Type type, std::int64_t values) {
  const auto n = static_cast<std::uint64_t>(values);
  switch (type) {
    case Type::kF32: return 4 * n;
    case Type::kQ4_0: return n / kBlock * 18;
    case Type::kQ8_0: return n / kBlock * 34;
  }
  return 0;
}

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A little-endian writer into memory: the header.
class Header {
 public:
  template <class T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view s) {
    number<std::uint64_t>(s.size());
    bytes_.append(s);
  }
  void key(std::string_view name, std::uint32_t value) { entry(name, 4), number(value); }
  void key(std::string_view name, float value) { entry(name, 6), number(value); }
  void key(std::string_view name, bool value) { entry(name, 7), number<std::uint8_t>(value); }
  void key(std::string_view name, std::string_view value) { entry(name, 8), text(value); }
  std::uint64_t keys() const { return keys_; }
  std::string& bytes() { return bytes_; }

 private:
  void entry(std::string_view name, std::uint32_t type) {
    text(name);
    number(type);
    ++keys_;
  }
  std::string bytes_;
  std::uint64_t keys_ = 0;
};

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;  // fastest first
  Type type;
  float mean, deviation;
  std::int64_t values() const {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
  }
};

// xorshift64: fast, and good enough for weights that mean nothing.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u | 1) {}
  std::uint64_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  float around_zero() { return static_cast<float>(bits() >> 40) * (2.0f / 16777216.0f) - 1.0f; }  // -1 .. 1

 private:
  std::uint64_t state_;
};

// A positive normal half: enough for scales.
std::uint16_t half(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>(((bits >> 23) - 112) << 10 | (bits >> 13 & 1023));
}

void fill(const Tensor& t, Random& random, std::vector<std::uint8_t>& out) {
  const std::int64_t values = t.values();
  out.assign(aligned(bytes_of(t.type, values)), 0);
  if (t.type == Type::kF32) {
    auto* to = reinterpret_cast<float*>(out.data());
    for (std::int64_t i = 0; i < values; ++i) to[i] = t.mean + random.around_zero() * t.deviation * std::sqrt(3.0f);
    return;
  }
  const bool four = t.type == Type::kQ4_0;
  const std::size_t block = four ? 18 : 34;
  // Standard deviations of uniform codes: 4.61 and 73.9.
  const std::uint16_t scale = half(t.deviation / (four ? 4.61f : 73.9f));
  for (std::size_t at = 0; at + block <= out.size(); at += block) {
    std::memcpy(out.data() + at, &scale, 2);
    for (std::size_t i = 2; i < block; i += 8) {
      const std::uint64_t bits = random.bits();
      std::memcpy(out.data() + at + i, &bits, 8);
    }
  }
}

class Writer {
 public:
  explicit Writer(const json& config) : config_(config) {
    describe();
    list_tensors();
  }

  bool write(const char* path) {
    Header head;
    head.bytes().append("GGUF");
    head.number<std::uint32_t>(3);
    head.number<std::uint64_t>(tensors_.size());
    head.number<std::uint64_t>(keys_.keys());
    head.bytes() += keys_.bytes();
    std::uint64_t offset = 0;
    for (const Tensor& t : tensors_) {
      head.text(t.name);
      head.number(static_cast<std::uint32_t>(t.shape.size()));
      for (const std::int64_t d : t.shape) head.number<std::uint64_t>(static_cast<std::uint64_t>(d));
      head.number(static_cast<std::uint32_t>(t.type));
      head.number(offset);
      offset += aligned(bytes_of(t.type, t.values()));
    }
    head.bytes().resize(aligned(head.bytes().size()));
    std::FILE* file = std::fopen(path, "wb");
    if (!file) return false;
    bool good = std::fwrite(head.bytes().data(), 1, head.bytes().size(), file) == head.bytes().size();
    Random random(1);
    std::vector<std::uint8_t> data;
    for (const Tensor& t : tensors_) {
      fill(t, random, data);
      good = good && std::fwrite(data.data(), 1, data.size(), file) == data.size();
    }
    return std::fclose(file) == 0 && good;
  }

 private:
  std::int64_t at(const char* key) const { return config_.at(key).get<std::int64_t>(); }
  void number(const char* key, std::int64_t value) {
    keys_.key(std::string("glm-dsa.") + key, static_cast<std::uint32_t>(value));
  }

  void describe() {
    const std::int64_t latent = at("kv_lora_rank"), rope = at("qk_rope_head_dim");
    keys_.key("general.architecture", std::string_view("glm-dsa"));
    keys_.key("general.name", std::string_view("synthetic"));
    keys_.key("tokenizer.ggml.model", std::string_view("no_vocab"));
    number("vocab_size", at("vocab_size"));
    number("context_length", at("max_position_embeddings"));
    number("embedding_length", at("hidden_size"));
    number("block_count", at("num_hidden_layers"));
    number("feed_forward_length", at("intermediate_size"));
    number("expert_feed_forward_length", at("moe_intermediate_size"));
    number("expert_count", at("n_routed_experts"));
    number("expert_used_count", at("num_experts_per_tok"));
    number("expert_shared_count", at("n_shared_experts"));
    number("leading_dense_block_count", at("first_k_dense_replace"));
    number("expert_gating_func", 2);  // sigmoid
    keys_.key("glm-dsa.expert_weights_norm", true);
    keys_.key("glm-dsa.expert_weights_scale", config_.at("routed_scaling_factor").get<float>());
    number("attention.head_count", at("num_attention_heads"));
    number("attention.head_count_kv", 1);
    number("attention.key_length", latent + rope);
    number("attention.value_length", latent);
    number("attention.key_length_mla", at("qk_nope_head_dim") + rope);
    number("attention.value_length_mla", at("v_head_dim"));
    number("attention.q_lora_rank", at("q_lora_rank"));
    number("attention.kv_lora_rank", latent);
    number("attention.indexer.head_count", at("index_n_heads"));
    number("attention.indexer.key_length", at("index_head_dim"));
    number("attention.indexer.top_k", at("index_topk"));
    keys_.key("glm-dsa.attention.layer_norm_rms_epsilon", config_.at("rms_norm_eps").get<float>());
    number("rope.dimension_count", rope);
    keys_.key("glm-dsa.rope.freq_base", 10000.0f);
  }

  void matrix(const std::string& name, std::vector<std::int64_t> shape, Type type) {
    const float deviation = 1.0f / std::sqrt(static_cast<float>(shape[0]));
    tensors_.push_back({name, std::move(shape), type, 0, deviation});
  }
  void vector(const std::string& name, std::int64_t size, float mean = 1) {
    tensors_.push_back({name, {size}, Type::kF32, mean, 0.02f});
  }

  void list_tensors() {
    const std::int64_t hidden = at("hidden_size"), vocab = at("vocab_size");
    tensors_.push_back({"token_embd.weight", {hidden, vocab}, Type::kQ8_0, 0, 0.5f});
    vector("output_norm.weight", hidden);
    matrix("output.weight", {hidden, vocab}, Type::kQ8_0);
    for (std::int64_t i = 0; i < at("num_hidden_layers"); ++i)
      layer("blk." + std::to_string(i) + ".", i >= at("first_k_dense_replace"));
  }

  void layer(const std::string& b, bool sparse) {
    const std::int64_t hidden = at("hidden_size"), heads = at("num_attention_heads"), query = at("q_lora_rank");
    const std::int64_t latent = at("kv_lora_rank"), nope = at("qk_nope_head_dim"), rope = at("qk_rope_head_dim");
    const std::int64_t value = at("v_head_dim"), index_heads = at("index_n_heads"), index_dim = at("index_head_dim");
    vector(b + "attn_norm.weight", hidden);
    vector(b + "ffn_norm.weight", hidden);
    vector(b + "attn_q_a_norm.weight", query);
    vector(b + "attn_kv_a_norm.weight", latent);
    matrix(b + "attn_q_a.weight", {hidden, query}, Type::kQ8_0);
    matrix(b + "attn_q_b.weight", {query, heads * (nope + rope)}, Type::kQ8_0);
    matrix(b + "attn_kv_a_mqa.weight", {hidden, latent + rope}, Type::kQ8_0);
    matrix(b + "attn_k_b.weight", {nope, latent, heads}, Type::kQ8_0);
    matrix(b + "attn_v_b.weight", {latent, value, heads}, Type::kQ8_0);
    matrix(b + "attn_output.weight", {heads * value, hidden}, Type::kQ8_0);
    vector(b + "indexer.k_norm.weight", index_dim);
    vector(b + "indexer.k_norm.bias", index_dim, 0);
    matrix(b + "indexer.proj.weight", {hidden, index_heads}, Type::kF32);
    matrix(b + "indexer.attn_k.weight", {hidden, index_dim}, Type::kQ8_0);
    matrix(b + "indexer.attn_q_b.weight", {query, index_heads * index_dim}, Type::kQ8_0);
    if (!sparse) {
      const std::int64_t width = at("intermediate_size");
      matrix(b + "ffn_gate.weight", {hidden, width}, Type::kQ8_0);
      matrix(b + "ffn_up.weight", {hidden, width}, Type::kQ8_0);
      matrix(b + "ffn_down.weight", {width, hidden}, Type::kQ8_0);
      return;
    }
    const std::int64_t experts = at("n_routed_experts"), width = at("moe_intermediate_size"),
                       shared = width * at("n_shared_experts");
    matrix(b + "ffn_gate_inp.weight", {hidden, experts}, Type::kF32);
    vector(b + "exp_probs_b.bias", experts, 0);
    matrix(b + "ffn_gate_exps.weight", {hidden, width, experts}, Type::kQ4_0);
    matrix(b + "ffn_up_exps.weight", {hidden, width, experts}, Type::kQ4_0);
    matrix(b + "ffn_down_exps.weight", {width, hidden, experts}, Type::kQ4_0);
    matrix(b + "ffn_gate_shexp.weight", {hidden, shared}, Type::kQ8_0);
    matrix(b + "ffn_up_shexp.weight", {hidden, shared}, Type::kQ8_0);
    matrix(b + "ffn_down_shexp.weight", {shared, hidden}, Type::kQ8_0);
  }

  json config_;
  Header keys_;
  std::vector<Tensor> tensors_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: make_gguf MODEL_DIR OUT.gguf\n");
    return 2;
  }
  std::ifstream file(std::string(argv[1]) + "/config.json");
  const json config = json::parse(file, nullptr, false);
  if (!config.is_object()) {
    std::fprintf(stderr, "make_gguf: %s/config.json: not there, or not a JSON object\n", argv[1]);
    return 1;
  }
  try {
    if (Writer(config).write(argv[2])) return 0;
    std::perror(argv[2]);
  } catch (const json::exception& e) {
    std::fprintf(stderr, "make_gguf: %s/config.json: %s\n", argv[1], e.what());
  }
  return 1;
}

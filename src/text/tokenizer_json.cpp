// Tokenizer::load and parse: tokenizer.json, checked key by key.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "text/byte_alphabet.h"
#include "text/json_reader.h"
#include "text/normalizer.h"
#include "text/tokenizer_state.h"

namespace colibri {
namespace {

constexpr std::int64_t kMaxId = (std::int64_t{1} << 22) - 1;  // the largest vocabularies have about 2^18 tokens
constexpr std::uintmax_t kMaxFile = std::uintmax_t{1} << 28;  // and their files about 2^25 bytes
constexpr std::string_view kByteLevelPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Reader {
 public:
  Reader(TokenizerState& state, JsonValue root) : state_(state), root_(std::move(root)) {}

  Result<> read() {
    COLIBRI_CHECK(read_model());
    COLIBRI_CHECK(read_normalizer());
    COLIBRI_CHECK(read_pre_tokenizer());
    COLIBRI_CHECK(check_decoder());
    COLIBRI_CHECK(read_added_tokens());
    index_tokens();
    return {};
  }

 private:
  // Ids by the text of the file (byte-level tokens in their alphabet); the keys lie in the JSON document.
  using Vocab = std::unordered_map<std::string_view, std::int32_t>;

  // A number as it is, of other values only the type.
  static std::string brief(const nlohmann::json& value) { return value.is_number() ? value.dump() : value.type_name(); }

  static Result<std::string> type_of(const JsonValue& value) {
    COLIBRI_TRY(type, value.get("type"));
    return type.string();
  }

  Result<> read_model() {
    COLIBRI_TRY(model, root_.get("model"));
    COLIBRI_TRY(type, model.string_or("type", "BPE"));
    if (type != "BPE")
      return fail("{}.type: expected \"BPE\", found \"{}\"; other tokenizer models are not supported", model.place(), type);
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      COLIBRI_TRY(affix, model.string_or(key, ""));
      if (!affix.empty()) return fail("{}.{}: expected none, found \"{}\"; it is not supported", model.place(), key, affix);
    }
    COLIBRI_TRY(byte_fallback, model.boolean_or("byte_fallback", false));
    if (byte_fallback)
      return fail("{}.byte_fallback: expected false, found true; only byte-level BPE is supported", model.place());
    COLIBRI_TRY(dropout, model.find("dropout"));
    if (dropout && (!dropout->raw().is_number() || dropout->raw().get<double>() != 0)) {
      return fail("{}: expected null, found {}", dropout->place(), dropout->raw().type_name());
    }
    COLIBRI_TRY(ignore_merges, model.boolean_or("ignore_merges", false));
    state_.ignore_merges = ignore_merges;
    COLIBRI_TRY(vocab, read_vocab(model));
    COLIBRI_TRY(byte_ids, byte_tokens(model, vocab));
    COLIBRI_TRY(merges, read_merges(model, vocab));
    state_.bpe = Bpe(byte_ids, merges);
    return {};
  }

  Result<Vocab> read_vocab(const JsonValue& model) {
    COLIBRI_TRY(node, model.get("vocab"));
    if (!node.raw().is_object())
      return fail("{}: expected an object of token: id, found {}", node.place(), node.raw().type_name());
    Vocab vocab;
    vocab.reserve(node.raw().size());
    std::int64_t largest = -1;
    for (auto it = node.raw().begin(); it != node.raw().end(); ++it) {
      if (it.key().empty()) return fail("{}: a token without text", node.place());
      const bool good = it.value().is_number_unsigned() && it.value().get<std::uint64_t>() <= static_cast<std::uint64_t>(kMaxId);
      if (!good) {
        return fail("{}[\"{}\"]: expected an id from 0 to {}, found {}", node.place(), it.key(), kMaxId, brief(it.value()));
      }
      const auto id = it.value().get<std::int32_t>();
      largest = std::max<std::int64_t>(largest, id);
      vocab.emplace(it.key(), id);
    }
    state_.tokens.resize(static_cast<std::size_t>(largest + 1));
    for (const auto& [text, id] : vocab) {
      TokenizerState::Token& token = state_.tokens[static_cast<std::size_t>(id)];
      if (!token.bytes.empty()) return fail("{}[\"{}\"]: the id {} is used twice; the file is damaged", node.place(), text, id);
      const auto bytes = bytes_of_alphabet(text);
      token.bytes = bytes ? *bytes : std::string(text);
      token.byte_level = bytes.has_value();
    }
    return vocab;
  }

  // Every byte of valid text needs a token of its own, or some text would vanish. Bytes that stand in no valid UTF-8 are
  // missing in some vocabularies; encode then writes U+FFFD for them.
  Result<std::array<std::int32_t, 256>> byte_tokens(const JsonValue& model, const Vocab& vocab) {
    std::array<std::int32_t, 256> ids{};
    for (std::size_t byte = 0; byte < ids.size(); ++byte) {
      const std::string text = alphabet_of_byte(static_cast<std::uint8_t>(byte));
      const auto it = vocab.find(text);
      const bool in_valid_text = byte < 0xC0 || (byte > 0xC1 && byte < 0xF5);
      if (it == vocab.end() && in_valid_text) {
        return fail("{}.vocab: no token \"{}\" for byte 0x{:02X}; a byte-level vocabulary has one for every byte of text",
                    model.place(), text, byte);
      }
      state_.has_byte[byte] = it != vocab.end();
      ids[byte] = it != vocab.end() ? it->second : -1;
    }
    return ids;
  }

  static Result<std::vector<Bpe::Merge>> read_merges(const JsonValue& model, const Vocab& vocab) {
    COLIBRI_TRY(node, model.get("merges"));
    if (!node.raw().is_array()) return fail("{}: expected an array, found {}", node.place(), node.raw().type_name());
    std::vector<Bpe::Merge> merges;
    merges.reserve(node.raw().size());
    std::string joined;
    for (const nlohmann::json& item : node.raw()) {
      const auto here = [&] { return fmt::format("{}[{}]", node.place(), merges.size()); };
      std::string_view left, right;
      if (item.is_string()) {
        const std::string& both = item.get_ref<const std::string&>();
        const std::size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
          return fail("{}: expected two tokens with a space between them, found \"{}\"", here(), both);
        }
        left = std::string_view(both).substr(0, space);
        right = std::string_view(both).substr(space + 1);
      } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
        left = item[0].get_ref<const std::string&>();
        right = item[1].get_ref<const std::string&>();
      } else {
        return fail("{}: expected a pair of tokens, found {}", here(), item.type_name());
      }
      joined.assign(left).append(right);
      Bpe::Merge merge;
      for (const auto& [text, id] :
           {std::pair{left, &merge.left}, {right, &merge.right}, {std::string_view(joined), &merge.result}}) {
        const auto it = vocab.find(text);
        if (it == vocab.end()) return fail("{}: the token \"{}\" is not in the vocabulary", here(), text);
        *id = it->second;
      }
      merges.push_back(merge);
    }
    return merges;
  }

  Result<> read_normalizer() {
    COLIBRI_TRY(node, root_.find("normalizer"));
    if (!node) return {};
    return read_normalizer(*node);
  }

  Result<> read_normalizer(const JsonValue& node) {
    COLIBRI_TRY(type, type_of(node));
    if (type == "NFC") {
      state_.nfc = true;
      return {};
    }
    if (type != "Sequence")
      return fail("{}.type: expected NFC, a Sequence of it, or no normalizer, found \"{}\"", node.place(), type);
    COLIBRI_TRY(list, node.get("normalizers"));
    COLIBRI_TRY(elements, list.elements());
    for (const JsonValue& element : elements) {
      COLIBRI_TRY(inner, type_of(element));
      if (inner != "NFC") return fail("{}.type: expected NFC, found \"{}\"", element.place(), inner);
      state_.nfc = true;
    }
    return {};
  }

  Result<> read_pre_tokenizer() {
    COLIBRI_TRY(node, root_.get("pre_tokenizer"));
    COLIBRI_TRY(type, type_of(node));
    std::vector<JsonValue> stages{node};
    if (type == "Sequence") {
      COLIBRI_TRY(list, node.get("pretokenizers"));
      COLIBRI_TRY(elements, list.elements());
      stages = std::move(elements);
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const JsonValue& stage = stages[i];
      COLIBRI_TRY(kind, type_of(stage));
      if (kind == "ByteLevel") {
        if (i + 1 != stages.size()) return fail("{}: expected ByteLevel as the last pre-tokenizer", stage.place());
        return read_byte_level(stage);
      }
      if (kind == "Split") {
        COLIBRI_TRY(split, read_split(stage));
        state_.pre_tokenizer.splits.push_back(std::move(split));
      } else if (kind == "Digits") {
        COLIBRI_TRY(one_by_one, stage.boolean_or("individual_digits", false));
        COLIBRI_TRY(pattern, compile(stage.place(), R"(\p{N})"));
        const SplitBehavior behavior = one_by_one ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
        state_.pre_tokenizer.splits.push_back({std::move(pattern), behavior, false});
      } else {
        return fail("{}.type: expected Split, Digits, ByteLevel or a Sequence of them, found \"{}\"", stage.place(), kind);
      }
    }
    return fail("{}: expected ByteLevel at its end; only byte-level BPE is supported", node.place());
  }

  Result<> read_byte_level(const JsonValue& node) {
    COLIBRI_TRY(prefix, node.boolean_or("add_prefix_space", true));
    COLIBRI_TRY(use_regex, node.boolean_or("use_regex", true));
    state_.pre_tokenizer.add_prefix_space = prefix;
    if (use_regex) {
      COLIBRI_TRY(pattern, compile(node.place(), kByteLevelPattern));
      state_.pre_tokenizer.byte_level_splits.push_back({std::move(pattern), SplitBehavior::kIsolated, false});
    }
    return {};
  }

  static Result<Pattern> compile(std::string_view place, std::string_view text) {
    auto pattern = Pattern::compile(text);
    if (!pattern) return fail("{}: bad pattern: {}", place, pattern.error().message);
    return pattern;
  }

  static Result<Split> read_split(const JsonValue& node) {
    COLIBRI_TRY(pattern_node, node.get("pattern"));
    COLIBRI_TRY(regex, pattern_node.find("Regex"));
    Split split;
    if (regex) {
      COLIBRI_TRY(text, regex->string());
      COLIBRI_TRY(pattern, compile(regex->place(), text));
      split.pattern = std::move(pattern);
    } else {
      COLIBRI_TRY(literal, pattern_node.get("String"));
      COLIBRI_TRY(text, literal.string());
      split.pattern = Pattern::literal(std::move(text));
    }
    COLIBRI_TRY(behavior, node.get("behavior"));
    COLIBRI_TRY(name, behavior.string());
    constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
        {"Removed", SplitBehavior::kRemoved},
        {"Isolated", SplitBehavior::kIsolated},
        {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
        {"MergedWithNext", SplitBehavior::kMergedWithNext},
        {"Contiguous", SplitBehavior::kContiguous}};
    const auto* const found =
        std::find_if(std::begin(kBehaviors), std::end(kBehaviors), [&](const auto& b) { return b.first == name; });
    if (found == std::end(kBehaviors)) {
      return fail("{}: expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous, found \"{}\"",
                  behavior.place(), name);
    }
    split.behavior = found->second;
    COLIBRI_TRY(invert, node.boolean_or("invert", false));
    split.invert = invert;
    return split;
  }

  // Decoding joins the bytes of the tokens; a decoder that does anything else would give other text.
  Result<> check_decoder() {
    COLIBRI_TRY(node, root_.find("decoder"));
    if (!node) return {};
    COLIBRI_TRY(type, type_of(*node));
    if (type != "ByteLevel") return fail("{}.type: expected ByteLevel, found \"{}\"", node->place(), type);
    return {};
  }

  Result<> read_added_tokens() {
    COLIBRI_TRY(node, root_.find("added_tokens"));
    if (!node) return {};
    COLIBRI_TRY(elements, node->elements());
    std::unordered_map<std::string, std::int32_t> seen;
    for (const JsonValue& element : elements) {
      COLIBRI_TRY(token, read_added_token(element));
      if (!seen.emplace(token.content, token.id).second)
        return fail("{}.content: \"{}\" is added twice", element.place(), token.content);
      const auto at = static_cast<std::size_t>(token.id);
      if (at >= state_.tokens.size()) state_.tokens.resize(at + 1);
      TokenizerState::Token& entry = state_.tokens[at];
      if (!entry.bytes.empty() && (entry.added || vocab_text(entry) != token.content)) {
        return fail("{}.id: {} is \"{}\" here, but another token has that id", element.place(), token.id, token.content);
      }
      if (token.special && entry.bytes.size() == 1) {
        return fail("{}.special: \"{}\" is the token of a single byte, which ordinary text needs", element.place(),
                    token.content);
      }
      entry = {token.content, token.special, true, false};
      if (token.normalized && state_.nfc) token.content = normalize_nfc(token.content);
      (token.normalized ? state_.added_normalized : state_.added).add(token);
    }
    return {};
  }

  // The token as the vocabulary spells it.
  static std::string vocab_text(const TokenizerState::Token& token) {
    if (!token.byte_level) return token.bytes;
    std::string text;
    for (const char c : token.bytes) text += alphabet_of_byte(static_cast<std::uint8_t>(c));
    return text;
  }

  static Result<AddedToken> read_added_token(const JsonValue& node) {
    AddedToken token;
    COLIBRI_TRY(id_node, node.get("id"));
    COLIBRI_TRY(id, id_node.integer(0, kMaxId));
    token.id = static_cast<std::int32_t>(id);
    COLIBRI_TRY(content_node, node.get("content"));
    COLIBRI_TRY(content, content_node.string());
    if (content.empty() || content.size() > AddedTokenFinder::kMaxContent) {
      return fail("{}: expected 1 to {} bytes, found {}", content_node.place(), AddedTokenFinder::kMaxContent, content.size());
    }
    token.content = std::move(content);
    COLIBRI_TRY(special, node.boolean_or("special", false));
    token.special = special;
    COLIBRI_TRY(normalized, node.boolean_or("normalized", !special));
    token.normalized = normalized;
    for (const auto& [key, flag] :
         {std::pair{"single_word", &token.single_word}, {"lstrip", &token.lstrip}, {"rstrip", &token.rstrip}}) {
      COLIBRI_TRY(value, node.boolean_or(key, false));
      *flag = value;
    }
    return token;
  }

  void index_tokens() {
    for (std::size_t id = 0; id < state_.tokens.size(); ++id) {
      const TokenizerState::Token& token = state_.tokens[id];
      if (token.added) state_.added_ids.emplace(token.bytes, static_cast<std::int32_t>(id));
      if (token.byte_level) state_.vocab_ids.emplace(token.bytes, static_cast<std::int32_t>(id));
    }
  }

  TokenizerState& state_;
  JsonValue root_;
};

}  // namespace

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view name) {
  nlohmann::json document;
  try {
    document = nlohmann::json::parse(json);
  } catch (const nlohmann::json::exception& error) {
    return fail("{}: not valid JSON ({})", name, error.what());
  }
  auto state = std::make_unique<TokenizerState>();
  COLIBRI_CHECK(Reader(*state, JsonValue(document, fmt::format("{}:", name))).read());
  return Tokenizer(std::move(state));
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& tokenizer_json) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(tokenizer_json, error);
  if (error) return fail("{}: cannot be read ({})", tokenizer_json.string(), error.message());
  if (size > kMaxFile) return fail("{}: expected at most {} bytes, found {}", tokenizer_json.string(), kMaxFile, size);
  std::ifstream file(tokenizer_json, std::ios::binary);
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) return fail("{}: cannot be read", tokenizer_json.string());
  return parse(text, tokenizer_json.string());
}

}  // namespace colibri

// What the tests of the text room share: random text, a small tokenizer.json, the demo model's tokenizer.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_alphabet.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace colibri::text_test {

using Ids = std::vector<std::int32_t>;
using Random = std::mt19937;

inline std::size_t below(Random& random, std::size_t bound) { return random() % bound; }

inline std::string random_bytes(Random& random, std::size_t length) {
  std::string out;
  for (std::size_t i = 0; i < length; ++i) out.push_back(static_cast<char>(random() & 0xFF));
  return out;
}

// Scalar values of several scripts, spaces, marks and the far planes; ASCII most often.
inline std::uint32_t random_code_point(Random& random) {
  constexpr std::pair<std::uint32_t, std::uint32_t> kRanges[] = {
      {0x20, 0x7E},     {0x20, 0x7E},     {0x00, 0x1F},       {0x80, 0x24F},      {0x300, 0x36F},      {0x370, 0x5FF},
      {0x600, 0x6FF},   {0x900, 0x9FF},   {0x1100, 0x11FF},   {0x2000, 0x206F},   {0x3000, 0x30FF},    {0x4E00, 0x9FFF},
      {0xAC00, 0xD7A3}, {0xE000, 0xFFFD}, {0x1D400, 0x1D7FF}, {0x1F300, 0x1F6FF}, {0x10FFF0, 0x10FFFF}};
  const auto& [low, high] = kRanges[below(random, std::size(kRanges))];
  return low + static_cast<std::uint32_t>(below(random, high - low + 1));
}

inline std::string random_text(Random& random, std::size_t characters) {
  std::string out;
  for (std::size_t i = 0; i < characters; ++i) append_utf8(out, random_code_point(random));
  return out;
}

// A tokenizer.json with a token per byte (id: the byte) and these merges (ids from 256 on), one piece per text.
inline nlohmann::json small_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  nlohmann::json vocab = nlohmann::json::object();
  const auto spell = [](std::string_view bytes) {
    std::string text;
    for (const char c : bytes) text += alphabet_of_byte(static_cast<std::uint8_t>(c));
    return text;
  };
  for (int byte = 0; byte < 256; ++byte) vocab[alphabet_of_byte(static_cast<std::uint8_t>(byte))] = byte;
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [left, right] : merges) {
    vocab.emplace(spell(left + right), vocab.size());
    list.push_back({spell(left), spell(right)});
  }
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}};
}

inline nlohmann::json added_token(std::int64_t id, std::string_view content) {
  return {{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
}

inline Tokenizer must_parse(const nlohmann::json& json) {
  auto tokenizer = Tokenizer::parse(json.dump(), "test.json");
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return std::move(*tokenizer);
}

inline const std::string kDemo = COLIBRI_SOURCE_DIR "/models/demo/";

inline Tokenizer demo_tokenizer() {
  auto tokenizer = Tokenizer::load(kDemo + "tokenizer.json");
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return std::move(*tokenizer);
}

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

}  // namespace colibri::text_test

// Reads a JSON document from a stranger: every access checks the type and an error names the file and the key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace colibri {

// A value and its place, such as "tokenizer.json: model.merges[17]"; the document itself is "tokenizer.json:".
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  const nlohmann::json& raw() const { return *value_; }
  const std::string& place() const { return place_; }

  bool is_null() const { return value_->is_null(); }
  // A member; missing and null are the same: nullopt. An error when this is no object.
  Result<std::optional<JsonValue>> find(std::string_view key) const;
  Result<JsonValue> get(std::string_view key) const;
  // Elements of an array.
  Result<std::vector<JsonValue>> elements() const;

  Result<std::string> string() const;
  Result<std::int64_t> integer(std::int64_t low, std::int64_t high) const;
  Result<bool> boolean() const;
  // Members with a default for the missing.
  Result<std::string> string_or(std::string_view key, std::string_view otherwise) const;
  Result<bool> boolean_or(std::string_view key, bool otherwise) const;

 private:
  std::string prefix() const;  // of an error
  tl::unexpected<Error> wrong_type(std::string_view expected) const;
  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace colibri

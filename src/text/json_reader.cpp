#include "text/json_reader.h"

namespace colibri {

std::string JsonValue::prefix() const { return place_.ends_with(":") ? place_ + " " : place_ + ": "; }

tl::unexpected<Error> JsonValue::wrong_type(std::string_view expected) const {
  return fail("{}expected {}, found {}", prefix(), expected, value_->type_name());
}

Result<std::optional<JsonValue>> JsonValue::find(std::string_view key) const {
  if (!value_->is_object()) return wrong_type("an object");
  const auto it = value_->find(std::string(key));
  if (it == value_->end() || it->is_null()) return std::optional<JsonValue>();
  return std::optional<JsonValue>(
      JsonValue(*it, place_.ends_with(":") ? prefix() + std::string(key) : fmt::format("{}.{}", place_, key)));
}

Result<JsonValue> JsonValue::get(std::string_view key) const {
  COLIBRI_TRY(found, find(key));
  if (!found) return fail("{}the key \"{}\" is missing", prefix(), key);
  return std::move(*found);
}

Result<std::vector<JsonValue>> JsonValue::elements() const {
  if (!value_->is_array()) return wrong_type("an array");
  std::vector<JsonValue> out;
  for (std::size_t i = 0; i < value_->size(); ++i) out.emplace_back((*value_)[i], fmt::format("{}[{}]", place_, i));
  return out;
}

Result<std::string> JsonValue::string() const {
  if (!value_->is_string()) return wrong_type("a string");
  return value_->get<std::string>();
}

Result<std::int64_t> JsonValue::integer(std::int64_t low, std::int64_t high) const {
  if (!value_->is_number_integer()) return wrong_type("a whole number");
  const bool huge = value_->is_number_unsigned() && value_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  if (huge || value_->get<std::int64_t>() < low || value_->get<std::int64_t>() > high) {
    return fail("{}expected a number from {} to {}, found {}", prefix(), low, high, value_->dump());
  }
  return value_->get<std::int64_t>();
}

Result<bool> JsonValue::boolean() const {
  if (!value_->is_boolean()) return wrong_type("true or false");
  return value_->get<bool>();
}

Result<std::string> JsonValue::string_or(std::string_view key, std::string_view otherwise) const {
  COLIBRI_TRY(found, find(key));
  if (!found) return std::string(otherwise);
  return found->string();
}

Result<bool> JsonValue::boolean_or(std::string_view key, bool otherwise) const {
  COLIBRI_TRY(found, find(key));
  if (!found) return otherwise;
  return found->boolean();
}

}  // namespace colibri

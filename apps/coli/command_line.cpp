#include "command_line.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <charconv>
#include <vector>

namespace colibri {

std::optional<std::uint64_t> parse_whole(const std::string& text) {
  std::uint64_t value = 0;
  if (text.size() > 1 && text[0] == '0') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(const std::string& text) {
  double value = 0;
  if (!CLI::detail::lexical_cast(text, value)) return std::nullopt;
  return value;
}

namespace {

// Refuses what `parse` does not take, or what it finds outside of low and high.
template <class T>
CLI::Validator within(T low, T high, std::optional<T> (*parse)(const std::string&), const char* kind, const char* form) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        if (const auto value = parse(text); value && *value >= low && *value <= high) return {};
        return fmt::format("'{}' is not a {} from {} to {}{}", text, kind, low, high, form);
      },
      fmt::format("[{} - {}]", low, high));
}

}  // namespace

OptionRules& OptionRules::between(double low, double high) {
  option_->check(within(low, high, parse_number, "number", ""));
  return *this;
}

OptionRules& OptionRules::whole(std::uint64_t low, std::uint64_t high) {
  option_->check(within(low, high, parse_whole, "whole number", " in plain decimal"));
  return *this;
}

OptionRules& OptionRules::one_of(std::initializer_list<const char*> words) {
  option_->check(CLI::IsMember(std::vector<std::string>(words.begin(), words.end())));
  return *this;
}

OptionRules& OptionRules::required() {
  option_->required();
  return *this;
}

OptionRules& OptionRules::shows_default() {
  option_->capture_default_str();
  return *this;
}

OptionRules& OptionRules::comma_separated() {
  option_->delimiter(',');
  return *this;
}

OptionRules& OptionRules::from_environment(const char* name) {
  option_->envname(name);
  return *this;
}

OptionRules& OptionRules::in_group(const char* title) {
  option_->group(title);
  return *this;
}

OptionRules& OptionRules::excludes(const OptionRules& other) {
  option_->excludes(other.option_);
  return *this;
}

OptionRules& OptionRules::needs(const OptionRules& other) {
  option_->needs(other.option_);
  return *this;
}

bool OptionRules::given() const { return option_->count() > 0; }

template <class T>
OptionRules CommandLine::option(const std::string& names, T& value, const std::string& help) {
  return OptionRules(app_.add_option(names, value, help));
}

template OptionRules CommandLine::option(const std::string&, std::string&, const std::string&);
template OptionRules CommandLine::option(const std::string&, float&, const std::string&);
template OptionRules CommandLine::option(const std::string&, double&, const std::string&);
template OptionRules CommandLine::option(const std::string&, int&, const std::string&);
template OptionRules CommandLine::option(const std::string&, std::int64_t&, const std::string&);
template OptionRules CommandLine::option(const std::string&, std::uint64_t&, const std::string&);
template OptionRules CommandLine::option(const std::string&, std::vector<std::int64_t>&, const std::string&);
template OptionRules CommandLine::option(const std::string&, std::vector<double>&, const std::string&);
template OptionRules CommandLine::option(const std::string&, std::optional<std::uint64_t>&, const std::string&);

OptionRules CommandLine::flag(const std::string& names, bool& value, const std::string& help) {
  return OptionRules(app_.add_flag(names, value, help));
}

void CommandLine::footer(const std::string& text) { app_.footer(text); }

}  // namespace colibri

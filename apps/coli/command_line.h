// What the subcommands see of the command line. CLI11 does the work behind it, in command_line.cpp and main.cpp alone:
// its headers take longer to compile than everything else in a subcommand's file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace colibri {

// One declared option; its rules are written behind it: line.option("--temp", t, "...").between(0, 100).shows_default().
class OptionRules {
 public:
  explicit OptionRules(CLI::Option* option) : option_(option) {}

  // A number from low to high. CLI11's own rule lets NaN through.
  OptionRules& between(double low, double high);
  // A whole number written in plain decimal: CLI11 alone takes 010 as octal, 0x2 as hexadecimal and -1 as 2^64 - 1.
  OptionRules& whole(std::uint64_t low, std::uint64_t high);
  OptionRules& one_of(std::initializer_list<const char*> words);
  OptionRules& required();
  OptionRules& shows_default();                     // in --help
  OptionRules& comma_separated();                   // for a vector
  OptionRules& from_environment(const char* name);  // when the option is not given
  OptionRules& in_group(const char* title);         // of --help
  OptionRules& excludes(const OptionRules& other);
  OptionRules& needs(const OptionRules& other);
  // Once the line is parsed: whether it was given.
  bool given() const;

 private:
  CLI::Option* option_;  // lives as long as the program's CLI::App
};

// The options of one subcommand.
class CommandLine {
 public:
  explicit CommandLine(CLI::App& app) : app_(app) {}

  // names: "-m,--model", or a word without a dash for a positional one. `value` is the default, is set by parsing, and
  // must outlive it. T: string, float, double, int, int64_t, uint64_t, vector<int64_t>, vector<double>, optional<uint64_t>.
  template <class T>
  OptionRules option(const std::string& names, T& value, const std::string& help);
  OptionRules flag(const std::string& names, bool& value, const std::string& help);
  // Text below the options in --help.
  void footer(const std::string& text);

 private:
  CLI::App& app_;
};

// nullopt for anything but digits without a leading zero, and for what 64 bits do not hold.
std::optional<std::uint64_t> parse_whole(const std::string& text);
// nullopt for what is no number.
std::optional<double> parse_number(const std::string& text);

}  // namespace colibri

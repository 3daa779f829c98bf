// What the commands print beside their text: errors, statistics, numbers for people.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/generate.h"

namespace colibri {

// `coli: message` on stderr, one line.
void print_error(std::string_view message);
int fail_with(const Error& error);  // prints it and returns kExitFailed
std::string one_line(std::string_view text);

std::string with_commas(std::int64_t number);     // 6,144
std::string human_bytes(std::uint64_t bytes);     // 31.0 MiB
double rate(std::int64_t count, double seconds);  // per second; 0 when there was no time

// One line for stderr.
// Where the time went, and what the expert cache did when there was one: one line each.
std::string describe_phases(const GenerateStats& stats);
std::string describe(const GenerateStats& stats);
// The same as fields of a JSON object.
nlohmann::json to_json(const GenerateStats& stats);
std::string_view reason_name(StopReason reason);
// JSON on stdout. Text that is not UTF-8 (file names) is repaired rather than refused.
void print_json(const nlohmann::json& value);

}  // namespace colibri

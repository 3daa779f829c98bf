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
void print_note(std::string_view message);  // `coli: note: message` on stderr, one line
int fail_with(const Error& error);          // prints it and returns kExitFailed
std::string one_line(std::string_view text);

std::string with_commas(std::int64_t number);     // 6,144
std::string human_bytes(std::uint64_t bytes);     // 31.0 MiB
double rate(std::int64_t count, double seconds);  // per second; 0 when there was no time

// One line for stderr. What was not measured, because no token was sampled, is left out.
std::string describe(const GenerateStats& stats);
// Where the time went: a line for all of it and, where there was an answer, one for each of its tokens.
std::string describe_phases(const GenerateStats& stats);
// What the expert cache and the disk did, and the slots given up. answer_steps: decode steps, what figures per token of the
// answer are divided by.
std::string describe_experts(const StreamingStats& experts, std::int64_t answer_steps);
// What a GPU did, in the words of the reports about this family of engines; empty without one.
std::string describe_gpu(const GenerateStats& stats);
// The same as fields of a JSON object; first_token_seconds and logits_hash are null when nothing was sampled.
nlohmann::json to_json(const GenerateStats& stats);
std::string_view reason_name(StopReason reason);
// Text on stdout at once. The first failure is kept, because stdio remembers only that there was one.
void write_output(std::string_view text);
int output_error();  // its errno, or 0
// JSON on stdout. Text that is not UTF-8 (file names) is repaired rather than refused.
void print_json(const nlohmann::json& value);

}  // namespace colibri

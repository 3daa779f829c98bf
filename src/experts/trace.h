// The record of a run's routing: which experts every layer of every step needed, what had been predicted for it, and
// how long the computing took. `coli run --trace F` writes it; the cache policies, Belady's optimum and the overlap
// model are functions of it.
//
// A trace is text, one line per fact, numbers in decimal, times in nanoseconds:
//
//   coli-trace 1
//   model LAYERS EXPERTS TOP_K EXPERT_BYTES
//   step prefill|decode ROWS TAIL_NS
//   layer INDEX BEFORE_NS SHARED_NS EXPERT_NS | ID ID*ROWS ... | ID ...
//
// `model` comes once. LAYERS counts all layers, dense ones and an MTP layer included; EXPERT_BYTES is what one expert
// costs to read. A `step` is one forward pass; its `layer` lines follow, by increasing INDEX, sparse layers only.
// BEFORE_NS is the computing from the previous layer line's experts (or the start of the step) to this layer's router,
// SHARED_NS the computing after the router that needs no routed expert, EXPERT_NS the computing of one routed expert
// (the mean over this layer's); TAIL_NS is what the step computed after its last layer line, its logits included (not so in
// traces from before 2026-11-30, for which `replay --overlap` therefore finds too low a bound). Waiting for reads is in none of
// them. The first list holds the distinct experts needed, in the order of their first appearance over rows and router ranks;
// `*ROWS` tells how many rows chose the expert where more than one did. The second list holds the experts predicted for this
// layer while the layer before was computed, the most likely first; it may be empty.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "experts/expert_source.h"

namespace colibri {

inline constexpr std::int64_t kMaxTraceLayers = 4096;
inline constexpr std::int64_t kMaxTraceExperts = 65536;  // of one layer

struct TraceModel {
  std::int64_t layers = 0;
  std::int64_t experts = 0;  // of one layer
  std::int64_t top_k = 0;    // experts one row chooses
  std::int64_t expert_bytes = 0;
};

struct LayerAccess {
  std::int64_t layer = 0;
  std::int64_t before_ns = 0, shared_ns = 0, expert_ns = 0;
  std::vector<std::int32_t> needed;     // distinct
  std::vector<std::int32_t> rows;       // rows that chose each; as long as needed
  std::vector<std::int32_t> predicted;  // distinct
};

struct TraceStep {
  StepPhase phase = StepPhase::kDecode;
  std::int64_t rows = 1;
  std::int64_t tail_ns = 0;
  std::vector<LayerAccess> accesses;
};

struct Trace {
  TraceModel model;
  std::vector<TraceStep> steps;
};

// Reads a trace of any origin: a malformed one is an error that names file and line, never a crash.
Result<Trace> read_trace(const std::filesystem::path& path);
// The same from memory; `name` stands for the file in messages.
Result<Trace> parse_trace(std::string_view text, std::string_view name);

// Appends the lines of the header or of one step to `out`.
void append_trace_header(const TraceModel& model, std::vector<char>& out);
void append_trace_step(const TraceStep& step, std::vector<char>& out);

}  // namespace colibri

// From a prompt's ids to an answer's ids, with the numbers a user wants to see.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/session.h"

namespace colibri {

struct GenerateOptions {
  numerics::SamplingRule sampling;
  std::int64_t max_tokens = 256;
  std::vector<std::int32_t> stop_ids;  // an answer ends before the first of these; the stop token is not reported
};

enum class StopReason : std::uint8_t { kStopToken, kMaxTokens, kContextFull, kCancelled };

struct GenerateStats {
  std::int64_t prompt_tokens = 0;
  double prompt_seconds = 0;
  std::int64_t decode_tokens = 0;  // tokens reported
  std::int64_t decode_steps = 0;   // forward passes after the prompt
  double decode_seconds = 0;
  double first_token_seconds = 0;  // from the start until the first token was known
  std::uint64_t peak_memory_bytes = 0;
  std::uint64_t memory_budget_bytes = 0;  // that the memory plan kept to
  std::uint64_t logits_hash = 0;          // XXH3 (64 bit) over every logit vector sampled from, little-endian f32
  PhaseTimes phases;                      // where prompt and answer spent their time in the graph
  PhaseTimes answer_phases;               // the same for the answer's steps alone
  bool streamed = false;                  // experts came through the cache:
  StreamingStats experts;                 // what the cache and the disk did meanwhile
  ReaderStats answer_reads;               // what the disk did for the answer alone
  std::optional<GpuCounters> gpu;         // what a GPU did meanwhile; where there is one:
  std::string gpu_name;
  std::string gpu_faults;   // since the engine was opened, by reason; empty when nothing failed
  std::string gpu_verdict;  // one line when it was switched off
  gpu::ResidencyStats gpu_residency;
  StopReason reason = StopReason::kMaxTokens;
};

// Appends prompt to the session and generates. on_token sees every token as it is chosen and returns false to stop.
// keep_going is asked while prompt and answer are computed. The generated tokens are part of the session afterwards, the last
// one and a stop token excepted: append them (or not) as the conversation wants.
Result<GenerateStats> generate(Session& session, std::span<const std::int32_t> prompt, const GenerateOptions& options,
                               const std::function<bool(std::int32_t)>& on_token, const KeepGoing& keep_going = {});

}  // namespace colibri

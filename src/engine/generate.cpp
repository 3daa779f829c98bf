#include "engine/generate.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <chrono>

#include "base/process.h"

namespace colibri {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class LogitsHash {
 public:
  LogitsHash() { XXH3_64bits_reset(&state_); }
  void add(std::span<const float> logits) { XXH3_64bits_update(&state_, logits.data(), logits.size_bytes()); }
  std::uint64_t value() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

}  // namespace

Result<GenerateStats> generate(Session& session, std::span<const std::int32_t> prompt, const GenerateOptions& options,
                               const std::function<bool(std::int32_t)>& on_token, const KeepGoing& keep_going) {
  GenerateStats stats;
  LogitsHash hash;
  const auto start = Clock::now();
  const std::int64_t before = session.position();
  const PhaseTimes phases_before = session.engine().model().times();
  const StreamingExperts* streaming = session.engine().streaming();
  const GpuLayers* gpu = session.engine().model().gpu();
  const GpuCounters gpu_before = gpu ? gpu->counters() : GpuCounters{};
  const StreamingStats experts_before = streaming ? streaming->stats() : StreamingStats{};
  if (prompt.empty() && session.logits().empty()) return fail("the prompt is empty: at least one token is needed");
  COLIBRI_CHECK(session.prefill(prompt, keep_going));
  stats.prompt_tokens = session.position() - before;
  stats.prompt_seconds = seconds_since(start);

  const PhaseTimes phases_at_answer = session.engine().model().times();
  const ReaderStats reads_at_answer = streaming ? streaming->stats().reader : ReaderStats{};
  const auto decode_start = Clock::now();
  const auto is_stop = [&](std::int32_t id) {
    return std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end();
  };
  stats.reason = session.logits().empty() ? StopReason::kCancelled : StopReason::kMaxTokens;
  while (stats.reason == StopReason::kMaxTokens && stats.decode_tokens < options.max_tokens) {
    hash.add(session.logits());
    COLIBRI_TRY(id, session.sample(options.sampling));
    if (stats.decode_tokens == 0) stats.first_token_seconds = seconds_since(start);
    if (is_stop(id)) {
      stats.reason = StopReason::kStopToken;
      break;
    }
    ++stats.decode_tokens;
    if (!on_token(id)) {
      stats.reason = StopReason::kCancelled;
      break;
    }
    if (stats.decode_tokens == options.max_tokens) break;
    if (session.room() == 0) {
      stats.reason = StopReason::kContextFull;
      break;
    }
    COLIBRI_CHECK(session.append(id, keep_going));
    if (session.logits().empty()) {
      stats.reason = StopReason::kCancelled;
      break;
    }
    ++stats.decode_steps;
  }
  stats.decode_seconds = seconds_since(decode_start);
  stats.phases = session.engine().model().times().since(phases_before);
  stats.answer_phases = session.engine().model().times().since(phases_at_answer);
  stats.streamed = streaming != nullptr;
  if (streaming) {
    const StreamingStats now = streaming->stats();
    stats.experts = now.since(experts_before);
    stats.answer_reads = now.reader.since(reads_at_answer);
  }
  if (gpu) {
    stats.gpu = gpu->counters().since(gpu_before);
    stats.gpu_name = gpu->device().info().name;
    stats.gpu_faults = gpu->faults().describe();
    stats.gpu_verdict = gpu->faults().verdict();
    stats.gpu_residency = gpu->device().residency();
  }
  stats.peak_memory_bytes = peak_resident_bytes();
  stats.memory_budget_bytes = session.engine().memory().budget;
  stats.logits_hash = hash.value();
  return stats;
}

}  // namespace colibri

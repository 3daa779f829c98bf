// One conversation's state: its tokens, its KV cache and the logits after the last token.
#pragma once

#include <span>
#include <vector>

#include "engine/engine.h"
#include "numerics/sampling.h"

namespace colibri {

class Session {
 public:
  explicit Session(Engine& engine);

  // Appends ids, chunk by chunk, and computes the logits after the last of them. Fails when they do not fit the context:
  // then nothing was changed. keep_going is asked between chunks and several times within each; a stop, or an error later
  // on, leaves the session at the last whole chunk, without logits.
  Result<void> prefill(std::span<const std::int32_t> ids, const KeepGoing& keep_going = {}) {
    return run(StepPhase::kPrefill, ids, keep_going);
  }
  // One decode step: a chunk of one.
  Result<void> append(std::int32_t id, const KeepGoing& keep_going = {}) { return run(StepPhase::kDecode, {&id, 1}, keep_going); }

  // After the last token; empty before the first, after truncate() and after a stop.
  std::span<const float> logits() const { return has_logits_ ? logits_.span() : std::span<const float>(); }
  // The token for position() by rule C13; needs logits().
  Result<std::int32_t> sample(const numerics::SamplingRule& rule) const;

  std::int64_t position() const { return static_cast<std::int64_t>(tokens_.size()); }  // tokens so far
  std::int64_t room() const { return engine_.context() - position(); }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  // Forgets everything from `positions` on. To compute logits again at least one token must be appended.
  void truncate(std::int64_t positions);

  Engine& engine() { return engine_; }
  KvCache& cache() { return cache_; }

 private:
  Result<void> run(StepPhase phase, std::span<const std::int32_t> ids, const KeepGoing& keep_going);

  Engine& engine_;
  KvCache cache_;
  std::vector<std::int32_t> tokens_;
  AlignedArray<float> logits_;
  bool has_logits_ = false;
};

}  // namespace colibri

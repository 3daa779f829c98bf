#include "engine/session.h"

#include <algorithm>
#include <cassert>

namespace colibri {

Session::Session(Engine& engine)
    : engine_(engine), cache_(engine.model().make_cache()), logits_(static_cast<std::size_t>(engine.config().vocab_size)) {}

Result<void> Session::run(StepPhase phase, std::span<const std::int32_t> ids, const KeepGoing& keep_going) {
  const auto count = static_cast<std::int64_t>(ids.size());
  if (count > room())
    return fail("{} tokens do not fit: {} of the context's {} positions are taken; use a larger --ctx or a shorter text", count,
                position(), engine_.context());
  Model& model = engine_.model();
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t rows = std::min(count - done, model.limits().max_rows);
    const auto chunk = ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(rows));
    COLIBRI_TRY(at, ContiguousRows::make(cache_, position(), rows));
    has_logits_ = false;
    COLIBRI_TRY(end, model.forward(phase, chunk, at, {}, keep_going));
    if (end == StepEnd::kStopped) break;
    tokens_.insert(tokens_.end(), chunk.begin(), chunk.end());
    done += rows;
    if (done == count) {
      COLIBRI_CHECK(model.logits(rows - 1, 1, logits_.data()));
      has_logits_ = true;
    } else if (keep_going && !keep_going()) {
      break;
    }
  }
  return {};
}

Result<std::int32_t> Session::sample(const numerics::SamplingRule& rule) const {
  assert(has_logits_);
  const std::int32_t id = numerics::sample(logits_.span(), rule, static_cast<std::uint64_t>(position()));
  if (id < 0) return fail("a logit is not a number; the model's weights are damaged");
  return id;
}

void Session::truncate(std::int64_t positions) {
  if (positions >= position()) return;
  tokens_.resize(static_cast<std::size_t>(positions));
  has_logits_ = false;
}

}  // namespace colibri

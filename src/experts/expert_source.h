// Where routed experts come from. The graph asks for the experts of one layer and computes each as it becomes
// available; whether they were resident, cached or read from disk, and in which order they arrive, never
// changes a bit of the result (rule C8 of docs/numerics.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "format/checkpoint.h"

namespace colibri {

// One routed expert: gate and up [moe intermediate, hidden], down [hidden, moe intermediate].
struct ExpertWeights {
  Matrix gate, up, down;
};

// Where one expert's three matrices lie on disk.
struct ExpertRecord {
  MatrixSource gate, up, down;
  FileRange packed = {};  // the whole record where the model is packed (format/packed.h), which has a checksum; else empty
};

// A cache treats a prompt, read once, differently from the text that is being written.
enum class StepPhase : std::uint8_t { kPrefill, kDecode };

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  // Around every pass of rows through the layers.
  virtual void begin_step(StepPhase /*phase*/, std::int64_t /*rows*/) {}
  virtual void end_step() {}
  // Logits of the last step's rows were computed after its end, in this time.
  virtual void logits_computed(std::chrono::nanoseconds /*taken*/) {}
  // Instead of end_step when a step is not carried through (an error, a stop): what it asked for and was not handed is
  // wanted no more. Everything handed out must have been released.
  virtual void abandon_step() {}

  // Announces the distinct experts that a step needs of one sparse layer (layer: index among all layers), in order of
  // their first appearance over rows and router ranks; rows[i] rows chose ids[i]. The previous request must have been
  // handed out and released.
  virtual Result<void> request(std::int64_t layer, std::span<const std::int32_t> ids, std::span<const std::int32_t> rows) = 0;

  struct Ready {
    std::size_t index = 0;  // into the ids of the request
    ExpertWeights weights;  // valid until release(index)
  };
  // The next expert in any order; blocks until one is there when `wait`, otherwise nullopt when none is ready.
  // nullopt with `wait`: all were handed out. An error ends the step (abandon_step); everything handed out must still be
  // released.
  virtual Result<std::optional<Ready>> next(bool wait) = 0;

  // Will next(true) hand something out without anything being released first?
  virtual bool can_wait() const { return true; }

  // The graph is done with it; its memory may be used for another.
  virtual void release(std::size_t index) = 0;

  // The weights of an expert that stays in memory as long as the source; nullptr when experts come and go. One answer for
  // all experts of a model. Such experts need no request.
  virtual const ExpertWeights* resident(std::int64_t /*layer*/, std::int32_t /*expert*/) const { return nullptr; }
  // Where experts lie, whole pages, for registration with a device.
  virtual std::vector<std::span<std::byte>> memory() { return {}; }

  // Does the source read ahead? Then, after a layer's request, the graph tells it which experts the next layer will
  // probably need, the most likely first.
  virtual bool wants_predictions() const { return false; }
  virtual void predict(std::int64_t /*layer*/, std::span<const std::int32_t> /*ids*/) {}
};

}  // namespace colibri

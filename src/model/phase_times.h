// Where a step's time goes, in the words people of this field use.
#pragma once

#include <chrono>

namespace colibri {

// Wall seconds, summed over steps. The parts do not overlap and add up to the time spent in the graph.
struct PhaseTimes {
  double attention = 0;      // norms, projections, indexer, scores and sums
  double feed_forward = 0;   // dense layers, router, shared experts
  double expert_wait = 0;    // waiting for routed experts to arrive
  double expert_matmul = 0;  // routed experts' arithmetic
  double head = 0;           // final norm and logits
  double other = 0;          // embedding, rotary angles
  double gpu = 0;            // waiting for layers on the GPU

  double total() const { return attention + feed_forward + expert_wait + expert_matmul + head + other + gpu; }

  PhaseTimes since(const PhaseTimes& before) const {
    return {attention - before.attention,
            feed_forward - before.feed_forward,
            expert_wait - before.expert_wait,
            expert_matmul - before.expert_matmul,
            head - before.head,
            other - before.other,
            gpu - before.gpu};
  }
};

// Adds the time since the last call (or construction) to one phase, and returns it.
class PhaseClock {
 public:
  std::chrono::nanoseconds add_to(double& phase) {
    const auto now = Clock::now();
    const auto taken = now - last_;
    phase += std::chrono::duration<double>(taken).count();
    last_ = now;
    return std::chrono::duration_cast<std::chrono::nanoseconds>(taken);
  }
  void restart() { last_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
};

}  // namespace colibri

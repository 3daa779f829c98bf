// Ctrl-C as a question the work asks, instead of the end of the program.
#pragma once

#include <csignal>

namespace colibri {

// What a second SIGINT does: end the program, in case the first is not noticed for long, or the same again.
enum class SecondInterrupt { kEndsProgram, kIsNotedToo };

// While one lives, SIGINT only sets a flag, and a blocking read returns. One at a time.
class InterruptGuard {
 public:
  explicit InterruptGuard(SecondInterrupt second);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
  static void clear();

 private:
  struct sigaction before_{};
};

}  // namespace colibri

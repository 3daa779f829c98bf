// Ctrl-C as a question the work asks, instead of the end of the program.
#pragma once

#include <csignal>

namespace colibri {

// While one lives, SIGINT only sets a flag, and a blocking read returns. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
  static void clear();

 private:
  struct sigaction before_{};
};

}  // namespace colibri

#include "interrupt.h"

namespace colibri {
namespace {

volatile std::sig_atomic_t pending = 0;

void note(int) { pending = 1; }

}  // namespace

InterruptGuard::InterruptGuard(SecondInterrupt second) {
  clear();
  struct sigaction action{};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a read for the next line must return.
  action.sa_flags = second == SecondInterrupt::kEndsProgram ? static_cast<int>(SA_RESETHAND) : 0;
  sigaction(SIGINT, &action, &before_);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &before_, nullptr); }

bool InterruptGuard::interrupted() { return pending != 0; }

void InterruptGuard::clear() { pending = 0; }

}  // namespace colibri

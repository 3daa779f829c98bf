// Runs the built coli as a child process.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace colibri {

struct ChildResult {
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;      // that signal
  std::string out, err;
};

struct ChildOptions {
  std::string input{};                                             // its stdin, which then ends
  std::vector<std::pair<std::string, std::string>> environment{};  // added; COLI_*, TF and DEBUG_LOGITS are removed first
  // When stdout has shown this text, the child gets SIGINT (once).
  std::string interrupt_after{};
  // The child gets SIGINT this many times: first when it has begun to catch it, then when the default action is back. Needs
  // can_watch_signals().
  int interrupts_when_caught = 0;
  // Closed in the child before it starts; -1 for none.
  int closed = -1;
  // Opened as its stdout instead of a pipe, when not empty.
  std::string stdout_to{};
  // The members file of the control group it runs in, when not empty.
  std::string control_group{};
};

ChildResult run_coli(const std::vector<std::string>& arguments, const ChildOptions& options = {});

// Does this system show which signals another process catches (/proc)? Elsewhere tests that need it skip with kNoProc.
bool can_watch_signals();
inline constexpr const char* kNoProc = "this system has no /proc: no moment is known at which the child catches SIGINT";

// The demo model's directory.
std::string demo_model();

}  // namespace colibri

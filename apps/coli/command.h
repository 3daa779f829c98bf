// The subcommands. Each file of this folder declares its options and returns what to do once they are
// parsed; main.cpp only dispatches.
#pragma once

#include <functional>

#include "command_line.h"

namespace colibri {

// Exit codes of the program.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // as a shell reports a process that SIGINT ended

using Action = std::function<int()>;

Action declare_run(CommandLine& line);
Action declare_chat(CommandLine& line);
Action declare_info(CommandLine& line);
Action declare_oracle(CommandLine& line);
Action declare_plan(CommandLine& line);
Action declare_bench(CommandLine& line);
Action declare_convert(CommandLine& line);
Action declare_verify(CommandLine& line);
Action declare_synth(CommandLine& line);
Action declare_replay(CommandLine& line);
Action declare_selftest(CommandLine& line);

}  // namespace colibri

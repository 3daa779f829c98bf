// The subcommands. Each file of this folder declares its options on a CLI11 app and returns what to do once they are
// parsed; main.cpp only dispatches.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace colibri {

// Exit codes of the program.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // as a shell reports a process that SIGINT ended

using Action = std::function<int()>;

Action declare_run(CLI::App& app);
Action declare_chat(CLI::App& app);
Action declare_info(CLI::App& app);
Action declare_oracle(CLI::App& app);
Action declare_plan(CLI::App& app);
Action declare_bench(CLI::App& app);
Action declare_convert(CLI::App& app);
Action declare_verify(CLI::App& app);
Action declare_synth(CLI::App& app);
Action declare_replay(CLI::App& app);
Action declare_selftest(CLI::App& app);

}  // namespace colibri

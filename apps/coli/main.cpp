// coli: dispatches to the subcommands, one file each.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <exception>
#include <map>

#include "command.h"
#include "report.h"

namespace colibri {
namespace {

struct Subcommand {
  const char* name;
  const char* summary;
  Action (*declare)(CLI::App&);
};

constexpr Subcommand kSubcommands[] = {
    {"run", "Continue a prompt", declare_run},
    {"chat", "Talk with the model", declare_chat},
    {"info", "Describe a model directory", declare_info},
    {"oracle", "Check a model directory against the reference values beside it", declare_oracle},
    {"plan", "Say what a model will take of memory", declare_plan},
    {"bench", "Measure prompt and generation speed", declare_bench},
};

constexpr const char* kEnvironment =
    "Environment:\n"
    "  COLI_MODEL=DIR        the model when no --model is given\n"
    "  COLI_NO_OMP_TUNE=1    waiting threads block at once instead of spinning briefly\n"
    "  DIRECT=1              experts are read past the page cache\n"
    "  PIPE=0                experts are read one at a time, by the thread that waits\n"
    "  PIPE_WORKERS=N        reads in flight, 1 to 64\n"
    "  TF=1                  `coli run` checks the model like `coli oracle` instead\n"
    "  DEBUG_LOGITS=1        the check prints the five best tokens and the margin at each mismatch\n";

int run_main(int argc, char** argv) {
  CLI::App app("colibri: mixture-of-experts language models on one machine", "coli");
  app.set_version_flag("--version", "coli " COLIBRI_VERSION);
  app.require_subcommand(0, 1);
  app.footer(std::string(kEnvironment) + "\n`coli COMMAND --help` lists a command's options.");
  std::map<const CLI::App*, Action> actions;
  for (const Subcommand& command : kSubcommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    actions[sub] = command.declare(*sub);
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    print_error(
        fmt::format("{} (see coli {}--help)", one_line(error.what()), chosen.empty() ? "" : chosen.front()->get_name() + " "));
    return kExitUsage;
  }
  const auto chosen = app.get_subcommands();
  if (chosen.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return kExitUsage;
  }
  return actions.at(chosen.front())();
}

}  // namespace
}  // namespace colibri

int main(int argc, char** argv) {
  try {
    return colibri::run_main(argc, argv);
  } catch (const std::bad_alloc&) {
    colibri::print_error("not enough memory; try a smaller --ctx or a smaller model");
  } catch (const std::exception& error) {
    colibri::print_error(error.what());
  }
  return colibri::kExitFailed;
}

// coli: dispatches to the subcommands, one file each.
#include <fcntl.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <system_error>

#include "command.h"
#include "report.h"

namespace colibri {
namespace {

struct Subcommand {
  const char* name;
  const char* summary;
  Action (*declare)(CommandLine&);
};

constexpr Subcommand kSubcommands[] = {
    {"run", "Continue a prompt", declare_run},
    {"chat", "Talk with the model", declare_chat},
    {"info", "Describe a model directory", declare_info},
    {"oracle", "Check a model directory against the reference values beside it", declare_oracle},
    {"plan", "Say what a model will take of memory, and what its disk allows", declare_plan},
    {"bench", "Measure prompt and generation speed", declare_bench},
    {"convert", "Quantise or repack a model into a new directory", declare_convert},
    {"verify", "Check that a model directory is whole", declare_verify},
    {"synth", "Write a model of true dimensions and random weights", declare_synth},
    {"replay", "Compare cache policies on a recorded run", declare_replay},
    {"selftest", "Check every GPU kernel bit for bit and measure the GPU: one page for a report", declare_selftest},
};

constexpr const char* kEnvironment =
    "Environment:\n"
    "  COLI_MODEL=DIR        the model when no --model is given\n"
    "  COLI_NO_OMP_TUNE=1    waiting threads block at once instead of spinning briefly\n"
    "  DIRECT=1 or 0         experts are read past the page cache or through it, like --direct on and off\n"
    "  PIPE=0                experts are read one at a time, by the thread that waits\n"
    "  PIPE_WORKERS=N        reads in flight, 1 to 64\n"
    "  COLI_USAGE=FILE       the history of used experts, instead of .coli_usage beside the model\n"
    "  USAGE_SAVE=0          the history is read but not written; AUTOPIN=0: it pins nothing\n"
    "  COLI_USAGE_DECAY=X    its counts are multiplied with X, 0 to 1, when it is read\n"
    "  TF=1                  `coli run` checks the model like `coli oracle` instead\n"
    "  DEBUG_LOGITS=1        the check prints the five best tokens and the margin at each mismatch\n";

// A closed standard stream would give its number to the next file that is opened: chat would read the model as questions.
// What stands in for it fails like a closed stream: stdin cannot be read and stdout cannot be written.
void occupy_standard_streams() {
  constexpr int kModes[] = {O_WRONLY, O_RDONLY, O_RDWR};
  for (int fd = 0; fd < 3; ++fd)
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", kModes[fd]) != fd) return;
}

// Output that a full disk swallowed is a failure, whatever the command made of it.
int check_output(int exit_code) {
  const bool flushed = std::fflush(stdout) == 0;
  const int error = output_error() != 0 ? output_error() : flushed ? 0 : errno;
  if (flushed && std::ferror(stdout) == 0) return exit_code;
  print_error(error != 0 ? fmt::format("writing the output failed: {}", std::strerror(error)) : "writing the output failed");
  return kExitFailed;
}

int run_main(int argc, char** argv) {
  CLI::App app("colibri: mixture-of-experts language models on one machine", "coli");
  app.set_version_flag("--version", "coli " COLIBRI_VERSION);
  app.require_subcommand(0, 1);
  app.footer(std::string(kEnvironment) + "\n`coli COMMAND --help` lists a command's options.");
  std::map<const CLI::App*, Action> actions;
  for (const Subcommand& command : kSubcommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    CommandLine line(*sub);
    actions[sub] = command.declare(line);
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ExtrasError&) {
    const auto chosen = app.get_subcommands();
    std::string words;
    for (const std::string& word : app.remaining(true)) words += " " + word;
    print_error(fmt::format("not expected:{} (see coli {}--help)", one_line(words),
                            chosen.empty() ? "" : chosen.front()->get_name() + " "));
    return kExitUsage;
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
  colibri::occupy_standard_streams();
  try {
    return colibri::check_output(colibri::run_main(argc, argv));
  } catch (const std::bad_alloc&) {
    colibri::print_error("not enough memory; try a smaller --ctx or a smaller model");
  } catch (const std::system_error& error) {
    // fmt::print throws when it cannot write.
    colibri::print_error(std::ferror(stdout) != 0 ? "writing the output failed: " + error.code().message() : error.what());
  } catch (const std::exception& error) {
    colibri::print_error(error.what());
  }
  return colibri::kExitFailed;
}

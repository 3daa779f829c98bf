#include "child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>

namespace colibri {
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe(ends) == 0) {
      read = ends[0];
      write = ends[1];
      fcntl(read, F_SETFD, FD_CLOEXEC);
      fcntl(write, F_SETFD, FD_CLOEXEC);
    }
  }
  ~Pipe() {
    close_end(read);
    close_end(write);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  static void close_end(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
};

// Appends what is there; false at the end of the stream.
bool take(int from, std::string& to) {
  std::array<char, 4096> buffer{};
  const ssize_t n = read(from, buffer.data(), buffer.size());
  if (n > 0) to.append(buffer.data(), static_cast<std::size_t>(n));
  return n > 0;
}

// Whether the process has a handler for SIGINT.
bool catches_interrupt(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("SigCgt:", 0) == 0) return (std::stoull(line.substr(7), nullptr, 16) >> (SIGINT - 1) & 1) != 0;
  return false;
}

[[noreturn]] void become_coli(const std::vector<std::string>& arguments, const ChildOptions& options) {
  for (const char* name : {"COLI_MODEL", "COLI_NO_OMP_TUNE", "TF", "DEBUG_LOGITS", "DIRECT", "PIPE", "PIPE_WORKERS", "COLI_USAGE",
                           "COLI_USAGE_DECAY", "AUTOPIN"})
    unsetenv(name);
  setenv("USAGE_SAVE", "0", 1);  // tests leave no history beside the demo model
  for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<std::string> words = {COLI_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

ChildResult run_coli(const std::vector<std::string>& arguments, const ChildOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // a child may end before it has read its input
  Pipe in, out, err;
  if (in.read < 0 || out.write < 0 || err.write < 0) {
    ADD_FAILURE() << "no more pipes";
    return {};
  }
  const pid_t child = fork();
  if (child < 0) {
    ADD_FAILURE() << "fork failed";
    return {};
  }
  if (child == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    dup2(in.read, STDIN_FILENO);
    dup2(out.write, STDOUT_FILENO);
    dup2(err.write, STDERR_FILENO);
    if (!options.stdout_to.empty()) {
      const int file = open(options.stdout_to.c_str(), O_WRONLY);
      if (file < 0) _exit(127);
      dup2(file, STDOUT_FILENO);
    }
    if (options.closed >= 0) close(options.closed);
    if (!options.control_group.empty()) {
      const int file = open(options.control_group.c_str(), O_WRONLY | O_CLOEXEC);
      if (file < 0 || write(file, "0", 1) != 1) _exit(126);
    }
    become_coli(arguments, options);
  }
  Pipe::close_end(in.read);
  Pipe::close_end(out.write);
  Pipe::close_end(err.write);
  // Inputs of these tests are far smaller than a pipe's buffer.
  EXPECT_LT(options.input.size(), 60000U);
  if (!options.input.empty() && write(in.write, options.input.data(), options.input.size()) < 0) Pipe::close_end(in.write);
  const bool interrupt = !options.interrupt_after.empty();
  if (!interrupt) Pipe::close_end(in.write);  // with an interrupt stdin ends only after it

  ChildResult result;
  bool interrupted = false;
  int interrupts = 0;
  while (out.read >= 0 || err.read >= 0) {
    std::array<pollfd, 2> waiting = {pollfd{out.read, POLLIN, 0}, pollfd{err.read, POLLIN, 0}};
    const bool watching = interrupts < options.interrupts_when_caught;
    if (poll(waiting.data(), waiting.size(), watching ? 5 : -1) < 0) break;
    if (watching && catches_interrupt(child) == (interrupts == 0)) {
      kill(child, SIGINT);
      ++interrupts;
    }
    if (waiting[0].revents != 0 && !take(out.read, result.out)) Pipe::close_end(out.read);
    if (waiting[1].revents != 0 && !take(err.read, result.err)) Pipe::close_end(err.read);
    if (interrupt && !interrupted && result.out.find(options.interrupt_after) != std::string::npos) {
      kill(child, SIGINT);
      interrupted = true;
      Pipe::close_end(in.write);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

bool can_watch_signals() { return std::ifstream("/proc/self/status").good(); }

std::string demo_model() { return COLIBRI_SOURCE_DIR "/models/demo"; }

}  // namespace colibri

#include "line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <string_view>

#include "interrupt.h"

namespace colibri {
namespace {

constexpr int kHistoryLines = 1000;

// From a pipe, byte by byte as stdio buffers it. Needs no newline at the end.
LineReader::Status read_plain(std::string& line) {
  line.clear();
  for (int c = 0; (c = std::getc(stdin)) != EOF;) {
    if (c == '\n') return LineReader::Status::kLine;
    line.push_back(static_cast<char>(c));
  }
  if (InterruptGuard::interrupted()) {
    std::clearerr(stdin);
    return LineReader::Status::kInterrupted;
  }
  return line.empty() ? LineReader::Status::kEnd : LineReader::Status::kLine;
}

}  // namespace

struct LineReader::Editor {
  EditLine* line = nullptr;
  History* history = nullptr;

  explicit Editor(LineReader* owner) {
    // libedit needs a UTF-8 locale to count characters; only LC_CTYPE, so that numbers stay as they are.
    std::setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    line = el_init("coli", stdin, stdout, stderr);
    history = history_init();
    if (line == nullptr || history == nullptr) return;
    el_set(line, EL_CLIENTDATA, owner);
    el_set(line, EL_PROMPT, prompt);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_SIGNAL, 0);
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistoryLines);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(line, EL_HIST, ::history, history);
    el_source(line, nullptr);  // the user's own ~/.editrc
  }
  ~Editor() {
    if (line != nullptr) el_end(line);
    if (history != nullptr) history_end(history);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  static char* prompt(EditLine* line) {
    void* owner = nullptr;
    el_get(line, EL_CLIENTDATA, &owner);
    return static_cast<LineReader*>(owner)->prompt_.data();
  }
};

LineReader::LineReader(std::string prompt) : prompt_(std::move(prompt)) {
  if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
    editor_ = std::make_unique<Editor>(this);
    if (editor_->line == nullptr) editor_.reset();
  }
}

LineReader::~LineReader() = default;

bool LineReader::interactive() const { return editor_ != nullptr; }

LineReader::Status LineReader::read(std::string& line) {
  if (editor_ == nullptr) return read_plain(line);
  std::fflush(stdout);
  int count = 0;
  const char* text = el_gets(editor_->line, &count);
  if (text == nullptr || count <= 0) {
    if (!InterruptGuard::interrupted()) return Status::kEnd;
    el_reset(editor_->line);
    std::fputc('\n', stdout);
    return Status::kInterrupted;
  }
  line.assign(text, static_cast<std::size_t>(count));
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  if (!line.empty()) {
    HistEvent event;
    ::history(editor_->history, &event, H_ENTER, line.c_str());
  }
  return Status::kLine;
}

}  // namespace colibri

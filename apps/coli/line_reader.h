// Lines from a person: with editing and history on a terminal, plainly from a pipe.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace colibri {

class LineReader {
 public:
  // prompt is shown on a terminal only.
  explicit LineReader(std::string prompt);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool interactive() const;  // stdin and stdout are terminals

  enum class Status { kLine, kInterrupted, kEnd };
  // The next line without its end. kInterrupted: Ctrl-C while waiting (needs an InterruptGuard); what was typed is dropped.
  Status read(std::string& line);

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;
  std::string prompt_;
};

}  // namespace colibri

// Writes a trace while a run goes on: a step is collected in memory and leaves as one block, so the cost in the
// layers is a few copies of small lists.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>

#include "experts/trace.h"

namespace colibri {

class TraceWriter {
 public:
  // Replaces the file.
  static Result<TraceWriter> create(const std::filesystem::path& path, const TraceModel& model);

  // Steps and layers in the order and with the values that trace.h describes. Errors name the file; after one nothing
  // more is written, and every later call returns it again.
  Result<void> write(const TraceStep& step);
  // Flushes and closes; needed to know that everything reached the file.
  Result<void> finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  TraceWriter(std::filesystem::path path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  Result<void> flush_buffer();
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<char> buffer_;
  std::string error_;
};

}  // namespace colibri

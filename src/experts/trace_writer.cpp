#include "experts/trace_writer.h"

#include <cerrno>
#include <cstring>

namespace colibri {
namespace {

constexpr std::size_t kFlushBytes = 1 << 16;

}  // namespace

Result<TraceWriter> TraceWriter::create(const std::filesystem::path& path, const TraceModel& model) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return fail("{}: the trace cannot be written: {}", path.string(), std::strerror(errno));
  TraceWriter writer(path, file);
  append_trace_header(model, writer.buffer_);
  return writer;
}

Result<void> TraceWriter::flush_buffer() {
  if (!error_.empty()) return fail("{}", error_);
  if (std::fwrite(buffer_.data(), 1, buffer_.size(), file_.get()) != buffer_.size()) {
    error_ = fmt::format("{}: writing the trace failed: {}", path_.string(), std::strerror(errno));
    return fail("{}", error_);
  }
  buffer_.clear();
  return {};
}

Result<void> TraceWriter::write(const TraceStep& step) {
  if (!error_.empty()) return fail("{}", error_);
  append_trace_step(step, buffer_);
  return buffer_.size() < kFlushBytes ? Result<void>{} : flush_buffer();
}

Result<void> TraceWriter::finish() {
  COLIBRI_CHECK(flush_buffer());
  if (std::fclose(file_.release()) != 0) {
    error_ = fmt::format("{}: writing the trace failed: {}", path_.string(), std::strerror(errno));
    return fail("{}", error_);
  }
  error_ = fmt::format("{}: the trace is finished", path_.string());
  return {};
}

}  // namespace colibri

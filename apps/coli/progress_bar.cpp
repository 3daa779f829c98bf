#include "progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "report.h"

namespace colibri {
namespace {

constexpr int kWidth = 24;

std::string duration(double seconds) {
  const std::int64_t s = std::llround(seconds);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), terminal_(::isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::update(std::uint64_t done, std::uint64_t total) {
  if (!terminal_ || total == 0) return;
  const Clock::time_point now = Clock::now();
  if (!started_) {
    started_ = true;
    start_ = now;
    first_done_ = done;
  }
  if (now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  const double part = static_cast<double>(done) / static_cast<double>(total);
  const int filled = std::min(static_cast<int>(part * kWidth), kWidth);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::string speed;
  if (seconds > 1 && done > first_done_) {
    const double rate = static_cast<double>(done - first_done_) / seconds;
    speed =
        fmt::format("  {:.2f} GB/s  {} left", rate / 1e9, duration(static_cast<double>(total - std::min(done, total)) / rate));
  }
  fmt::print(stderr, "\r\x1b[K{} [{}{}] {:3.0f} %  {:.1f} of {:.1f} GB{}", label_,
             std::string(static_cast<std::size_t>(filled), '#'), std::string(static_cast<std::size_t>(kWidth - filled), '.'),
             100 * part, static_cast<double>(done) / 1e9, static_cast<double>(total) / 1e9, speed);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressBar::clear() {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace colibri

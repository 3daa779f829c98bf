// One line on stderr that shows how far long work is. Silent when stderr is no terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace colibri {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();  // removes the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Bytes; drawn ten times a second at most.
  void update(std::uint64_t done, std::uint64_t total);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool shown_ = false;
  bool terminal_;
  std::uint64_t first_done_ = 0;  // what an earlier run had finished says nothing about the speed
  bool started_ = false;
  Clock::time_point start_, next_;
};

}  // namespace colibri

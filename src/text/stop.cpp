#include "text/stop.h"

#include <algorithm>
#include <utility>

namespace colibri {

void StopIds::add(std::span<const std::int32_t> ids) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  std::sort(ids_.begin(), ids_.end());
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
}

bool StopIds::contains(std::int32_t id) const { return std::binary_search(ids_.begin(), ids_.end(), id); }

StopTexts::StopTexts(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

StopTexts::Step StopTexts::push(std::string_view text) {
  if (stopped_) return {"", true};
  held_ += text;

  std::size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && at < begin)) {
      begin = at;
      end = at + stop.size();
    }
  }
  if (end != std::string::npos) {
    stopped_ = true;
    Step step{held_.substr(0, begin), true};
    held_.clear();
    return step;
  }

  // Held back: the longest end of the text that begins a stop.
  std::size_t hold = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t length = std::min(held_.size(), stop.size() - 1); length > hold; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) {
        hold = length;
        break;
      }
    }
  }
  Step step{held_.substr(0, held_.size() - hold), false};
  held_.erase(0, held_.size() - hold);
  return step;
}

std::string StopTexts::finish() { return std::exchange(held_, {}); }

}  // namespace colibri

// When an answer ends: at a token, or at a text that the user named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace colibri {

class StopIds {
 public:
  void add(std::span<const std::int32_t> ids);
  bool contains(std::int32_t id) const;

 private:
  std::vector<std::int32_t> ids_;  // sorted
};

// Looks for stop texts in a text that arrives in parts. The answer ends before the stop text that is complete first (of
// several the longest), however the text is divided; what may be the beginning of one is held back until that is known.
class StopTexts {
 public:
  explicit StopTexts(std::vector<std::string> stops);  // empty ones are ignored

  struct Step {
    std::string text;  // can be shown
    bool stopped = false;
  };
  Step push(std::string_view text);  // after a stop: nothing more
  std::string finish();              // the end of the answer: what was held back

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace colibri

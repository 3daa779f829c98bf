// How fast a model can answer when its experts come from a disk: a pure function of what `coli plan` knows before a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace colibri {

struct ForecastFacts {
  std::uint64_t bytes_per_token = 0;            // of all routed experts that one token needs
  std::int64_t experts = 0;                     // routed experts of the model
  std::int64_t slots = 0;                       // of them in memory at a time
  double disk_bytes_per_second = 0;             // 0: not known
  std::optional<double> share_of_hottest = {};  // of earlier choices: those of the `slots` hottest experts
};

// What the disk allows: computing is not counted, and neither is reading ahead that proves wrong.
struct SpeedForecast {
  std::uint64_t bytes_per_token = 0;
  double hit_rate = 0;           // share of a token's experts that are expected in memory
  std::string hit_source;        // where that comes from
  double tokens_per_second = 0;  // 0: not known, or the disk has nothing to do
};
SpeedForecast forecast_speed(const ForecastFacts& facts);

}  // namespace colibri

#include "engine/speed_forecast.h"

#include <algorithm>

namespace colibri {

SpeedForecast forecast_speed(const ForecastFacts& facts) {
  SpeedForecast forecast;
  forecast.bytes_per_token = facts.bytes_per_token;
  if (facts.share_of_hottest && facts.slots < facts.experts) {
    forecast.hit_rate = *facts.share_of_hottest;
    forecast.hit_source = "share of earlier runs' choices that fell on as many of the hottest experts";
  } else if (facts.experts > 0) {
    forecast.hit_rate = std::min(static_cast<double>(facts.slots) / static_cast<double>(facts.experts), 1.0);
    forecast.hit_source = "share of the experts in memory, as if all were used equally often";
  }
  const double from_disk = static_cast<double>(facts.bytes_per_token) * (1 - forecast.hit_rate);
  if (from_disk > 0) forecast.tokens_per_second = facts.disk_bytes_per_second / from_disk;
  return forecast;
}

}  // namespace colibri

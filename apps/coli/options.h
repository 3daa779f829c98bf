// Options that several subcommands share.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/engine.h"
#include "numerics/sampling.h"

namespace colibri {

struct EngineFlags {
  std::string model;
  int threads = 0;
  std::int64_t context = 0;
  std::int64_t prefill_chunk = 0;
  std::string isa;
  double ram_gb = 0;
  std::int64_t cache_experts = 0;
  std::string cache_policy = "default";
  bool no_prefetch = false, stand_in_experts = false, verify = false;
  std::string direct = "auto";
  bool no_usage = false;
  std::string gpu;

  // model_flag: declare --model too (not for commands that take the directory as an argument).
  void declare(CLI::App& app, bool model_flag = true);
  Result<EngineOptions> engine_options() const;
};

struct SamplingFlags {
  // Warm but not wild: what users of this family of engines are used to.
  float temperature = 0.7f;
  float top_p = 0.9f;
  std::int64_t top_k = 0;
  std::optional<std::uint64_t> seed;

  void declare(CLI::App& app);
  // Without --seed a fresh one is drawn.
  numerics::SamplingRule rule() const;
};

// A checked number: CLI11's own Range lets NaN through.
CLI::Validator between(double low, double high);

// A whole number written in plain decimal: CLI11 alone would take 010 as octal, 0x2 as hexadecimal and -1 as 2^64 - 1.
CLI::Validator whole(std::uint64_t low, std::uint64_t high);

// An environment variable that is set to anything but "" and "0".
bool environment_flag(const char* name);
// An environment variable that is "0".
bool environment_off(const char* name);

}  // namespace colibri

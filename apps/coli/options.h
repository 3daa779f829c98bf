// Options that several subcommands share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "command_line.h"
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
  void declare(CommandLine& line, bool model_flag = true);
  Result<EngineOptions> engine_options() const;
};

struct SamplingFlags {
  // Warm but not wild: what users of this family of engines are used to.
  float temperature = 0.7f;
  float top_p = 0.9f;
  std::int64_t top_k = 0;
  std::optional<std::uint64_t> seed;

  void declare(CommandLine& line);
  // Without --seed a fresh one is drawn.
  numerics::SamplingRule rule() const;
};

// An environment variable that is set to anything but "" and "0".
bool environment_flag(const char* name);
// An environment variable that is "0".
bool environment_off(const char* name);

}  // namespace colibri

// The checking mode behind `coli oracle` and `TF=1 coli run`.
#pragma once

#include <filesystem>

#include "engine/engine.h"
#include "engine/oracle.h"

namespace colibri {

struct CheckFlags {
  bool json = false;
  bool show_mismatches = false;  // the five best tokens and the margin wherever our best token differs
  std::filesystem::path dump{};  // where to write what was computed; empty for nowhere
  double tolerance = OracleReport::kTolerance;
};

// Prints the report; kExitOk when the model agrees with its reference, kExitFailed when not or on an error.
int run_check(const EngineOptions& options, const CheckFlags& flags);

}  // namespace colibri

// Finds this program's own files.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace colibri {

// Where the running program lies, links resolved; empty when the system does not say.
std::filesystem::path executable_path();

// The model directory to use: `wanted` when it is not empty, else the demo model, looked for as models/demo beside the
// program and in the folders above it. The directory exists; what is in it is the reader's business.
Result<std::filesystem::path> find_model(const std::string& wanted);

}  // namespace colibri

// Every kernel against the scalar reference, bit for bit, on a few representative shapes. The tests sweep shapes on the device
// that runs them; these checks are for a machine that nobody has tested on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "selftest/workbench.h"

namespace colibri::selftest {

struct Check {
  std::string name;
  // Fails when the device did, or did not compile a kernel.
  std::function<Result<Compared>(Workbench&)> run;
};

// In the order of a report. Run them in a thread that flushes subnormals (FlushDenormals).
std::vector<Check> all_checks();

// Parts of it.
std::vector<Check> attention_checks();

}  // namespace colibri::selftest

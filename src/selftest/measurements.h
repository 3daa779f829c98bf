// What a GPU costs and gives: reading, starting work, products. Times of a software device say nothing about any GPU.
#pragma once

#include <vector>

#include "selftest/workbench.h"

namespace colibri::selftest {

struct FormatSpeed {
  WeightFormat format = WeightFormat::kF32;
  double bytes_per_second = 0;  // of weights and scales, one row of activations
};

struct Measurements {
  std::uint64_t read_bytes = 0;       // block that was read
  double read_bytes_per_second = 0;   // by the GPU's own clock, the best of several
  std::int64_t repeats = 0;           // of the four times below
  double submit_seconds = 0;          // from encoding one small dispatch to knowing its end: median
  double command_buffer_seconds = 0;  // one more of them, committed before any is waited for
  double dispatch_seconds = 0;        // one more small dispatch in a command buffer
  double barrier_seconds = 0;         // one more barrier between two of them
  std::vector<FormatSpeed> products;
};

Result<Measurements> measure(Workbench& bench);

}  // namespace colibri::selftest

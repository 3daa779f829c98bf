// Between the plan of a synthetic model and the maker of its bytes.
#pragma once

#include <string>
#include <vector>

#include "convert/synth.h"

namespace colibri {

struct SynthMatrix {
  std::string name;  // decides its random numbers, whatever the layout
  Matrix matrix;     // described, without data
  double gain = 1;   // see synth_gain; 0: numbers around 1 (norms) or 0 (biases)
};
struct SynthJob {
  std::vector<SynthMatrix> matrices;  // one, or an expert's three
};
struct SynthPlan {
  ModelFiles files;
  std::vector<SynthJob> jobs;  // by PlannedUnit::job
};
Result<SynthPlan> plan_synth_jobs(const SynthOptions& options);

// Standard deviation of a matrix's output for inputs of standard deviation 1.
double synth_gain(const TensorSpec& spec);

}  // namespace colibri

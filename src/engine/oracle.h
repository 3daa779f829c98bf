// Checking mode: a model folder against the reference values beside it.
//
// expected.safetensors holds what Hugging Face transformers computes, in one of two layouts: `input_ids` with `logits`
// [S, vocab], `hidden` [layers + 1, S, hidden], `greedy` and `mtp_logits` [S - 1, vocab]; or, per case N, `ids.N` (prompt and
// greedy continuation), `logits_prompt.N`, `logits_last.N`, and for one long sequence `ids.long`, `positions.long`,
// `logits.long`. contract.safetensors, where there is one, holds the same arrays by an independent engine of the arithmetic
// contract: those are compared bit for bit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace colibri {

// Where our best token differs from the reference's.
struct OracleMismatch {
  std::string what;           // "logits", "logits.long", "greedy", ...
  std::int64_t position = 0;  // row of that array
  struct Entry {
    std::int32_t id = 0;
    float ours = 0;
    float reference = 0;
  };
  std::vector<Entry> top;  // our five best
  float margin = 0;        // our first minus our second
  std::int32_t expected_id = 0;
};

struct OracleReport {
  std::int64_t positions = 0;          // logit rows compared
  double max_rel_logit_err = 0;        // largest difference over the largest reference logit, worst array
  std::vector<double> hidden_rel_err;  // per layer input, the state after the final norm last; the same measure
  std::int64_t argmax_equal = 0;       // rows with the reference's best token
  std::int64_t greedy_equal = 0;       // generated tokens equal to the reference's, up to the first difference
  std::int64_t greedy_total = 0;
  double mtp_max_rel_err = -1;             // -1: nothing to compare
  std::int64_t contract_bits_differ = -1;  // floats that differ in any bit; -1: no contract values
  std::int64_t contract_values = 0;
  std::vector<OracleMismatch> mismatches;

  // Errors within `tolerance`, every best token and greedy id equal, no contract bit different.
  bool passed(double tolerance = kTolerance) const;
  static constexpr double kTolerance = 5e-6;
};

// Runs every array of engine's model folder. dump: where to write what was computed, in the reference's names and
// shapes; empty for nowhere.
Result<OracleReport> check_against_oracle(Engine& engine, const std::filesystem::path& dump = {});

}  // namespace colibri

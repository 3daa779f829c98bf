// coli oracle: a model directory against the reference values beside it.
#include <cstdio>
#include <memory>

#include "checking.h"
#include "command.h"
#include "loaded_model.h"
#include "options.h"
#include "report.h"

namespace colibri {
namespace {

void print_mismatches(const OracleReport& report) {
  for (const OracleMismatch& m : report.mismatches) {
    fmt::print("mismatch in {} at row {}: expected token {}, margin {:.6g}\n", m.what, m.position, m.expected_id, m.margin);
    for (const OracleMismatch::Entry& e : m.top)
      fmt::print("  token {:>8}  ours {:>12.6f}  reference {:>12.6f}\n", e.id, e.ours, e.reference);
  }
}

nlohmann::json report_json(const OracleReport& report, bool passed) {
  nlohmann::json out = {
      {"passed", passed},
      {"positions", report.positions},
      {"max_rel_logit_err", report.max_rel_logit_err},
      {"hidden_rel_err", report.hidden_rel_err},
      {"argmax_equal", report.argmax_equal},
      {"greedy_equal", report.greedy_equal},
      {"greedy_total", report.greedy_total},
      {"mtp_max_rel_err", nullptr},
      {"contract_bits_differ", nullptr},
      {"contract_values", report.contract_values},
  };
  if (report.mtp_max_rel_err >= 0) out["mtp_max_rel_err"] = report.mtp_max_rel_err;
  if (report.contract_bits_differ >= 0) out["contract_bits_differ"] = report.contract_bits_differ;
  for (const OracleMismatch& m : report.mismatches) {
    nlohmann::json top = nlohmann::json::array();
    for (const OracleMismatch::Entry& e : m.top) top.push_back({{"id", e.id}, {"ours", e.ours}, {"reference", e.reference}});
    out["mismatches"].push_back(
        {{"what", m.what}, {"row", m.position}, {"expected_id", m.expected_id}, {"margin", m.margin}, {"top", top}});
  }
  return out;
}

void print_report(const OracleReport& report, double tolerance, bool passed) {
  fmt::print("logits         {} rows, largest difference {:.2e} of the largest logit (at most {:.0e})\n", report.positions,
             report.max_rel_logit_err, tolerance);
  fmt::print("best token     {} of {} rows equal\n", report.argmax_equal, report.positions);
  fmt::print("greedy         {} of {} tokens equal\n", report.greedy_equal, report.greedy_total);
  for (std::size_t i = 0; i < report.hidden_rel_err.size(); ++i) {
    const bool last = i + 1 == report.hidden_rel_err.size();
    const std::string what = last ? "after the final norm" : i == 0 ? "embedding" : fmt::format("before layer {}", i);
    fmt::print("{:<15}{:<22}{:.2e}\n", i == 0 ? "hidden states" : "", what, report.hidden_rel_err[i]);
  }
  if (report.mtp_max_rel_err >= 0) fmt::print("MTP logits     largest difference {:.2e}\n", report.mtp_max_rel_err);
  if (report.contract_bits_differ >= 0)
    fmt::print("contract       {} of {} values differ in any bit\n", with_commas(report.contract_bits_differ),
               with_commas(report.contract_values));
  fmt::print("{}\n", passed ? "agrees" : "DOES NOT AGREE");
}

struct OracleFlags {
  std::string dir;
  EngineFlags engine;
  CheckFlags check;
  std::string dump;
};

}  // namespace

int run_check(const EngineOptions& options, const CheckFlags& flags) {
  auto engine = Engine::open(options);
  if (!engine) return fail_with(engine.error());
  print_notices(**engine);
  auto report = check_against_oracle(**engine, flags.dump);
  if (!report) return fail_with(report.error());
  const bool passed = report->passed(flags.tolerance);
  if (flags.json) {
    print_json(report_json(*report, passed));
  } else {
    if (flags.show_mismatches) print_mismatches(*report);
    print_report(*report, flags.tolerance, passed);
  }
  return passed ? kExitOk : kExitFailed;
}

Action declare_oracle(CommandLine& line) {
  auto flags = std::make_shared<OracleFlags>();
  line.option("DIR,-m,--model", flags->dir, "Model directory with expected.safetensors; default: the demo model")
      .from_environment("COLI_MODEL");
  flags->engine.declare(line, false);
  line.option("--tolerance", flags->check.tolerance, "Largest difference, relative to the largest logit")
      .between(0, 1)
      .shows_default();
  line.option("--dump", flags->dump, "Write what was computed to this safetensors file");
  line.flag("--json", flags->check.json, "One JSON object instead of text");
  return [flags] {
    flags->engine.model = flags->dir;
    flags->check.dump = flags->dump;
    flags->check.show_mismatches = environment_flag("DEBUG_LOGITS");
    auto options = flags->engine.engine_options();
    if (!options) return fail_with(options.error());
    return run_check(*options, flags->check);
  };
}

}  // namespace colibri

// coli plan: what a model will take of memory, term by term, before anything is read.
#include <cstdio>
#include <memory>

#include "command.h"
#include "options.h"
#include "report.h"

namespace colibri {
namespace {

struct PlanFlags {
  EngineFlags engine;
  bool json = false;
};

int plan(const PlanFlags& flags) {
  auto options = flags.engine.engine_options();
  if (!options) return fail_with(options.error());
  auto planned = Engine::plan(*options);
  if (!planned) return fail_with(planned.error());
  if (flags.json) {
    nlohmann::json terms = nlohmann::json::array();
    for (const MemoryTerm& t : planned->terms) terms.push_back({{"name", t.name}, {"bytes", t.bytes}, {"source", t.source}});
    print_json({{"model", options->model.string()},
                {"budget_bytes", planned->budget},
                {"budget_source", planned->budget_source},
                {"terms", terms},
                {"total_bytes", planned->total()},
                {"expert_slots", planned->slabs.slots},
                {"all_experts_resident", planned->all_resident}});
    return kExitOk;
  }
  fmt::print("{:<16}{:>12}  {}\n", "budget", human_bytes(planned->budget), planned->budget_source);
  for (const MemoryTerm& t : planned->terms) fmt::print("{:<16}{:>12}  {}\n", t.name, human_bytes(t.bytes), t.source);
  fmt::print("{:<16}{:>12}\n", "total", human_bytes(planned->total()));
  if (planned->slabs.slots == 0)
    fmt::print("the model has no routed experts\n");
  else if (planned->all_resident)
    fmt::print("every expert is held in memory\n");
  else
    fmt::print("{} experts of {} are held in memory, the others are read as they are needed\n", planned->slabs.slots,
               human_bytes(planned->slabs.slot_bytes));
  return kExitOk;
}

}  // namespace

Action declare_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  flags->engine.declare(app);
  app.add_flag("--json", flags->json, "One JSON object");
  return [flags] { return plan(*flags); };
}

}  // namespace colibri

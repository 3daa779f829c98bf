// coli plan: what a model will take of memory, term by term, and how fast its experts can come from the disk.
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

// A value and where it comes from.
struct Entry {
  std::string value, source;
};

// The wishes that --direct, DIRECT, PIPE and PIPE_WORKERS express, the rest as the disk's measurement or the default has it.
struct Reading {
  Entry mode, in_flight, backend, speed;
};

Reading reading_of(const DiskChoice& disk, const DiskWishes& wishes) {
  const std::string found = disk.source == "measured"     ? "disk measured now"
                            : disk.source == "remembered" ? "disk measured before, remembered in .coli_ssd"
                                                          : disk.source;
  Reading reading;
  reading.mode = {disk.options.direct ? "direct" : "buffered", wishes.direct ? "DIRECT or --direct" : found};
  reading.in_flight = {std::to_string(disk.options.in_flight), wishes.in_flight ? "PIPE or PIPE_WORKERS" : found};
  reading.backend = {std::string(backend_name(disk.options.backend)), found};
  reading.speed = disk.bytes_per_second > 0 ? Entry{fmt::format("{:.2f} GB/s", disk.bytes_per_second / 1e9), found}
                                            : Entry{"not known", "too few bytes of the model are outside the page cache"};
  return reading;
}

nlohmann::json json_of(const EnginePlan& plan, const EngineOptions& options) {
  const MemoryPlan& memory = plan.memory;
  nlohmann::json terms = nlohmann::json::array();
  for (const MemoryTerm& t : memory.terms) terms.push_back({{"name", t.name}, {"bytes", t.bytes}, {"source", t.source}});
  nlohmann::json out = {{"model", options.model.string()},
                        {"budget_bytes", memory.budget},
                        {"budget_source", memory.budget_source},
                        {"terms", terms},
                        {"total_bytes", memory.total()},
                        {"expert_slots", memory.slabs.slots},
                        {"all_experts_resident", memory.all_resident},
                        {"pinned_experts", plan.pins},
                        {"disk", nullptr},
                        {"forecast", nullptr}};
  if (!plan.disk) return out;
  const DiskChoice& disk = *plan.disk;
  const SpeedForecast& f = plan.forecast;
  const Reading reading = reading_of(disk, options.disk);
  const auto known = [](double value) { return value > 0 ? nlohmann::json(value) : nlohmann::json(); };
  out["disk"] = {{"direct", disk.options.direct},
                 {"direct_source", reading.mode.source},
                 {"in_flight", disk.options.in_flight},
                 {"in_flight_source", reading.in_flight.source},
                 {"backend", reading.backend.value},
                 {"backend_source", reading.backend.source},
                 {"gb_per_second", known(disk.bytes_per_second / 1e9)},
                 {"gb_per_second_source", reading.speed.source}};
  out["forecast"] = {{"expert_bytes_per_token", f.bytes_per_token},
                     {"hit_rate", f.hit_rate},
                     {"hit_rate_source", f.hit_source},
                     {"disk_tok_s", known(f.tokens_per_second)}};
  return out;
}

void print_reading(const EnginePlan& plan, const EngineOptions& options) {
  const Reading r = reading_of(*plan.disk, options.disk);
  const SpeedForecast& f = plan.forecast;
  const auto line = [](const char* name, const Entry& entry) {
    fmt::print("{:<16}{:>12}  {}\n", name, entry.value, entry.source);
  };
  line("reads", r.mode);
  line("in flight", r.in_flight);
  line("read by", r.backend);
  line("disk", r.speed);
  line("a token needs", {human_bytes(f.bytes_per_token), "experts per token x layers x their size"});
  line("pinned", {std::to_string(plan.pins), plan.pins > 0 ? "hottest of the usage history" : "no usage history worth the name"});
  line("in memory", {fmt::format("{:.1f} %", 100 * f.hit_rate), f.hit_source});
  line("forecast", {f.tokens_per_second > 0 ? fmt::format("{:.2f} tok/s", f.tokens_per_second) : "not known",
                    "what the disk allows by the three lines above; computing is not counted"});
}

int plan(const PlanFlags& flags) {
  auto options = flags.engine.engine_options();
  if (!options) return fail_with(options.error());
  auto planned = Engine::plan(*options);
  if (!planned) return fail_with(planned.error());
  for (const std::string& notice : planned->notices) print_note(notice);
  if (flags.json) {
    print_json(json_of(*planned, *options));
    return kExitOk;
  }
  const MemoryPlan& memory = planned->memory;
  fmt::print("{:<16}{:>12}  {}\n", "budget", human_bytes(memory.budget), memory.budget_source);
  for (const MemoryTerm& t : memory.terms) fmt::print("{:<16}{:>12}  {}\n", t.name, human_bytes(t.bytes), t.source);
  fmt::print("{:<16}{:>12}\n", "total", human_bytes(memory.total()));
  if (memory.slabs.slots == 0)
    fmt::print("the model has no routed experts\n");
  else if (memory.all_resident)
    fmt::print("every expert is held in memory\n");
  else
    fmt::print("{} experts of {} are held in memory, the others are read as they are needed\n", memory.slabs.slots,
               human_bytes(memory.slabs.slot_bytes));
  if (planned->disk) print_reading(*planned, *options);
  return kExitOk;
}

}  // namespace

Action declare_plan(CommandLine& line) {
  auto flags = std::make_shared<PlanFlags>();
  flags->engine.declare(line);
  line.flag("--json", flags->json, "One JSON object");
  return [flags] { return plan(*flags); };
}

}  // namespace colibri

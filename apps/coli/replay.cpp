// coli replay: a recorded run under other cache policies and sizes, or against the time it could have taken.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.h"
#include "experts/overlap_model.h"
#include "experts/replay.h"
#include "options.h"
#include "report.h"

namespace colibri {
namespace {

struct ReplayFlags {
  std::string trace;
  std::vector<std::int64_t> slots;
  std::vector<double> fractions;
  std::string usage;
  bool overlap = false;
  double disk = 0;  // GB/s
  std::string policy = "default";
  std::int64_t skip = 0;
  bool json = false;
};

// The sizes to look at, in slots, without repetition: what was asked for, or one token's experts and some shares of all.
std::vector<std::int64_t> sizes_of(const Trace& trace, const ReplayFlags& flags) {
  const std::int64_t all = count_experts(trace);
  std::vector<std::int64_t> sizes = flags.slots;
  std::vector<double> fractions = flags.fractions;
  if (sizes.empty() && fractions.empty()) {
    if (flags.overlap) {
      fractions = {0.25};
    } else {
      sizes = {experts_of_one_step(trace)};
      fractions = {0.1, 0.25, 0.5, 0.75};
    }
  }
  for (const double f : fractions) sizes.push_back(std::llround(f * static_cast<double>(all)));
  for (std::int64_t& size : sizes) size = std::clamp(size, trace.model.top_k, std::max(all, trace.model.top_k));
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

nlohmann::json json_of(const PhaseHits& hits) { return {{"needed", hits.needed}, {"hits", hits.hits}, {"rate", hits.rate()}}; }
nlohmann::json json_of(const ReplayHits& hits) { return {{"decode", json_of(hits.decode)}, {"prefill", json_of(hits.prefill)}}; }

void print_table(const Trace& trace, const std::vector<ReplaySize>& sizes) {
  fmt::print("{} steps, {} experts of {} layers; one token needs {}\n",
             with_commas(static_cast<std::int64_t>(trace.steps.size())), with_commas(count_experts(trace)),
             count_experts(trace) / trace.model.experts, experts_of_one_step(trace));
  for (const ReplaySize& size : sizes) {
    fmt::print("\n{} slots, {:.1f} % of the experts\n", with_commas(size.slots), 100 * size.fraction);
    fmt::print("  {:<24} {:>12} {:>13} {:>24}\n", "cache", "decode hits", "prefill hits", "of the way LRU-optimum");
    for (const ReplayRow& row : size.rows)
      fmt::print("  {:<24} {:>10.1f} % {:>11.1f} % {:>22}\n", row.cache, 100 * row.hits.decode.rate(),
                 100 * row.hits.prefill.rate(), std::isnan(row.gap_closed) ? "-" : fmt::format("{:.0f} %", 100 * row.gap_closed));
    fmt::print("  {:<24} {:>10.1f} % {:>11.1f} %\n", "optimum (Belady)", 100 * size.optimum.decode.rate(),
               100 * size.optimum.prefill.rate());
  }
}

int compare(const Trace& trace, const ReplayFlags& flags) {
  const CacheShape shape = cache_shape(trace.model);
  UsageHistory history(shape);
  if (!flags.usage.empty()) {
    std::string notice;
    history = UsageHistory::load(flags.usage, shape, 1, notice);
    if (!notice.empty()) return fail_with({notice});
  }
  const auto sizes = compare_caches(trace, sizes_of(trace, flags), flags.usage.empty() ? nullptr : &history);
  if (!flags.json) {
    print_table(trace, sizes);
    return kExitOk;
  }
  nlohmann::json out = {{"steps", trace.steps.size()},
                        {"experts", count_experts(trace)},
                        {"experts_of_one_step", experts_of_one_step(trace)},
                        {"sizes", nlohmann::json::array()}};
  for (const ReplaySize& size : sizes) {
    nlohmann::json caches = nlohmann::json::array();
    for (const ReplayRow& row : size.rows) {
      nlohmann::json entry = json_of(row.hits);
      entry["cache"] = row.cache;
      entry["gap_closed"] = std::isnan(row.gap_closed) ? nlohmann::json() : nlohmann::json(row.gap_closed);
      caches.push_back(std::move(entry));
    }
    out["sizes"].push_back(
        {{"slots", size.slots}, {"fraction", size.fraction}, {"caches", std::move(caches)}, {"optimum", json_of(size.optimum)}});
  }
  print_json(out);
  return kExitOk;
}

double milliseconds_per_step(double total, const OverlapTimes& t) {
  return t.steps > 0 ? total / static_cast<double>(t.steps) / 1e6 : 0;
}

nlohmann::json json_of(const OverlapTimes& t) {
  return {{"steps", t.steps},
          {"wall_ms", milliseconds_per_step(t.wall, t)},
          {"compute_ms", milliseconds_per_step(t.compute, t)},
          {"disk_ms", milliseconds_per_step(t.disk, t)},
          {"max_of_both_ms", milliseconds_per_step(t.max_of_both(), t)},
          {"waiting_ms", milliseconds_per_step(t.waiting, t)},
          {"needed", t.needed},
          {"in_memory", t.in_memory},
          {"read_ahead", t.read_ahead},
          {"begun_ahead", t.begun_ahead},
          {"wrong", t.wrong}};
}

void print_overlap(const char* name, const OverlapTimes& t) {
  if (t.steps == 0) return;
  const auto percent = [&](std::uint64_t part) {
    return t.needed > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(t.needed) : 0.0;
  };
  fmt::print("  {:<22} {:>6} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>9.1f} % {:>8.1f} % {:>8.1f}\n", name, t.steps,
             milliseconds_per_step(t.wall, t), milliseconds_per_step(t.compute, t), milliseconds_per_step(t.disk, t),
             milliseconds_per_step(t.max_of_both(), t), percent(t.in_memory), percent(t.read_ahead),
             static_cast<double>(t.wrong) / static_cast<double>(t.steps));
}

int overlap(const Trace& trace, const ReplayFlags& flags) {
  if (flags.disk <= 0) {
    print_error("--overlap needs the disk's speed: --disk GB/S, for example what a run's statistics or fio say");
    return kExitUsage;
  }
  const CacheShape shape = cache_shape(trace.model);
  nlohmann::json out = {{"disk_gb_per_s", flags.disk}, {"policy", flags.policy}, {"sizes", nlohmann::json::array()}};
  if (!flags.json)
    fmt::print("times per step in ms at {:.2f} GB/s and {} an expert, policy {}\n", flags.disk,
               human_bytes(static_cast<std::uint64_t>(trace.model.expert_bytes)), flags.policy);
  for (const std::int64_t slots : sizes_of(trace, flags)) {
    if (!flags.json) {
      fmt::print("\n{} slots\n", with_commas(slots));
      fmt::print("  {:<22} {:>6} {:>10} {:>10} {:>10} {:>10} {:>11} {:>10} {:>8}\n", "", "steps", "bound", "compute", "disk",
                 "max(both)", "in memory", "read ahead", "wrong");
    }
    for (const bool predictions : {true, false}) {
      auto policy = make_cache_policy(flags.policy, shape);
      if (!policy) return fail_with(policy.error());
      CacheDirectory directory(shape, slots, std::move(*policy));
      const OverlapResult r = model_overlap(trace, directory, {flags.disk * 1e9, predictions, flags.skip});
      if (flags.json) {
        out["sizes"].push_back(
            {{"slots", slots}, {"predictions", predictions}, {"decode", json_of(r.decode)}, {"prefill", json_of(r.prefill)}});
      } else {
        print_overlap(predictions ? "decode, reading ahead" : "decode, on demand", r.decode);
        print_overlap(predictions ? "prefill, reading ahead" : "prefill, on demand", r.prefill);
      }
    }
  }
  if (flags.json) print_json(out);
  return kExitOk;
}

int run_replay(const ReplayFlags& flags) {
  const auto trace = read_trace(flags.trace);
  if (!trace) return fail_with(trace.error());
  if (count_experts(*trace) == 0)
    return fail_with({flags.trace + ": the trace has no layer with experts; record one with coli run --trace"});
  return flags.overlap ? overlap(*trace, flags) : compare(*trace, flags);
}

}  // namespace

Action declare_replay(CommandLine& line) {
  auto flags = std::make_shared<ReplayFlags>();
  line.option("TRACE", flags->trace, "A trace written by coli run --trace").required();
  line.option("--slots", flags->slots, "Cache sizes in experts").comma_separated().whole(1, 1000000000);
  line.option("--fraction", flags->fractions, "Cache sizes as shares of all experts").comma_separated().between(0, 1);
  line.option("--usage", flags->usage, "Also compare caches that pin experts by this .coli_usage file");
  line.flag("--overlap", flags->overlap, "The least time per step at the trace's compute times, instead of hit rates");
  line.option("--disk", flags->disk, "With --overlap: what the disk reads, in GB/s").between(0.001, 1000);
  line.option("--policy", flags->policy, "With --overlap: the cache policy");
  line.option("--skip", flags->skip, "With --overlap: decode steps at the start that are not counted").whole(0, 1000000000);
  line.flag("--json", flags->json, "One JSON object instead of text");
  return [flags] { return run_replay(*flags); };
}

}  // namespace colibri

// How fast the CPU kernels are on this machine, as ratios to what it can do at most. Machines are shared and change
// their clock, so every run of a kernel is paired with a run of the peak just before it; the median of these ratios is
// what counts. The rates beside them are medians too.
//   kernels_bench [--threads N] [--isa NAME] [--only decode|prefill|table|attention] [--repeats N] [--json]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "cpu/peaks.h"
#include "measure.h"

namespace {

using namespace colibri;
using namespace colibri::bench;
using nlohmann::json;

constexpr std::int64_t kOutputs = 2048, kInputs = 6144;  // an expert's projection of the reference model
constexpr double kLargerThanCache = 160e6;               // bytes of weights for rates from memory

struct Options {
  int threads = available_cpus();
  int repeats = 5;
  std::string isa, only;
  bool as_json = false;
};

struct Format {
  WeightFormat format;
  std::int32_t group;
  const char* name;
};
constexpr Format kFormats[] = {{WeightFormat::kF32, 0, "f32"},
                               {WeightFormat::kBF16, 0, "bf16"},
                               {WeightFormat::kF16, 0, "f16"},
                               {WeightFormat::kInt8Row, 0, "int8-row"},
                               {WeightFormat::kInt4Row, 0, "int4-row"},
                               {WeightFormat::kInt4Grouped, 64, "int4-g64"},
                               {WeightFormat::kInt4Grouped, 48, "int4-g48"},
                               {WeightFormat::kInt2Row, 0, "int2-row"},
                               {WeightFormat::kInt3G64, 64, "int3-g64"},
                               {WeightFormat::kF8Block128, 128, "fp8-b128"}};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), team_(options.threads), probe_(team_) {
    report_["cpu"] = cpu_model_name();
    report_["threads"] = team_.size();
    say("{}, {} threads\n", cpu_model_name(), team_.size());
    ThreadTeam one(1);
    const double alone = measure_read_bandwidth(one), bandwidth = measure_read_bandwidth(team_);
    report_["read_gb_s"] = {{"1", alone / 1e9}, {"all", bandwidth / 1e9}};
    say("read bandwidth  1 thread {:6.1f} GB/s, all {:6.1f} GB/s\n", alone / 1e9, bandwidth / 1e9);
    for (const Kernels* k : available_kernels()) {
      if (!options.isa.empty() && k->name != options.isa) continue;
      if (k->name != "scalar" || options.isa == "scalar") tables_.push_back(k);  // minutes; ask for it by name
      const double single = measure_fma_peak(one, k->name), all = measure_fma_peak(team_, k->name);
      report_["fma_gflop_s"][std::string(k->name)] = {{"1", single / 1e9}, {"all", all / 1e9}};
      say("FMA peak {:<7} 1 thread {:6.1f} GFLOP/s, all {:6.1f} GFLOP/s\n", k->name, single / 1e9, all / 1e9);
    }
  }

  void decode() {
    say("\ndecode, int4-g64 [{}, {}], weights from memory\n", kOutputs, kInputs);
    const Weights w(WeightFormat::kInt4Grouped, 64, kOutputs, kInputs, 40);
    for (const Kernels* k : tables_) {
      Work work(team_, *k, 1, kInputs, kOutputs);
      const Paired p = paired(w.bytes(), [&] { return probe_.bytes_per_second(); }, [&] { work.matmul_all(w); });
      report_["decode"][std::string(k->name)] = {{"gb_s", p.rate / 1e9}, {"of_bandwidth", p.ratio}};
      say("  {:<7} {:6.2f} GB/s = {:.3f} of the read bandwidth\n", k->name, p.rate / 1e9, p.ratio);
    }
  }

  void prefill() {
    say("\nprefill, int4-g64 [{}, {}] times 64 rows\n", kOutputs, kInputs);
    const Weights w(WeightFormat::kInt4Grouped, 64, kOutputs, kInputs, 1);
    for (const Kernels* k : tables_) {
      Work work(team_, *k, 64, kInputs, kOutputs);
      const Paired p = of_peak(*k, flops(64), [&] { work.matmul(w[0]); });
      report_["prefill"][std::string(k->name)] = {{"gflop_s", p.rate / 1e9}, {"of_peak", p.ratio}};
      say("  {:<7} {:6.1f} GFLOP/s = {:.3f} of the FMA peak\n", k->name, p.rate / 1e9, p.ratio);
    }
  }

  void table() {
    for (const Kernels* k : tables_) {
      say("\n{:<9} 1 row from memory  own rate from L2  of the smaller | GFLOP/s and part of peak at rows 1, 4, 16, 64\n",
          k->name);
      for (const Format& f : kFormats) table_row(*k, f);
    }
  }

  void attention() {
    say("\nattention, 64 heads, 576 and 512 columns of an f32 cache; absorbed queries of 64 heads [192, 512]\n");
    for (const Kernels* k : tables_) {
      attention_scores(*k);
      attention_sums(*k);
      for (const Format& f : {kFormats[0], kFormats[1], kFormats[3], kFormats[4]})
        for (const std::int64_t rows : {1, 64}) absorbed_query(*k, f, rows);
    }
  }

  void finish() const {
    if (options_.as_json) fmt::print("{}\n", report_.dump(2));
  }

 private:
  struct Paired {
    double rate, ratio;
  };
  // Median rate of `run`, which does `work` units, and median ratio to the peak measured before each run.
  Paired paired(double work, const std::function<double()>& peak, const std::function<void()>& run) const {
    std::vector<double> rates, ratios;
    run();
    for (int i = 0; i < options_.repeats; ++i) {
      const double most = peak(), rate = work / seconds_of(run);
      rates.push_back(rate);
      ratios.push_back(rate / most);
    }
    return {median(rates), median(ratios)};
  }
  Paired of_peak(const Kernels& k, double flop, const std::function<void()>& run) {
    return paired(flop, [&] { return fma_per_second(team_, k.name); }, run);
  }

  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    if (!options_.as_json) fmt::print(format, std::forward<Args>(args)...), std::fflush(stdout);
  }
  static double flops(std::int64_t rows) { return 2.0 * kOutputs * kInputs * static_cast<double>(rows); }

  void table_row(const Kernels& k, const Format& f) {
    const auto one = static_cast<double>(format_bytes(f.format, kOutputs, kInputs));
    const Weights w(f.format, f.group, kOutputs, kInputs, static_cast<std::int64_t>(kLargerThanCache / one) + 1);
    Work row(team_, k, 1, kInputs, kOutputs);
    // Weights of 160 KB a thread stay in a second-level cache of 256 KB or more.
    constexpr std::int64_t kCols = 2048;
    const std::int64_t outputs = 160000 / format_row_bytes(f.format, kCols);
    const Weights small(f.format, f.group, outputs, kCols, team_.size());
    Work cached(team_, k, 1, kCols, outputs);
    constexpr int kTimes = 40;
    std::vector<double> own_rates;
    const Paired memory = paired(
        w.bytes(),
        [&] {
          own_rates.push_back(kTimes * small.bytes() / seconds_of([&] { cached.matmul_own(small, kTimes); }));
          return std::min(probe_.bytes_per_second(), own_rates.back());
        },
        [&] { row.matmul_all(w); });
    const double own = median(own_rates);
    json& entry = report_["table"][std::string(k.name)][f.name];
    entry = {{"memory_gb_s", memory.rate / 1e9}, {"l2_gb_s", own / 1e9}, {"of_smaller", memory.ratio}};
    say("{:<9}  {:8.2f} GB/s     {:8.2f} GB/s        {:.3f}     |", f.name, memory.rate / 1e9, own / 1e9, memory.ratio);
    for (const std::int64_t rows : {1, 4, 16, 64}) {
      Work work(team_, k, rows, kInputs, kOutputs);
      const Paired p = of_peak(k, flops(rows), [&] { work.matmul(w[0]); });
      entry["gflop_s"][std::to_string(rows)] = p.rate / 1e9;
      entry["of_peak"][std::to_string(rows)] = p.ratio;
      say("  {:6.1f} {:.2f}", p.rate / 1e9, p.ratio);
    }
    say("\n");
  }

  void attention_line(const Kernels& k, const std::string& what, double flop, const std::function<void()>& run) {
    const Paired p = of_peak(k, flop, run);
    report_["attention"][std::string(k.name)][what] = {{"gflop_s", p.rate / 1e9}, {"of_peak", p.ratio}};
    say("  {:<7} {:<28} {:6.1f} GFLOP/s = {:.3f} of the FMA peak\n", k.name, what, p.rate / 1e9, p.ratio);
  }

  void attention_scores(const Kernels& k) {
    constexpr std::int64_t kEntries = 2048;
    const Weights cache(WeightFormat::kF32, 0, kEntries, 576, 1);
    Work work(team_, k, 64, 576, kEntries);
    attention_line(k, "scores", 2.0 * 64 * kEntries * 576, [&] { work.matmul(cache[0]); });
  }

  void attention_sums(const Kernels& k) {
    constexpr std::int64_t kEntries = 2048;
    const Weights cache(WeightFormat::kF32, 0, kEntries, 576, 1), p(WeightFormat::kF32, 0, 64, kEntries, 1);
    AlignedArray<float> out(64 * 512);
    const auto* v = reinterpret_cast<const float*>(cache[0].data);
    const auto* weights = reinterpret_cast<const float*>(p[0].data);
    attention_line(k, "weighted sums", 2.0 * 64 * kEntries * 512, [&] {
      team_.parallel_for(64, 16, [&](std::int64_t begin, std::int64_t end, int) {
        k.weighted_sum(weights + begin * kEntries, kEntries, end - begin, v, 576, kEntries, 512, out.data() + begin * 512, 512);
      });
    });
  }

  void absorbed_query(const Kernels& k, const Format& f, std::int64_t rows) {
    constexpr std::int64_t kHeads = 64, kDepth = 192, kCols = 512;
    const Weights w(f.format, f.group, kDepth, kCols, kHeads);
    Work work(team_, k, rows, kDepth, 1);
    AlignedArray<float> y(static_cast<std::size_t>(rows * kHeads * kCols));
    attention_line(
        k, fmt::format("absorbed query {} x{}", f.name, rows), 2.0 * kHeads * kDepth * kCols * static_cast<double>(rows), [&] {
          team_.parallel_for(kHeads, 4, [&](std::int64_t begin, std::int64_t end, int worker) {
            for (std::int64_t h = begin; h < end; ++h)
              k.transposed_matmul(w[h], work.plain(), kDepth, rows, y.data() + h * kCols, kHeads * kCols, work.scratch(worker));
          });
        });
  }

  Options options_;
  ThreadTeam team_;
  ReadProbe probe_;
  std::vector<const Kernels*> tables_;
  json report_;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (flag == "--json") {
      options.as_json = true;
      continue;
    }
    if (!value) return false;
    ++i;
    if (flag == "--threads")
      options.threads = std::max(1, std::atoi(value));
    else if (flag == "--repeats")
      options.repeats = std::max(1, std::atoi(value));
    else if (flag == "--isa")
      options.isa = value;
    else if (flag == "--only")
      options.only = value;
    else
      return false;
  }
  return options.isa.empty() || find_kernels(options.isa);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    fmt::print(stderr,
               "usage: kernels_bench [--threads N] [--isa NAME] [--only decode|prefill|table|attention] [--repeats N] [--json]\n"
               "NAME is one of those usable here:");
    for (const Kernels* k : available_kernels()) fmt::print(stderr, " {}", k->name);
    fmt::print(stderr, "\n");
    return 2;
  }
  Bench bench(options);
  const auto wanted = [&](std::string_view part) { return options.only.empty() || options.only == part; };
  if (wanted("decode")) bench.decode();
  if (wanted("prefill")) bench.prefill();
  if (wanted("table")) bench.table();
  if (wanted("attention")) bench.attention();
  bench.finish();
  return 0;
}

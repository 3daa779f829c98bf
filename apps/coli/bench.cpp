// coli bench: prompt and generation speed of a model over sizes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/process.h"
#include "command.h"
#include "cpu/peaks.h"
#include "engine/session.h"
#include "interrupt.h"
#include "loaded_model.h"
#include "options.h"
#include "report.h"

namespace colibri {
namespace {

struct BenchFlags {
  EngineFlags engine;
  std::vector<std::int64_t> prompts = {1, 16, 64, 128, 512};
  std::vector<std::int64_t> depths = {16, 256, 1024};
  std::int64_t tokens = 32;
  std::int64_t repeat = 3;
  bool json = false;
};

// What the weights ask of one token: every matrix of its way read once, two operations a weight. Attention over the context
// comes on top and is not counted.
struct Work {
  double bytes = 0;
  double operations = 0;

  void add(const Matrix& m, double times = 1) {
    if (m.rows == 0) return;
    bytes += times *
             static_cast<double>(format_bytes(m.format, m.rows, m.cols) + 4 * format_scales(m.format, m.rows, m.cols, m.group));
    operations += times * 2 * static_cast<double>(m.rows) * static_cast<double>(m.cols);
  }
};

// with_head: the token's logits are computed (every generated token, only the last one of a prompt).
Work work_per_token(const Engine& engine, bool with_head) {
  Work work;
  const ModelWeights& weights = engine.weights();
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    for (const Matrix* m : {&layer.attention.q_a, &layer.attention.q_b, &layer.attention.kv_a, &layer.attention.kv_b,
                            &layer.attention.o, &layer.mlp.gate, &layer.mlp.up, &layer.mlp.down, &layer.router})
      work.add(*m);
    if (layer.attention.indexer)
      for (const Matrix* m :
           {&layer.attention.indexer->wq_b, &layer.attention.indexer->wk, &layer.attention.indexer->weights_proj})
        work.add(*m);
    if (!layer.sparse || weights.experts[i].empty()) continue;
    const ExpertRecord& expert = weights.experts[i].front();
    for (const MatrixSource* source : {&expert.gate, &expert.up, &expert.down})
      work.add(source->matrix, static_cast<double>(engine.config().experts_per_token));
  }
  if (with_head) work.add(weights.head);
  return work;
}

struct Measured {
  std::int64_t size = 0;  // prompt tokens, or the depth generation starts at
  double seconds = 0;     // of the fastest repetition
  double tokens_per_second = 0;
  double gigabytes_per_second = 0;  // 0 where it means nothing
  double gigaflops = 0;
};

class Bench {
 public:
  Bench(const BenchFlags& flags, Engine& engine) : flags_(flags), engine_(engine), session_(engine) {}

  Result<std::vector<Measured>> prompts() {
    std::vector<Measured> out;
    const Work work = work_per_token(engine_, false);
    for (const std::int64_t size : flags_.prompts) {
      if (InterruptGuard::interrupted()) break;
      double best = 0;
      for (std::int64_t i = 0; i < flags_.repeat && !InterruptGuard::interrupted(); ++i) {
        session_.truncate(0);
        COLIBRI_TRY(seconds, time([&] { return session_.prefill(ids(size), going); }));
        best = i == 0 ? seconds : std::min(best, seconds);
      }
      const double n = static_cast<double>(size);
      out.push_back({size, best, rate(size, best), 0, best > 0 ? n * work.operations / best * 1e-9 : 0});
    }
    return out;
  }

  Result<std::vector<Measured>> generation() {
    std::vector<Measured> out;
    const Work work = work_per_token(engine_, true);
    for (const std::int64_t depth : flags_.depths) {
      if (InterruptGuard::interrupted()) break;
      double best = 0;
      session_.truncate(0);
      COLIBRI_CHECK(session_.prefill(ids(depth), going));
      if (InterruptGuard::interrupted()) break;
      for (std::int64_t i = 0; i < flags_.repeat && !InterruptGuard::interrupted(); ++i) {
        session_.truncate(depth);
        const std::vector<std::int32_t> next = ids(flags_.tokens);
        COLIBRI_TRY(seconds, time([&]() -> Result<void> {
                      for (const std::int32_t id : next)
                        if (going()) COLIBRI_CHECK(session_.append(id, going));
                      return {};
                    }));
        best = i == 0 ? seconds : std::min(best, seconds);
      }
      const double speed = rate(flags_.tokens, best);
      out.push_back({depth, best, speed, speed * work.bytes * 1e-9, speed * work.operations * 1e-9});
    }
    return out;
  }

 private:
  // After an interrupt nothing more is computed and no number is printed.
  static bool going() { return !InterruptGuard::interrupted(); }

  // Tokens spread over the vocabulary, the same every time: experts are chosen as by real text, not all alike.
  std::vector<std::int32_t> ids(std::int64_t count) const {
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i < count; ++i)
      out.push_back(static_cast<std::int32_t>((i * 7919 + 13) % engine_.config().vocab_size));
    return out;
  }

  template <class Body>
  static Result<double> time(Body&& body) {
    const auto start = std::chrono::steady_clock::now();
    COLIBRI_CHECK(body());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  const BenchFlags& flags_;
  Engine& engine_;
  Session session_;
};

// What the machine can do at most, measured in this run.
struct Peaks {
  double gigabytes_per_second = 0;
  double gigaflops = 0;
};

Peaks measure_peaks(Engine& engine) {
  return {measure_read_bandwidth(engine.team()) * 1e-9, measure_fma_peak(engine.team(), engine.kernels_name()) * 1e-9};
}

nlohmann::json rows_json(const std::vector<Measured>& rows, const char* size_name, const Peaks& peaks) {
  nlohmann::json out = nlohmann::json::array();
  for (const Measured& m : rows) {
    nlohmann::json row = {{size_name, m.size}, {"seconds", m.seconds}, {"tok_s", m.tokens_per_second}, {"gflop_s", m.gigaflops}};
    row["of_peak_flops"] = m.gigaflops / peaks.gigaflops;
    if (m.gigabytes_per_second > 0) {
      row["gb_s"] = m.gigabytes_per_second;
      row["of_read_bandwidth"] = m.gigabytes_per_second / peaks.gigabytes_per_second;
    }
    out.push_back(std::move(row));
  }
  return out;
}

void print_row(const std::string& what, std::int64_t tokens, const Measured& m, const Peaks& peaks) {
  const std::string memory = m.gigabytes_per_second > 0 ? fmt::format("{:>9.2f}{:>7.0f} %", m.gigabytes_per_second,
                                                                      100 * m.gigabytes_per_second / peaks.gigabytes_per_second)
                                                        : std::string(18, ' ');
  fmt::print("{:<20}{:>8}{:>11.1f}{}{:>10.1f}{:>7.0f} %\n", what, tokens, m.tokens_per_second, memory, m.gigaflops,
             100 * m.gigaflops / peaks.gigaflops);
}

// Keeps the sizes that fit the context and says which do not. extra: positions that each needs besides.
std::vector<std::int64_t> fitting(const std::vector<std::int64_t>& sizes, std::int64_t extra, std::int64_t context,
                                  std::string_view what) {
  std::vector<std::int64_t> out;
  for (const std::int64_t size : sizes) {
    if (size + extra <= context) {
      out.push_back(size);
      continue;
    }
    print_note(fmt::format("{} {} is left out: it needs {} positions and the context holds {} (--ctx)", what, size, size + extra,
                           context));
  }
  return out;
}

int bench(BenchFlags flags) {
  auto options = flags.engine.engine_options();
  if (!options) return fail_with(options.error());
  options->usage.clear();  // a measurement neither depends on earlier runs nor counts as one
  auto opened = Engine::open(*options);
  if (!opened) return fail_with(opened.error());
  Engine& engine = **opened;
  print_notices(engine);

  flags.prompts = fitting(flags.prompts, 0, engine.context(), "--prompt");
  flags.depths = fitting(flags.depths, flags.tokens, engine.context(), "--depth");
  if (flags.prompts.empty() && flags.depths.empty())
    return fail_with({fmt::format(
        "no --prompt and no --depth fits the context of {} positions; give smaller ones or a larger --ctx", engine.context())});

  const InterruptGuard guard(SecondInterrupt::kEndsProgram);
  const Peaks peaks = measure_peaks(engine);
  Bench run(flags, engine);
  auto prompts = run.prompts();
  if (!prompts) return fail_with(prompts.error());
  auto generation = run.generation();
  if (!generation) return fail_with(generation.error());
  if (InterruptGuard::interrupted()) return kExitInterrupted;

  if (flags.json) {
    print_json({{"model", options->model.string()},
                {"cpu", cpu_model_name()},
                {"threads", engine.threads()},
                {"isa", engine.kernels_name()},
                {"load_seconds", engine.load_seconds()},
                {"peak_memory_bytes", peak_resident_bytes()},
                {"read_gb_s", peaks.gigabytes_per_second},
                {"fma_gflop_s", peaks.gigaflops},
                {"prompt", rows_json(*prompts, "tokens", peaks)},
                {"generation", rows_json(*generation, "depth", peaks)}});
    return kExitOk;
  }
  fmt::print("{}\n{}, {} threads, {}: reads {:.1f} GB/s, {:.1f} GFLOP/s at most; model loaded in {:.2f} s\n\n",
             options->model.string(), cpu_model_name(), engine.threads(), engine.kernels_name(), peaks.gigabytes_per_second,
             peaks.gigaflops, engine.load_seconds());
  fmt::print("{:<20}{:>8}{:>11}{:>9}{:>9}{:>10}{:>9}\n", "", "tokens", "tok/s", "GB/s", "of peak", "GFLOP/s", "of peak");
  for (const Measured& m : *prompts) print_row("prompt", m.size, m, peaks);
  for (const Measured& m : *generation) print_row(fmt::format("generation at {}", m.size), flags.tokens, m, peaks);
  fmt::print(
      "\nWeights only: attention over the context is not counted. A model that fits the caches can read faster than memory.\n"
      "The fastest of {} runs each; peak memory {}.\n",
      flags.repeat, human_bytes(peak_resident_bytes()));
  return kExitOk;
}

}  // namespace

Action declare_bench(CommandLine& line) {
  auto flags = std::make_shared<BenchFlags>();
  flags->engine.declare(line);
  line.option("--prompt", flags->prompts, "Prompt sizes in tokens").comma_separated().whole(1, 1 << 30).shows_default();
  line.option("--depth", flags->depths, "Positions at which generation starts")
      .comma_separated()
      .whole(1, 1 << 30)
      .shows_default();
  line.option("--tokens", flags->tokens, "Tokens to generate at each depth").whole(1, 1 << 20).shows_default();
  line.option("--repeat", flags->repeat, "Runs of each size; the fastest counts").whole(1, 1000).shows_default();
  line.flag("--json", flags->json, "One JSON object instead of text");
  return [flags] { return bench(*flags); };
}

}  // namespace colibri

// coli synth: a model of true shapes and random weights, for measuring.
#include "convert/synth.h"

#include <chrono>
#include <cstdio>
#include <memory>

#include "command.h"
#include "interrupt.h"
#include "options.h"
#include "progress_bar.h"
#include "report.h"

namespace colibri {
namespace {

struct SynthFlags {
  std::string out, like = "glm-5.2", experts = "int4-g64", layout = "packed";
  // 0: as the model that `like` names has it
  std::int64_t hidden = 0, vocab = 0, expert_count = 0, top_k = 0, expert_width = 0, width = 0, heads = 0;
  std::int64_t layers = 5, dense_layers = 1;
  bool mtp = false, no_routing = false, json = false;
  std::uint64_t seed = 1;
  double shard_gb = 4;
  SyntheticRouting routing;
  int threads = 0;
};

Result<SynthOptions> options_of(const SynthFlags& flags) {
  SynthOptions options;
  COLIBRI_TRY(shape, synth_shape(flags.like));
  const auto set = [](std::int64_t& target, std::int64_t value) {
    if (value > 0) target = value;
  };
  set(shape.hidden, flags.hidden);
  set(shape.vocab, flags.vocab);
  set(shape.experts, flags.expert_count);
  set(shape.experts_per_token, flags.top_k);
  set(shape.moe_intermediate, flags.expert_width);
  set(shape.intermediate, flags.width);
  set(shape.heads, flags.heads);
  options.shape = shape;
  options.like = flags.like;
  options.sparse_layers = flags.layers;
  options.dense_layers = flags.dense_layers;
  options.mtp = flags.mtp;
  options.seed = flags.seed;
  COLIBRI_TRY(experts, parse_target_format(flags.experts));
  options.experts = experts;
  if (flags.layout != "packed" && flags.layout != "plain") return fail("--layout {}: expected packed or plain", flags.layout);
  options.packed = flags.layout == "packed";
  options.shard_bytes = static_cast<std::uint64_t>(flags.shard_gb * 1e9);
  if (flags.no_routing)
    options.routing.reset();
  else
    options.routing = flags.routing;
  return options;
}

int synth(const SynthFlags& flags) {
  const auto options = options_of(flags);
  if (!options) {
    print_error(options.error().message);
    return kExitUsage;
  }
  const InterruptGuard guard(SecondInterrupt::kEndsProgram);
  ProgressBar bar("writing");
  WriteOptions write;
  write.threads = flags.threads;
  write.progress = [&](const WriteProgress& p) {
    bar.update(p.bytes_done, p.bytes_total);
    return !InterruptGuard::interrupted();
  };
  const auto start = std::chrono::steady_clock::now();
  const auto report = synthesize_model(flags.out, *options, write);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  bar.clear();
  if (!report) return fail_with(report.error());
  if (report->stopped) {
    print_error("stopped; the same command continues");
    return kExitInterrupted;
  }
  if (flags.json) {
    print_json({{"out", flags.out}, {"bytes", report->bytes}, {"shards", report->shards}, {"seconds", seconds}});
  } else {
    fmt::print("{}: {} in {} files, {:.1f} s, {:.2f} GB/s\n", flags.out, human_bytes(report->bytes), report->shards, seconds,
               static_cast<double>(report->bytes) / 1e9 / seconds);
  }
  return kExitOk;
}

}  // namespace

Action declare_synth(CommandLine& line) {
  auto flags = std::make_shared<SynthFlags>();
  SyntheticRouting& r = flags->routing;
  line.option("--out", flags->out, "New directory; an interrupted run there is continued").required();
  line.option("--like", flags->like, "Whose dimensions: glm-5.2 or tiny").shows_default();
  line.option("--layers", flags->layers, "Layers with routed experts").whole(1, 1000).shows_default();
  line.option("--dense-layers", flags->dense_layers, "Layers before them, without").whole(0, 100).shows_default();
  line.flag("--mtp", flags->mtp, "Add an MTP layer");
  line.option("--experts", flags->experts, "Format of the routed experts").shows_default();
  line.option("--layout", flags->layout, "packed (one record per expert) or plain (one tensor per matrix)").shows_default();
  line.option("--seed", flags->seed, "The same seed gives the same bytes").shows_default();
  line.option("--hidden", flags->hidden, "Hidden size instead of the model's").whole(1, 1 << 24);
  line.option("--vocab", flags->vocab, "Vocabulary instead of the model's").whole(1, 1 << 24);
  line.option("--heads", flags->heads, "Attention heads instead of the model's").whole(1, 1 << 24);
  line.option("--expert-count", flags->expert_count, "Experts per layer instead of the model's").whole(1, 1 << 24);
  line.option("--top-k", flags->top_k, "Experts per token instead of the model's").whole(1, 1 << 24);
  line.option("--expert-width", flags->expert_width, "Inner size of an expert instead of the model's").whole(1, 1 << 24);
  line.option("--width", flags->width, "Inner size of a dense MLP instead of the model's").whole(1, 1 << 24);
  line.flag("--no-routing", flags->no_routing, "Leave the choice of experts to the random routers instead of a routing model")
      .in_group("Routing");
  line.option("--routing-seed", r.seed, "Seed of the routing described in config.json").shows_default();
  const auto routing = [&](const char* name, double& value, const char* text, double high) {
    line.option(name, value, text).between(0, high).shows_default().in_group("Routing");
  };
  routing("--skew", r.skew, "Weight of an expert's lasting popularity", 1000);
  routing("--topic", r.topic, "Weight of the topic, which lasts and returns", 1000);
  routing("--phrase", r.phrase, "Weight of the phrase, which lasts some tokens", 1000);
  routing("--noise", r.noise, "Weight of chance", 1000);
  routing("--recall", r.recall, "Share of the next layer's experts that can be predicted", 1);
  line.option("--shard-gb", flags->shard_gb, "Largest file, GB").between(0.001, 1000).shows_default();
  line.option("--threads", flags->threads, "Threads; 0 for every CPU this process may use").whole(0, 256);
  line.flag("--json", flags->json, "One JSON object instead of text");
  return [flags] { return synth(*flags); };
}

}  // namespace colibri

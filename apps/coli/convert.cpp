// coli convert: makes a model directory from another one.
#include "convert/convert.h"

#include <cstdio>
#include <memory>

#include "command.h"
#include "interrupt.h"
#include "options.h"
#include "progress_bar.h"
#include "report.h"

namespace colibri {
namespace {

struct ConvertFlags {
  std::string source, destination;
  std::string experts, mtp_experts, dense, io, layout = "packed";
  bool pack = false, no_mtp = false, json = false;
  double shard_gb = 4;
  int threads = 0;
};

Result<ConvertOptions> options_of(const ConvertFlags& flags) {
  ConvertOptions options;
  for (const auto& [text, target] : {std::pair{&flags.experts, &options.experts},
                                     {&flags.mtp_experts, &options.mtp_experts},
                                     {&flags.dense, &options.dense},
                                     {&flags.io, &options.io}}) {
    if (text->empty()) continue;
    COLIBRI_TRY(format, parse_target_format(*text));
    *target = format;
  }
  if (flags.layout != "packed" && flags.layout != "plain") return fail("--layout {}: expected packed or plain", flags.layout);
  options.packed = flags.layout == "packed";
  options.keep_weights = flags.pack;
  options.mtp = !flags.no_mtp;
  options.shard_bytes = static_cast<std::uint64_t>(flags.shard_gb * 1e9);
  return options;
}

void print_text(const ConvertReport& report, const std::string& destination) {
  fmt::print("{:<22}{:<22}{}\n", "part", "format", "error (relative RMS)");
  for (int c = 0; c < kTensorClassCount; ++c) {
    const auto i = static_cast<std::size_t>(c);
    if (report.formats[i].empty()) continue;
    const QuantizationError& e = report.written.errors[i];
    fmt::print("{:<22}{:<22}{}\n", class_name(static_cast<TensorClass>(c)), report.formats[i],
               e.weight_squares > 0 ? fmt::format("{:.3e}", e.relative_rms()) : "as it was");
  }
  fmt::print("{}: {} in {} files{}\n", destination, human_bytes(report.written.bytes), report.written.shards,
             report.written.shards_kept > 0 ? fmt::format(", {} of them from an earlier run", report.written.shards_kept) : "");
}

void print_as_json(const ConvertReport& report, const std::string& destination) {
  nlohmann::json parts = nlohmann::json::array();
  for (int c = 0; c < kTensorClassCount; ++c) {
    const auto i = static_cast<std::size_t>(c);
    if (!report.formats[i].empty())
      parts.push_back({{"part", class_name(static_cast<TensorClass>(c))},
                       {"format", report.formats[i]},
                       {"relative_rms", report.written.errors[i].relative_rms()}});
  }
  print_json({{"destination", destination},
              {"bytes", report.written.bytes},
              {"shards", report.written.shards},
              {"shards_kept", report.written.shards_kept},
              {"notices", report.notices},
              {"parts", parts}});
}

int convert(const ConvertFlags& flags) {
  const auto options = options_of(flags);
  if (!options) {
    print_error(options.error().message);
    return kExitUsage;
  }
  const InterruptGuard guard(SecondInterrupt::kEndsProgram);
  ProgressBar bar("converting");
  WriteOptions write;
  write.threads = flags.threads;
  write.progress = [&](const WriteProgress& p) {
    bar.update(p.bytes_done, p.bytes_total);
    return !InterruptGuard::interrupted();
  };
  const auto report = convert_model(flags.source, flags.destination, *options, write);
  bar.clear();
  if (!report) return fail_with(report.error());
  if (report->written.stopped) {
    print_error("stopped; the same command continues");
    return kExitInterrupted;
  }
  if (flags.json) {
    print_as_json(*report, flags.destination);
  } else {
    for (const std::string& notice : report->notices) fmt::print(stderr, "coli: note: {}\n", one_line(notice));
    print_text(*report, flags.destination);
  }
  return kExitOk;
}

}  // namespace

Action declare_convert(CommandLine& line) {
  auto flags = std::make_shared<ConvertFlags>();
  line.option("SRC", flags->source, "Model directory: Hugging Face safetensors or a colibri container").required();
  line.option("DST", flags->destination, "New directory; an interrupted conversion there is continued").required();
  const std::string formats = ": int8, int4, int4-g64, int3-g64, int2, bf16 or f32";
  line.option("--experts", flags->experts, "Routed experts" + formats + "; default int4-g64, integers stay");
  line.option("--mtp-experts", flags->mtp_experts, "Routed experts of the MTP layer; default int8, integers stay");
  line.option("--dense", flags->dense, "Attention, dense MLP and shared experts; default int8, integers stay");
  line.option("--io", flags->io, "Embedding and head; default int8, integers stay");
  line.flag("--pack", flags->pack, "Keep all weights as they are, only lay them out anew");
  line.option("--layout", flags->layout, "packed (one record per expert) or plain (one tensor per matrix)").shows_default();
  line.flag("--no-mtp", flags->no_mtp, "Leave the MTP layer out");
  line.option("--shard-gb", flags->shard_gb, "Largest file, GB").between(0.001, 1000).shows_default();
  line.option("--threads", flags->threads, "Threads; 0 for every CPU this process may use").whole(0, 256);
  line.flag("--json", flags->json, "One JSON object instead of text");
  return [flags] { return convert(*flags); };
}

}  // namespace colibri

// coli verify: checks that a model directory is whole.
#include "convert/verify.h"

#include <cstdio>
#include <memory>

#include "command.h"
#include "interrupt.h"
#include "locate.h"
#include "options.h"
#include "progress_bar.h"
#include "report.h"

namespace colibri {
namespace {

struct VerifyFlags {
  std::string dir;
  int threads = 0;
  bool json = false;
};

int verify(const VerifyFlags& flags) {
  const auto dir = find_model(flags.dir);
  if (!dir) return fail_with(dir.error());
  const InterruptGuard guard(SecondInterrupt::kEndsProgram);
  ProgressBar bar("verifying");
  VerifyOptions options;
  options.threads = flags.threads;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    bar.update(done, total);
    return !InterruptGuard::interrupted();
  };
  const auto report = verify_model(*dir, options);
  bar.clear();
  if (!report) return fail_with(report.error());
  const bool good = report->problems.empty() && !report->stopped;
  if (flags.json) {
    print_json({{"dir", dir->string()},
                {"whole", good},
                {"shards", report->shards},
                {"tensors", report->tensors},
                {"records", report->records},
                {"arrays", report->arrays},
                {"bytes_read", report->bytes},
                {"problems", report->problems},
                {"notices", report->notices}});
  } else {
    for (const std::string& notice : report->notices) fmt::print("note: {}\n", one_line(notice));
    for (const std::string& problem : report->problems) fmt::print("problem: {}\n", one_line(problem));
    fmt::print("{}: {} files, {} tensors; {} records compared with their checksums, {} arrays looked through, {} read\n",
               dir->string(), report->shards, with_commas(static_cast<std::int64_t>(report->tensors)),
               with_commas(static_cast<std::int64_t>(report->records)), with_commas(static_cast<std::int64_t>(report->arrays)),
               human_bytes(report->bytes));
    if (!report->stopped) fmt::print("{}\n", good ? "whole" : fmt::format("NOT WHOLE: {} problems", report->problems.size()));
  }
  if (report->stopped) {
    print_error("stopped before everything was checked");
    return kExitInterrupted;
  }
  return good ? kExitOk : kExitFailed;
}

}  // namespace

Action declare_verify(CommandLine& line) {
  auto flags = std::make_shared<VerifyFlags>();
  line.option("DIR", flags->dir, "Model directory; default: the demo model").from_environment("COLI_MODEL");
  line.option("--threads", flags->threads, "Threads; 0 for every CPU this process may use").whole(0, 256);
  line.flag("--json", flags->json, "One JSON object instead of text");
  return [flags] { return verify(*flags); };
}

}  // namespace colibri

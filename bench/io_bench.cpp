// How fast the record reader reads. Without arguments: a table over the ways of reading on a scratch file beside
// the program, deleted afterwards. With arguments: one way on a given file, for bench/io_fio.sh.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"
#include "experts/disk_probe.h"
#include "experts/disk_probe_cache.h"
#include "experts/record_reader.h"
#include "experts/slab_arena.h"

namespace colibri {
namespace {

struct Run {
  std::filesystem::path file;
  std::uint64_t record = 21'233'664;  // one expert of GLM-5.2 as int4-g64
  std::uint64_t phase = 0;            // of the records in the file; unaligned ones need copies when read directly
  int outstanding = 8;                // records submitted at a time
  double seconds = 5;
  ReaderOptions options;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Bytes per second over records in random order, none read twice before all were read.
Result<double> measure(const Run& run) {
  const int fd = ::open(run.file.c_str(), O_RDONLY);
  struct stat info = {};
  if (fd < 0 || ::fstat(fd, &info) != 0) return fail("{}: cannot be opened", run.file.string());
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  ::fsync(fd);
  drop_cached(fd, 0, file_bytes);
  const std::uint64_t distance = round_up(run.record + run.phase, kDirectAlignment);
  const std::uint64_t count = file_bytes / distance;
  if (count == 0) return fail("{}: shorter than one record", run.file.string());

  const std::filesystem::path files[] = {run.file};
  COLIBRI_TRY(reader, RecordReader::open(files, run.options));
  if (!reader->notice().empty()) fmt::print("({})\n", reader->notice());
  std::vector<ReadPlan> plans;
  for (std::uint64_t i = 0; i < count; ++i) plans.push_back(plan_bytes({0, i * distance + run.phase, run.record}));
  std::mt19937 random(1);
  std::shuffle(plans.begin(), plans.end(), random);
  const std::uint64_t slot_bytes = plans[0].slot_bytes;
  const auto slots = static_cast<std::uint64_t>(run.outstanding);
  COLIBRI_TRY(plan, plan_slabs(round_up(slots * slot_bytes, kSlabAlignment), slot_bytes, slots, std::uint64_t{1} << 40));
  ThreadTeam team(1);
  COLIBRI_TRY(memory, SlabArena::allocate(plan, &team));

  std::vector<ReadTicket> tickets(static_cast<std::size_t>(run.outstanding));
  std::size_t next = 0;
  std::uint64_t bytes = 0;
  const double start = now();
  const auto submit = [&](std::size_t slot) {
    if (!run.options.direct && next > 0 && next % plans.size() == 0) drop_cached(fd, 0, file_bytes);
    tickets[slot] = reader->submit(plans[next++ % plans.size()], memory.slot(slot), ReadPriority::kDemand);
  };
  for (std::size_t slot = 0; slot < tickets.size(); ++slot) submit(slot);
  std::vector<ReadCompletion> completed;
  while (reader->wait_any(completed) > 0) {
    for (const ReadCompletion& completion : completed) {
      if (!completion.result) return pass(completion.result.error());
      bytes += run.record;
      for (std::size_t slot = 0; slot < tickets.size(); ++slot)
        if (tickets[slot] == completion.ticket && now() - start < run.seconds) {
          submit(slot);
          break;
        }
    }
    completed.clear();
  }
  const double took = now() - start;
  drop_cached(fd, 0, file_bytes);
  ::close(fd);
  return static_cast<double>(bytes) / took;
}

bool write_scratch(const std::filesystem::path& path, std::uint64_t bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0) return false;
  std::vector<std::uint64_t> block((std::size_t{4} << 20) / 8);
  std::mt19937_64 random(2);
  for (auto& word : block) word = random();
  bool good = true;
  for (std::uint64_t at = 0; good && at < bytes; at += block.size() * 8) {
    block[0] = at;  // no two blocks alike
    good = ::write(fd, block.data(), block.size() * 8) == static_cast<ssize_t>(block.size() * 8);
  }
  good = ::fsync(fd) == 0 && good;
  ::close(fd);
  return good;
}

int table(const std::filesystem::path& folder) {
  const std::filesystem::path scratch = folder / "io_bench.scratch";
  constexpr std::uint64_t kBytes = std::uint64_t{2} << 30;
  int result = 0;
  if (!write_scratch(scratch, kBytes)) {
    fmt::print(stderr, "io_bench: {} cannot be written here\n", scratch.string());
    result = 1;
  } else {
    fmt::print("records of 21.2 MB, GB/s; 'copied': records that start 72 bytes past a block\n{:>9} {:>9} {:>9} {:>9} {:>9}\n",
               "backend", "mode", "in flight", "aligned", "copied");
    for (const ReadBackend backend : {ReadBackend::kThreads, ReadBackend::kRing})
      for (const bool direct : {true, false})
        for (const int in_flight : {1, 4, 8}) {
          std::string line = fmt::format("{:>9} {:>9} {:>9}", backend_name(backend), direct ? "direct" : "buffered", in_flight);
          for (const std::uint64_t phase : {0, 72}) {
            Run run;
            run.file = scratch;
            run.phase = phase;
            run.seconds = 2;
            run.options = {backend, direct, in_flight, run.options.piece_bytes};
            const auto speed = measure(run);
            line += speed ? fmt::format(" {:>9.3f}", *speed / 1e9) : " (" + speed.error().message + ")";
          }
          fmt::print("{}\n", line);
        }
    const std::filesystem::path files[] = {scratch};
    const double start = now();
    const DiskChoice choice = disk_choice(measure_disk(files, {}), {});
    fmt::print("start-up probe: {} {} {} in flight, {:.3f} GB/s, took {:.2f} s\n", backend_name(choice.options.backend),
               choice.options.direct ? "direct" : "buffered", choice.options.in_flight, choice.bytes_per_second / 1e9,
               now() - start);
  }
  std::error_code ignored;
  std::filesystem::remove(scratch, ignored);
  return result;
}

std::optional<Run> parse(int argc, char** argv) {
  Run run;
  run.file = argv[1];
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i], value = argv[i + 1];
    const std::uint64_t number = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--record")
      run.record = number;
    else if (flag == "--phase")
      run.phase = number;
    else if (flag == "--outstanding")
      run.outstanding = static_cast<int>(number);
    else if (flag == "--in-flight")
      run.options.in_flight = static_cast<int>(number);
    else if (flag == "--piece")
      run.options.piece_bytes = number;
    else if (flag == "--seconds")
      run.seconds = static_cast<double>(number);
    else if (flag == "--mode")
      run.options.direct = value == "direct";
    else if (flag == "--backend")
      run.options.backend = value == "io_uring" ? ReadBackend::kRing : ReadBackend::kThreads;
    else
      return std::nullopt;
  }
  const bool good = argc % 2 == 0 && run.record > 0 && run.outstanding > 0 && run.options.in_flight <= 64 &&
                    run.options.piece_bytes > 0 && run.options.piece_bytes % kDirectAlignment == 0;
  return good ? std::optional(run) : std::nullopt;
}

}  // namespace
}  // namespace colibri

int main(int argc, char** argv) {
  if (argc == 1) return colibri::table(std::filesystem::path(argv[0]).parent_path());
  const auto run = colibri::parse(argc, argv);
  if (!run) {
    fmt::print(
        stderr,
        "usage: io_bench [FILE [--record BYTES] [--phase BYTES] [--outstanding RECORDS] [--in-flight READS] [--piece BYTES]\n"
        "                      [--seconds S] [--mode direct|buffered] [--backend threads|io_uring]]\n");
    return 2;
  }
  const auto speed = colibri::measure(*run);
  if (!speed) {
    fmt::print(stderr, "io_bench: {}\n", speed.error().message);
    return 1;
  }
  fmt::print("{:.4f}\n", *speed / 1e9);
  return 0;
}

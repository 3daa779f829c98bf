#include "experts/disk_probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <locale>
#include <random>
#include <set>
#include <sstream>

#ifdef __linux__
#include <sys/sysmacros.h>
#endif

#include "base/aligned.h"
#include "experts/disk_probe_cache.h"
#include "experts/slab_arena.h"
#include "format/file.h"

namespace colibri {
namespace {

constexpr std::uint64_t kExtent = std::uint64_t{4} << 20;  // read as one record, in two pieces
constexpr std::size_t kWindow = 6;                         // records outstanding: enough for 8 pieces in flight and one more
constexpr int kDefaultInFlight = 4;
constexpr const char* kMemoryName = ".coli_ssd";

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The ways that are tried, the most telling first: a slow disk may not get to the last.
std::vector<DiskSample> ways() {
  std::vector<DiskSample> all;
  for (const int in_flight : {4, 8, 1})
    for (const bool direct : {true, false}) all.push_back({ReadBackend::kThreads, direct, in_flight, 0});
#ifdef __linux__
  all.insert(all.begin() + 2, DiskSample{ReadBackend::kRing, true, 8, 0});
#endif
  return all;
}

class Prober {
 public:
  Prober(std::span<const std::filesystem::path> files, const ProbeLimits& limits, SlabArena arena)
      : files_(files), limits_(limits), arena_(std::move(arena)) {
    for (std::size_t i = 0; i < files.size(); ++i) {
      const int fd = ::open(files[i].c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
      fds_.push_back(fd);
      struct stat info = {};
      if (fd < 0 || ::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) continue;
      const auto bytes = static_cast<std::uint64_t>(info.st_size);
      for (std::uint64_t at = 0; at + 2 * kExtent <= bytes; at += kExtent)
        extents_.push_back({static_cast<std::int32_t>(i), at + limits.offset_phase % kDirectAlignment, kExtent});
    }
    std::shuffle(extents_.begin(), extents_.end(), std::mt19937(std::random_device{}()));
  }
  ~Prober() {
    for (const int fd : fds_)
      if (fd >= 0) ::close(fd);
  }
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  std::vector<DiskSample> run() {
    const double start = now();
    const std::vector<DiskSample> all = ways();
    std::vector<DiskSample> samples;
    for (const DiskSample& way : all) {
      if (now() - start >= limits_.seconds) break;
      DiskSample sample = way;
      if (measure(sample, limits_.seconds / static_cast<double>(all.size()), limits_.bytes / all.size()))
        samples.push_back(sample);
    }
    return samples;
  }

 private:
  // The next stretch of file that is not cached at all.
  std::optional<FileRange> next_extent() {
    while (!extents_.empty()) {
      const FileRange extent = extents_.back();
      extents_.pop_back();
      if (cached_bytes(fds_[static_cast<std::size_t>(extent.shard)], extent.offset, extent.bytes) == 0u) return extent;
    }
    return std::nullopt;
  }

  bool measure(DiskSample& sample, double seconds, std::uint64_t bytes) {
    ReaderOptions options;
    options.backend = sample.backend;
    options.direct = sample.direct;
    options.in_flight = sample.in_flight;
    auto opened = RecordReader::open(files_, options);
    // What the system refuses is measured under its own name.
    if (!opened || (*opened)->options().backend != sample.backend || (*opened)->options().direct != sample.direct) return false;
    RecordReader& reader = **opened;

    ReadPlan plans[kWindow];
    ReadTicket tickets[kWindow];
    std::vector<FileRange> used;
    std::uint64_t asked = 0, arrived = 0;
    const double start = now();
    const auto submit = [&](std::size_t slot) {
      if (asked >= bytes || (asked > 0 && now() - start >= seconds)) return;
      const std::optional<FileRange> extent = next_extent();
      if (!extent) return;
      used.push_back(*extent);
      plans[slot] = plan_bytes(*extent);
      tickets[slot] = reader.submit(plans[slot], arena_.slot(slot), ReadPriority::kDemand);
      asked += extent->bytes;
    };
    for (std::size_t slot = 0; slot < kWindow; ++slot) submit(slot);
    std::vector<ReadCompletion> completed;
    bool good = true;
    while (reader.wait_any(completed) > 0) {
      for (const ReadCompletion& completion : completed) {
        good = good && completion.result.has_value();
        arrived += kExtent;
        for (std::size_t slot = 0; slot < kWindow; ++slot)
          if (tickets[slot] == completion.ticket) {
            submit(slot);
            break;
          }
      }
      completed.clear();
    }
    const double took = now() - start;
    if (!sample.direct)
      for (const FileRange& extent : used) drop_cached(fds_[static_cast<std::size_t>(extent.shard)], extent.offset, extent.bytes);
    // Fewer bytes than this come from the disk's own buffers or were over before anything was in flight.
    if (!good || arrived < kWindow / 2 * kExtent) return false;
    sample.bytes_per_second = static_cast<double>(arrived) / took;
    return true;
  }

  std::span<const std::filesystem::path> files_;
  ProbeLimits limits_;
  SlabArena arena_;
  std::vector<int> fds_;  // for questions about the cache; -1 where a file cannot be opened
  std::vector<FileRange> extents_;
};

bool fits(const DiskSample& sample, const DiskWishes& wishes) {
  return (!wishes.direct || *wishes.direct == sample.direct) && (!wishes.backend || *wishes.backend == sample.backend) &&
         (!wishes.in_flight || *wishes.in_flight == sample.in_flight);
}

}  // namespace

std::vector<DiskSample> measure_disk(std::span<const std::filesystem::path> files, const ProbeLimits& limits) {
  // Memory like that of the model's own slots, and really there: page faults are not the disk's.
  const std::uint64_t slot_bytes = kExtent + 2 * kDirectAlignment;
  const std::uint64_t bytes = round_up(kWindow * slot_bytes, kSlabAlignment);
  const auto plan = plan_slabs(bytes, slot_bytes, kWindow, bytes);
  if (!plan) return {};
  ThreadTeam team(1);
  auto arena = SlabArena::allocate(*plan, &team);
  if (!arena) return {};
  return Prober(files, limits, std::move(*arena)).run();
}

const DiskSample* best_sample(std::span<const DiskSample> samples, const DiskWishes& wishes) {
  double fastest = 0;
  for (const DiskSample& sample : samples)
    if (fits(sample, wishes)) fastest = std::max(fastest, sample.bytes_per_second);
  const DiskSample* best = nullptr;
  for (const DiskSample& sample : samples) {
    if (!fits(sample, wishes) || sample.bytes_per_second < 0.95 * fastest) continue;
    if (!best || (sample.direct && !best->direct) || (sample.direct == best->direct && sample.in_flight < best->in_flight))
      best = &sample;
  }
  return best;
}

DiskChoice disk_choice(std::span<const DiskSample> samples, const DiskWishes& wishes) {
  DiskChoice choice;
  choice.source = "default";
  choice.options.in_flight = kDefaultInFlight;
  // A wish that was never measured as such gets its nearest relative: the depth matters least for the way of reading.
  DiskWishes relaxed = wishes;
  const DiskSample* best = best_sample(samples, relaxed);
  if (!best) relaxed.in_flight.reset(), best = best_sample(samples, relaxed);
  if (!best) relaxed.backend.reset(), best = best_sample(samples, relaxed);
  if (best) {
    choice.source = "measured";
    choice.options.backend = best->backend;
    choice.options.direct = best->direct;
    choice.options.in_flight = best->in_flight;
    choice.bytes_per_second = best->bytes_per_second;
  }
  if (wishes.direct) choice.options.direct = *wishes.direct;
  if (wishes.in_flight) choice.options.in_flight = *wishes.in_flight;
  if (wishes.backend) choice.options.backend = *wishes.backend;
  return choice;
}

DiskMemory parse_disk_memory(std::string_view text) {
  DiskMemory memory;
  std::vector<DiskSample>* device = nullptr;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    words.imbue(std::locale::classic());
    std::string first, mode, unit;
    words >> first;
    if (first == "device") {
      std::string name;
      device = words >> name ? &memory[name] : nullptr;
      continue;
    }
    DiskSample sample;
    double gigabytes = 0;
    if (!device || !(words >> mode >> sample.in_flight >> gigabytes >> unit) || unit != "GB/s") continue;
    const bool known = (first == backend_name(ReadBackend::kThreads) || first == backend_name(ReadBackend::kRing)) &&
                       (mode == "direct" || mode == "buffered");
    if (!known || sample.in_flight < 1 || sample.in_flight > 64 || !(gigabytes > 0 && gigabytes < 1000)) continue;
    sample.backend = first == backend_name(ReadBackend::kRing) ? ReadBackend::kRing : ReadBackend::kThreads;
    sample.direct = mode == "direct";
    sample.bytes_per_second = gigabytes * 1e9;
    device->push_back(sample);
  }
  std::erase_if(memory, [](const auto& entry) { return entry.second.empty(); });
  return memory;
}

std::string disk_memory_text(const DiskMemory& memory) {
  std::string text = "# How fast the disks of this model read, measured by coli. Delete this file to measure again.\n";
  for (const auto& [device, samples] : memory) {
    text += fmt::format("device {}\n", device);
    for (const DiskSample& s : samples)
      text += fmt::format("{} {} {} {:.3f} GB/s\n", backend_name(s.backend), s.direct ? "direct" : "buffered", s.in_flight,
                          s.bytes_per_second / 1e9);
  }
  return text;
}

std::string device_of(std::span<const std::filesystem::path> files) {
  std::set<std::string> names;
  for (const auto& path : files) {
    struct stat info = {};
    if (::stat(path.c_str(), &info) == 0) names.insert(fmt::format("{}:{}", major(info.st_dev), minor(info.st_dev)));
  }
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : "+") + name;
  return all;
}

DiskChoice choose_disk_mode(const std::filesystem::path& dir, std::span<const std::filesystem::path> files,
                            const DiskWishes& wishes, const ProbeLimits& limits) {
  constexpr std::uint64_t kLongestMemory = 1u << 20;
  const std::filesystem::path path = dir / kMemoryName;
  const auto text = read_text(path, kLongestMemory);
  DiskMemory memory = parse_disk_memory(text ? std::string_view(*text) : std::string_view());
  const std::string device = device_of(files);
  if (const auto known = memory.find(device); known != memory.end()) {
    DiskChoice choice = disk_choice(known->second, wishes);
    if (choice.source == "measured") choice.source = "remembered";
    return choice;
  }
  std::vector<DiskSample> samples = measure_disk(files, limits);
  DiskChoice choice = disk_choice(samples, wishes);
  if (samples.empty()) return choice;
  memory[device] = std::move(samples);
  const std::string out = disk_memory_text(memory);
  const std::span<const std::byte> part = std::as_bytes(std::span(out));
  if (const auto written = write_atomically(path, {&part, 1}); !written)
    choice.notice = fmt::format("the disk's speed is measured again at every start: {}", written.error().message);
  return choice;
}

}  // namespace colibri

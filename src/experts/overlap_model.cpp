#include "experts/overlap_model.h"

#include <algorithm>
#include <cassert>
#include <deque>

namespace colibri {
namespace {

// A predicted expert on its way into memory.
struct Ahead {
  std::int32_t expert = 0;
  double left = 0;  // nanoseconds of reading still to do
};

class OverlapModel {
 public:
  OverlapModel(const Trace& trace, CacheDirectory& directory, const OverlapOptions& options)
      : trace_(trace),
        directory_(directory),
        options_(options),
        read_ns_(static_cast<double>(trace.model.expert_bytes) / options.disk_bytes_per_second * 1e9) {
    assert(options.disk_bytes_per_second > 0);
  }

  OverlapResult run() {
    std::int64_t decoded = 0;
    OverlapTimes ignored;
    for (const TraceStep& step : trace_.steps) {
      const bool counted = decoded >= options_.skip;
      decoded += step.phase == StepPhase::kDecode;
      run_step(step, counted ? result_.of(step.phase) : ignored);
    }
    return result_;
  }

 private:
  void run_step(const TraceStep& step, OverlapTimes& times) {
    directory_.begin_step(step.phase, step.rows);
    ahead_.clear();
    ++times.steps;
    double now = 0, disk_free = 0;
    for (std::size_t i = 0; i < step.accesses.size(); ++i) {
      const LayerAccess& access = step.accesses[i];
      now += static_cast<double>(access.before_ns);
      times.compute += static_cast<double>(access.before_ns);
      times.disk += read_ahead(now - disk_free);
      const std::size_t resident = find_demand(access, times);

      // The processor has the shared part and the experts in memory to do; the others arrive one after the other.
      const auto expert_ns = static_cast<double>(access.expert_ns);
      const double work = static_cast<double>(access.shared_ns) + expert_ns * static_cast<double>(access.needed.size());
      double arrived = now, done = now + static_cast<double>(access.shared_ns) + expert_ns * static_cast<double>(resident);
      for (const double reading : demand_) {
        arrived += reading;
        done = std::max(done, arrived) + expert_ns;
      }
      times.compute += work;
      times.disk += arrived - now;
      times.waiting += done - now - work;
      now = done;
      disk_free = arrived;
      place(access, i + 1 < step.accesses.size() ? &step.accesses[i + 1] : nullptr);
    }
    now += static_cast<double>(step.tail_ns);
    times.compute += static_cast<double>(step.tail_ns);
    times.wall += now;
  }

  // Spends up to `available` nanoseconds of the disk on predictions; returns what was spent.
  double read_ahead(double available) {
    double spent = 0;
    for (Ahead& a : ahead_) {
      const double part = std::min(a.left, std::max(available - spent, 0.0));
      a.left -= part;
      spent += part;
    }
    return spent;
  }

  // Fills demand_ with the reading time of every needed expert that is not in memory, in the order of reading; returns
  // how many are in memory.
  std::size_t find_demand(const LayerAccess& access, OverlapTimes& times) {
    directory_.request(access.layer, access.needed, access.rows, slots_);
    times.needed += access.needed.size();
    demand_.clear();
    std::size_t resident = 0, missing = 0;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i] == CacheDirectory::kNone) {
        ++missing;
        continue;
      }
      const auto a = std::find_if(ahead_.begin(), ahead_.end(), [&](const Ahead& x) { return x.expert == access.needed[i]; });
      if (a == ahead_.end()) {
        ++times.in_memory;
      } else if (a->left <= 0) {
        ++times.read_ahead;
      }
      resident += a == ahead_.end() || a->left <= 0;
    }
    for (const Ahead& a : ahead_) {
      const bool needed = std::find(access.needed.begin(), access.needed.end(), a.expert) != access.needed.end();
      if (needed && a.left > 0) {
        times.begun_ahead += a.left < read_ns_;
        demand_.push_back(a.left);
      } else if (!needed && a.left > 0) {
        directory_.drop(access.layer, a.expert);
      } else if (!needed) {
        ++times.wrong;
      }
    }
    ahead_.clear();
    demand_.insert(demand_.end(), missing, read_ns_);
    return resident;
  }

  // Gives slots to what the layer missed and then to predictions for the next.
  void place(const LayerAccess& access, const LayerAccess* next) {
    std::deque<std::int32_t> held;
    for (std::size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i] != CacheDirectory::kNone) held.push_back(access.needed[i]);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i] != CacheDirectory::kNone) continue;
      while (!directory_.place(access.layer, access.needed[i])) {
        directory_.release(access.layer, held.front());
        held.pop_front();
      }
      held.push_back(access.needed[i]);
    }
    if (next != nullptr && options_.predictions)
      for (const std::int32_t expert : next->predicted)
        if (directory_.place_predicted(next->layer, expert)) ahead_.push_back({expert, read_ns_});
    for (const std::int32_t expert : held) directory_.release(access.layer, expert);
  }

  const Trace& trace_;
  CacheDirectory& directory_;
  const OverlapOptions& options_;
  double read_ns_;  // of one expert
  std::vector<Ahead> ahead_;
  std::vector<std::int32_t> slots_;
  std::vector<double> demand_;
  OverlapResult result_;
};

}  // namespace

OverlapResult model_overlap(const Trace& trace, CacheDirectory& directory, const OverlapOptions& options) {
  return OverlapModel(trace, directory, options).run();
}

}  // namespace colibri

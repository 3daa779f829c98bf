#include "selftest/measurements.h"

#include <algorithm>
#include <chrono>

#include "base/aligned.h"
#include "gpu/kernels/probe.h"
#include "gpu/products.h"
#include "gpu/rowwise.h"

namespace colibri::selftest {
namespace {

using gpu::Encoder;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Starting work. The dispatches write different numbers, so that without barriers they may run side by side.
class Starts {
 public:
  explicit Starts(Workbench& bench) : bench_(bench), n_(bench.small() ? 20 : 200) {
    bench.clear();
    in_ = bench.floats(n_);
    out_ = bench.take<float>(n_);
  }
  std::int64_t repeats() const { return n_; }

  // One command buffer; the wall clock from before it is begun until its end is known.
  Result<double> one(std::int64_t dispatches, bool barriers) {
    std::vector<double> seconds;
    for (std::int64_t i = 0; i < (dispatches == 1 ? n_ : 7); ++i) {
      const double start = now();
      COLIBRI_CHECK(bench_.run([&](Encoder& e) { encode(e, dispatches, barriers); }));
      seconds.push_back(now() - start);
    }
    return median(std::move(seconds));
  }
  // Command buffers of one dispatch each, handed over one after the other.
  Result<double> many() {
    std::vector<double> seconds;
    for (int i = 0; i < 7; ++i) {
      const double start = now();
      std::vector<gpu::Submission> submitted;
      gpu::EncoderCounts counts;
      for (std::int64_t k = 0; k < n_; ++k) {
        Encoder encoder(bench_.kernels(), counts);
        encode(encoder, 1, false);
        COLIBRI_TRY(one, encoder.commit());
        submitted.push_back(std::move(one));
      }
      for (gpu::Submission& one : submitted)
        if (const gpu::Completion& end = one.wait(); end.fault != gpu::Fault::kNone)
          return fail("{}: {}", gpu::fault_name(end.fault), end.message);
      seconds.push_back(now() - start);
    }
    return median(std::move(seconds));
  }

 private:
  void encode(Encoder& e, std::int64_t dispatches, bool barriers) {
    for (std::int64_t i = 0; i < dispatches; ++i) {
      const auto at = static_cast<gpu::Address>(4 * i);
      gpu::add(e, bench_.at(in_) + at, bench_.at(in_) + at, bench_.at(out_) + at, 1, 0, 0);
      if (barriers) e.barrier();
    }
  }
  Workbench& bench_;
  std::int64_t n_;
  std::span<float> in_, out_;
};

Result<void> measure_starts(Workbench& bench, Measurements& m) {
  Starts starts(bench);
  const auto more = static_cast<double>(starts.repeats() - 1);
  COLIBRI_TRY(one, starts.one(1, false));
  COLIBRI_TRY(buffers, starts.many());
  COLIBRI_TRY(dispatches, starts.one(starts.repeats(), false));
  COLIBRI_TRY(barriers, starts.one(starts.repeats(), true));
  m.repeats = starts.repeats();
  m.submit_seconds = one;
  m.command_buffer_seconds = std::max(0.0, buffers - one) / more;
  m.dispatch_seconds = std::max(0.0, dispatches - one) / more;
  m.barrier_seconds = std::max(0.0, barriers - dispatches) / more;
  return {};
}

// The best of several runs, by the device's clock.
Result<double> best_bytes_per_second(Workbench& bench, std::uint64_t bytes, const std::function<void(Encoder&)>& encode) {
  double best = 0;
  for (int i = 0; i < (bench.small() ? 2 : 7); ++i) {
    COLIBRI_TRY(end, bench.run(encode));
    if (end.gpu_seconds > 0) best = std::max(best, static_cast<double>(bytes) / end.gpu_seconds);
  }
  return best;
}

}  // namespace

Result<Measurements> measure(Workbench& bench) {
  Measurements m;
  COLIBRI_CHECK(measure_starts(bench, m));

  // A block that no cache holds. Every page is written, so that each has memory of its own.
  bench.clear();
  const std::uint64_t bytes = bench.small() ? std::uint64_t{1} << 20 : std::uint64_t{384} << 20;
  const auto block = bench.take<std::byte>(static_cast<std::int64_t>(bytes));
  std::fill(block.begin(), block.end(), std::byte{0x11});
  const std::int64_t threads = bench.small() ? 1024 : 65536;
  const auto sums = bench.take<std::uint32_t>(threads);
  gpu::ProbeArgs args{};
  args.data = bench.at(block);
  args.out = bench.at(sums);
  args.words = bytes / 4;
  args.threads = static_cast<std::uint32_t>(threads);
  m.read_bytes = bytes;
  COLIBRI_TRY(read, best_bytes_per_second(bench, bytes,
                                          [&](Encoder& e) { e.dispatch({"probe", "probe_read"}, args, {threads / 256}, 256); }));
  m.read_bytes_per_second = read;

  // The block as one matrix as wide as GLM-5.2's hidden state, of as many rows as fit with their scales.
  const std::int64_t cols = 6144;
  const auto x = bench.floats(cols);
  for (int f = 0; f < kWeightFormatCount; ++f) {
    const auto format = static_cast<WeightFormat>(f);
    Matrix w;
    w.format = format;
    w.group = format == WeightFormat::kInt4Grouped || format == WeightFormat::kInt3G64 ? 64
              : format == WeightFormat::kF8Block128                                    ? 128
                                                                                       : 0;
    w.cols = cols;
    w.row_bytes = format_row_bytes(format, cols);
    w.scale_stride = format_row_scales(format, cols, w.group);
    // Scales of a row of their own, even where rows share them, leave room for all.
    w.rows = (static_cast<std::int64_t>(bytes) - 64) / (w.row_bytes + 4 * w.scale_stride);
    w.data = block.data();
    const std::int64_t weight_bytes = format_bytes(format, w.rows, cols),
                       scale_count = format_scales(format, w.rows, cols, w.group);
    if (scale_count > 0)
      w.scales = reinterpret_cast<const float*>(block.data() + round_up(static_cast<std::uint64_t>(weight_bytes), 64));
    const auto y = bench.take<float>(w.rows);
    COLIBRI_TRY(speed, best_bytes_per_second(bench, static_cast<std::uint64_t>(weight_bytes + 4 * scale_count), [&](Encoder& e) {
                  gpu::product(e, {}, w, {bench.at(x), 1, cols, cols}, bench.at(y), w.rows);
                }));
    m.products.push_back({format, speed});
  }
  return m;
}

}  // namespace colibri::selftest

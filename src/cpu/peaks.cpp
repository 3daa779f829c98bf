#include "cpu/peaks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/aligned.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace colibri {
namespace {

constexpr int kRepeats = 6;
constexpr std::int64_t kProbeShare = std::int64_t{192} << 20;  // bytes a thread reads
constexpr std::int64_t kPiece = std::int64_t{4} << 20;

template <class Body>
double seconds(Body&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Four streams at once keep more reads in flight than one does, and the running values stay in registers: summed in
// an array they went through the stack, and the loop measured that instead of memory. bytes: a multiple of 256.
std::uint64_t read_all(const std::byte* data, std::int64_t bytes) {
  using Words = std::uint64_t __attribute__((vector_size(16)));
  Words a{}, b{}, c{}, d{};
  const std::int64_t stream = bytes / 4;
  for (std::int64_t i = 0; i < stream; i += 64) {
    for (int s = 0; s < 4; ++s) {
      Words line[4];
      std::memcpy(line, data + s * stream + i, sizeof line);
      a ^= line[0];
      b ^= line[1];
      c ^= line[2];
      d ^= line[3];
    }
  }
  a ^= b ^ c ^ d;
  return a[0] ^ a[1];
}

// Twelve independent chains hide the latency of an addition on every machine we know; each loop returns the number of
// operations it did and leaves its result in `sink`.
constexpr int kChains = 12;
constexpr std::int64_t kRounds = 2'000'000;

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) double fma_loop_avx2(float* sink) {
  __m256 a[kChains];
  for (__m256& v : a) v = _mm256_set1_ps(*sink);
  const __m256 m = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(1e-3f);
  for (std::int64_t i = 0; i < kRounds; ++i)
    for (__m256& v : a) v = _mm256_fmadd_ps(v, m, c);
  for (const __m256& v : a) *sink += _mm256_cvtss_f32(v);
  return 2.0 * 8 * kChains * kRounds;
}

__attribute__((target("avx512f"))) double fma_loop_avx512(float* sink) {
  __m512 a[kChains];
  for (__m512& v : a) v = _mm512_set1_ps(*sink);
  const __m512 m = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(1e-3f);
  for (std::int64_t i = 0; i < kRounds; ++i)
    for (__m512& v : a) v = _mm512_fmadd_ps(v, m, c);
  for (const __m512& v : a) *sink += _mm512_cvtss_f32(v);
  return 2.0 * 16 * kChains * kRounds;
}

__attribute__((target("fma"))) double fma_loop_scalar(float* sink) {
  float a[kChains];
  for (float& v : a) v = *sink;
  for (std::int64_t i = 0; i < kRounds; ++i)
    for (float& v : a) {
      v = __builtin_fmaf(v, 0.999f, 1e-3f);
      asm volatile("" : "+x"(v));  // one value a register: no vectors here
    }
  for (const float v : a) *sink += v;
  return 2.0 * kChains * kRounds;
}
#elif defined(__aarch64__)
double fma_loop_neon(float* sink) {
  float32x4_t a[kChains];
  for (float32x4_t& v : a) v = vdupq_n_f32(*sink);
  const float32x4_t m = vdupq_n_f32(0.999f), c = vdupq_n_f32(1e-3f);
  for (std::int64_t i = 0; i < kRounds; ++i)
    for (float32x4_t& v : a) v = vfmaq_f32(c, v, m);
  for (const float32x4_t& v : a) *sink += vgetq_lane_f32(v, 0);
  return 2.0 * 4 * kChains * kRounds;
}

double fma_loop_scalar(float* sink) {
  float a[kChains];
  for (float& v : a) v = *sink;
  for (std::int64_t i = 0; i < kRounds; ++i)
    for (float& v : a) {
      v = __builtin_fmaf(v, 0.999f, 1e-3f);
      asm volatile("" : "+w"(v));
    }
  for (const float v : a) *sink += v;
  return 2.0 * kChains * kRounds;
}
#endif

using Loop = double (*)(float*);
Loop loop_of(std::string_view isa) {
#if defined(__x86_64__)
  if (isa == "avx512") return fma_loop_avx512;
  if (isa == "avx2") return fma_loop_avx2;
#elif defined(__aarch64__)
  if (isa == "neon") return fma_loop_neon;
#endif
  return fma_loop_scalar;
}

struct alignas(64) Sink {
  float value = 1.0f;
  std::uint64_t bits = 0;
};

}  // namespace

ReadProbe::ReadProbe(ThreadTeam& team)
    : team_(team), bytes_(kProbeShare * std::max(2, team.size())), buffer_(static_cast<std::size_t>(bytes_) + 4096) {
  // Untouched pages all map to one page of zeros, which would be read from cache.
  team_.parallel_for(bytes_ / 4096, kPiece / 4096, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t page = begin; page < end; ++page) buffer_.data()[page * 4096] = std::byte{1};
  });
}

double ReadProbe::bytes_per_second() {
  std::vector<Sink> sinks(static_cast<std::size_t>(team_.size()));
  const double time = seconds([&] {
    team_.parallel_for(bytes_ / kPiece, 1, [&](std::int64_t begin, std::int64_t end, int worker) {
      sinks[static_cast<std::size_t>(worker)].bits += read_all(buffer_.data() + begin * kPiece, (end - begin) * kPiece);
    });
  });
  std::uint64_t used = 0;
  for (const Sink& s : sinks) used += s.bits;
  volatile std::uint64_t keep = used;  // the sums must be formed
  (void)keep;
  return static_cast<double>(bytes_) / time;
}

double fma_per_second(ThreadTeam& team, std::string_view isa) {
  const Loop loop = loop_of(isa);
  std::vector<Sink> sinks(static_cast<std::size_t>(team.size()));
  std::vector<double> operations(static_cast<std::size_t>(team.size()));
  const double time = seconds([&] {
    team.parallel_for(team.size(), 1, [&](std::int64_t begin, std::int64_t end, int worker) {
      for (std::int64_t k = begin; k < end; ++k)
        operations[static_cast<std::size_t>(k)] = loop(&sinks[static_cast<std::size_t>(worker)].value);
    });
  });
  double sum = 0;
  for (const double o : operations) sum += o;
  return sum / time;
}

double measure_read_bandwidth(ThreadTeam& team) {
  ReadProbe probe(team);
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) best = std::max(best, probe.bytes_per_second());
  return best;
}

double measure_fma_peak(ThreadTeam& team, std::string_view isa) {
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) best = std::max(best, fma_per_second(team, isa));
  return best;
}

}  // namespace colibri

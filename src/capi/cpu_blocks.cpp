#include "capi/cpu_blocks.h"

#include <algorithm>
#include <cstring>

#include "base/aligned.h"
#include "numerics/attention.h"
#include "numerics/rotary.h"

namespace colibri::capi {
namespace {

constexpr std::int64_t kOutputsAtOnce = 48;  // of one piece of work

AlignedArray<float> floats(std::int64_t count) { return AlignedArray<float>(static_cast<std::size_t>(count)); }

class Scratch {
 public:
  explicit Scratch(std::int64_t cols) : bytes_(kernel_scratch_bytes(cols)), memory_(static_cast<std::size_t>(bytes_)) {}
  KernelScratch get() { return {memory_.data(), bytes_}; }

 private:
  std::int64_t bytes_;
  AlignedBytes memory_;
};

// Rule C6 for one head of one row: out[latent] from query[latent + rope].
void attend_head(const AttentionJob& job, std::int64_t r, const float* query, float* out) {
  const Kernels& k = best_kernels();
  const std::int64_t cache = job.shape.cache_dim(), latent = job.shape.latent;
  const float* entries = job.rows.entries(r);
  const std::int64_t listed = job.selection != nullptr ? job.selection->counts[r] : 0;
  const std::int32_t* list = listed > 0 ? job.selection->chosen + r * job.selection->top_k : nullptr;
  const std::int64_t n = list != nullptr ? listed : job.rows.position(r) + 1;
  // Entries are copied, for the kernels may read past the end of what they are given.
  AlignedArray<float> group = floats(std::min(n, numerics::kSumGroup) * cache), p = floats(n), own = floats(cache);
  std::copy(query, query + cache, own.data());
  const auto load = [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float* entry = entries + (list != nullptr ? list[first + i] : first + i) * cache;
      std::copy(entry, entry + cache, group.data() + i * cache);
    }
  };
  for (std::int64_t first = 0; first < n; first += numerics::kSumGroup) {
    const std::int64_t size = std::min(numerics::kSumGroup, n - first);
    load(first, size);
    for (std::int64_t i = 0; i < size; ++i) p.data()[first + i] = k.dot(own.data(), group.data() + i * cache, cache);
  }
  k.scale(p.data(), job.shape.score_scale, n);
  k.exp_minus(p.data(), k.max(p.data(), n), n);
  AlignedArray<float> sum = floats(latent), ones = floats(numerics::kSumGroup);
  std::fill(ones.data(), ones.data() + numerics::kSumGroup, 1.0f);
  std::fill(out, out + latent, 0.0f);
  float denominator = 0.0f;
  for (std::int64_t first = 0; first < n; first += numerics::kSumGroup) {
    const std::int64_t size = std::min(numerics::kSumGroup, n - first);
    if (n > numerics::kSumGroup) load(first, size);
    k.weighted_sum(p.data() + first, n, 1, group.data(), cache, size, latent, sum.data(), latent);
    k.add(out, sum.data(), out, latent);
    denominator = denominator + k.dot(ones.data(), p.data() + first, size);
  }
  k.scale(out, 1.0f / denominator, latent);
}

}  // namespace

ThreadTeam& CpuBlocks::team() {
  if (!team_) team_.emplace(available_cpus(), WaitMode::kBlock);
  return *team_;
}

void CpuBlocks::product(const Matrix& w, const float* x, std::int64_t x_stride, std::int64_t rows, float* y,
                        std::int64_t y_stride) {
  const Kernels& k = best_kernels();
  AlignedArray<float> packed = floats(PackedRows::floats(rows, w.cols));
  k.pack_rows(x, x_stride, rows, w.cols, packed.data());
  team().parallel_for(ceil_div(w.rows, kOutputsAtOnce), 8, [&](std::int64_t begin, std::int64_t end, int) {
    Scratch scratch(w.cols);
    k.matmul(w, begin * kOutputsAtOnce, std::min(end * kOutputsAtOnce, w.rows), {packed.data(), rows, w.cols}, y, y_stride,
             scratch.get());
  });
}

void CpuBlocks::expert(const Expert& expert, const float* x, float* out) {
  const std::int64_t hidden = expert.gate.cols, intermediate = expert.gate.rows;
  AlignedArray<float> gate = floats(intermediate), up = floats(intermediate);
  product(expert.gate, x, hidden, 1, gate.data(), intermediate);
  product(expert.up, x, hidden, 1, up.data(), intermediate);
  best_kernels().swiglu(gate.data(), up.data(), gate.data(), intermediate);
  product(expert.down, gate.data(), intermediate, 1, out, hidden);
}

void CpuBlocks::combine(std::span<const float* const> outputs, const float* weights, const float* shared, const float* residual,
                        std::int64_t hidden, float* y) {
  const Kernels& k = best_kernels();
  AlignedArray<float> sum = floats(hidden), zeros;
  for (std::size_t rank = 0; rank < outputs.size(); ++rank) k.accumulate(outputs[rank], weights[rank], sum.data(), hidden);
  if (shared != nullptr) k.add(sum.data(), shared, sum.data(), hidden);
  if (residual == nullptr) zeros = floats(hidden);
  k.add(residual != nullptr ? residual : zeros.data(), sum.data(), y, hidden);
}

void CpuBlocks::attention(const AttentionJob& job, float* context) {
  const Kernels& k = best_kernels();
  const gpu::AttentionShape& s = job.shape;
  const std::int64_t n = job.rows.count(), cache = s.cache_dim(), query = s.query_dim(), half = s.rope / 2;
  const std::int64_t head_rows = s.nope + job.value_dim;
  AlignedArray<float> queries = floats(n * s.heads * query), absorbed = floats(n * s.heads * cache),
                      latent = floats(n * s.heads * s.latent), values = floats(n * s.heads * job.value_dim);
  std::copy(job.queries, job.queries + n * s.heads * query, queries.data());
  team().parallel_for(s.heads, 1, [&](std::int64_t begin, std::int64_t end, int) {
    Scratch scratch(s.latent);
    AlignedArray<float> packed = floats(PackedRows::floats(n, s.latent));
    for (std::int64_t h = begin; h < end; ++h) {
      const float* q = queries.data() + h * query;
      float* out = absorbed.data() + h * cache;
      k.transposed_matmul(job.kv_b.rows_view(h * head_rows, s.nope), q, s.heads * query, n, out, s.heads * cache, scratch.get());
      for (std::int64_t r = 0; r < n; ++r) {
        float* row = out + r * s.heads * cache;
        numerics::rotate_interleaved_to_halves(q + r * s.heads * query + s.nope, job.cosine.data() + r * half,
                                               job.sine.data() + r * half, s.rope, row + s.latent);
        attend_head(job, r, row, latent.data() + (r * s.heads + h) * s.latent);
      }
      k.pack_rows(latent.data() + h * s.latent, s.heads * s.latent, n, s.latent, packed.data());
      k.matmul(job.kv_b.rows_view(h * head_rows + s.nope, job.value_dim), 0, job.value_dim, {packed.data(), n, s.latent},
               values.data() + h * job.value_dim, s.heads * job.value_dim, scratch.get());
    }
  });
  std::copy(values.data(), values.data() + n * s.heads * job.value_dim, context);
}

}  // namespace colibri::capi

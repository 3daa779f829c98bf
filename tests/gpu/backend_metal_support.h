// Weights for the tests of the C API: in memory registered through it, as both C structs and matrices.
#pragma once

#include "colibri/backend_metal.h"
#include "device_matrix.h"
#include "numerics/attention.h"
#include "numerics/norm.h"
#include "numerics/rotary.h"

namespace colibri::gpu::test {

struct Weight {
  coli_metal_matrix c = {};
  Matrix m;
};

class Slab {
 public:
  explicit Slab(std::uint64_t bytes) : memory_(AlignedBytes::pages(bytes)) {
    EXPECT_EQ(coli_metal_register(base(), size()), COLI_METAL_OK) << coli_metal_last_error();
  }
  ~Slab() { EXPECT_TRUE(!registered_ || coli_metal_unregister(base()) == COLI_METAL_OK) << coli_metal_last_error(); }
  Slab(const Slab&) = delete;
  void* base() { return memory_.whole_pages().data(); }
  std::uint64_t size() { return memory_.whole_pages().size(); }
  void unregister() {
    registered_ = false;
    ASSERT_EQ(coli_metal_unregister(base()), COLI_METAL_OK) << coli_metal_last_error();
  }
  template <class T>
  T* block(std::int64_t count) {
    const std::uint64_t begin = round_up(used_, 64);
    used_ = begin + static_cast<std::uint64_t>(count) * sizeof(T);
    EXPECT_LE(used_ + kReadSlack, size()) << "the slab is too small";
    return reinterpret_cast<T*>(static_cast<std::byte*>(base()) + begin);
  }

 private:
  AlignedBytes memory_;
  std::uint64_t used_ = 0;
  bool registered_ = true;
};

// Small numbers that are finite in every format.
inline Weight random_weight(Slab& slab, std::mt19937_64& rng, WeightFormat format, std::int64_t rows, std::int64_t cols) {
  Weight w;
  w.m.format = format;
  w.m.rows = rows;
  w.m.cols = cols;
  w.m.group = format == WeightFormat::kInt4Grouped  ? 32
              : format == WeightFormat::kInt3G64    ? 64
              : format == WeightFormat::kF8Block128 ? 128
                                                    : 0;
  w.m.row_bytes = format_row_bytes(format, cols);
  const std::int64_t bytes = format_bytes(format, rows, cols);
  auto* data = slab.block<std::byte>(bytes);
  for (std::int64_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(rng());
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const float v = test_float(rng, false) * 0.25f;
    if (format == WeightFormat::kF32) std::memcpy(data + 4 * i, &v, 4);
    if (format == WeightFormat::kBF16 || format == WeightFormat::kF16) {
      const std::uint16_t half = format == WeightFormat::kBF16 ? static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16)
                                                               : static_cast<std::uint16_t>(0x2c00 | (rng() & 0x83ff));
      std::memcpy(data + 2 * i, &half, 2);
    }
    if (format == WeightFormat::kF8Block128) data[i] &= std::byte{0xbf};
  }
  w.m.data = data;
  if (const std::int64_t count = format_scales(format, rows, cols, w.m.group)) {
    auto* scales = slab.block<float>(count);
    for (std::int64_t i = 0; i < count; ++i) scales[i] = 0.01f + 0.02f * test_float(rng, false);
    w.m.scales = scales;
    w.m.scale_stride = format_row_scales(format, cols, w.m.group);
  }
  w.c = {static_cast<std::int32_t>(format),
         format == WeightFormat::kInt4Grouped ? w.m.group : 0,
         rows,
         cols,
         0,
         0,
         data,
         w.m.scales};
  return w;
}

inline ::testing::AssertionResult same(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << got.size() << " numbers, expected " << want.size();
  for (std::size_t i = 0; i < want.size(); ++i)
    if (!same_bits(got[i], want[i]))
      return ::testing::AssertionFailure() << "number " << i << ": expected " << want[i] << ", found " << got[i];
  return ::testing::AssertionSuccess();
}

// One expert of one row by the scalar kernels.
struct ExpertWeight {
  Weight gate, up, down;
  coli_metal_expert c() const { return {gate.c, up.c, down.c}; }
};
inline std::vector<float> scalar_expert(const ExpertWeight& e, const float* x) {
  const std::vector<float> g = scalar_products(e.gate.m, x, e.gate.m.cols, 1), u = scalar_products(e.up.m, x, e.up.m.cols, 1);
  std::vector<float> act(g.size());
  find_kernels("scalar")->swiglu(g.data(), u.data(), act.data(), static_cast<std::int64_t>(act.size()));
  return scalar_products(e.down.m, act.data(), e.down.m.cols, 1);
}

// Rule C6 for one row and head over the entries at `list`.
inline std::vector<float> scalar_attend(const coli_metal_attention& a, const float* query, const float* entries,
                                        const std::vector<std::int32_t>& list) {
  const Kernels& k = *find_kernels("scalar");
  const std::int64_t cache = a.latent + a.rope, n = static_cast<std::int64_t>(list.size());
  std::vector<float> p, values, sum(static_cast<std::size_t>(a.latent)), out(sum.size());
  for (const std::int32_t i : list) {
    const float* entry = entries + i * cache;
    p.push_back(k.dot(query, entry, cache));
    values.insert(values.end(), entry, entry + a.latent);
  }
  k.scale(p.data(), numerics::inverse_sqrt(a.nope + a.rope), n);
  k.exp_minus(p.data(), k.max(p.data(), n), n);
  const std::vector<float> ones(static_cast<std::size_t>(numerics::kSumGroup), 1.0f);
  float denominator = 0.0f;
  for (std::int64_t first = 0; first < n; first += numerics::kSumGroup) {
    const std::int64_t size = std::min(numerics::kSumGroup, n - first);
    numerics::weighted_sum(p.data() + first, values.data() + first * a.latent, a.latent, size, a.latent, sum.data());
    k.add(out.data(), sum.data(), out.data(), a.latent);
    denominator = denominator + k.dot(ones.data(), p.data() + first, size);
  }
  k.scale(out.data(), 1.0f / denominator, a.latent);
  return out;
}

// The rows of a call one by one.
struct CacheRow {
  float *entries, *keys;
  std::int64_t position;
};
inline std::vector<CacheRow> rows_of(const std::vector<coli_metal_sequence>& sequences) {
  std::vector<CacheRow> rows;
  for (const coli_metal_sequence& s : sequences)
    for (std::int64_t r = 0; r < s.rows; ++r) rows.push_back({s.entries, s.keys, s.first + r});
  return rows;
}

// attn_decode by the scalar kernels.
inline std::vector<float> scalar_attention(const coli_metal_attention& a, const Matrix& kv_b,
                                           const std::vector<coli_metal_sequence>& sequences,
                                           const coli_metal_selection* selection, const float* queries) {
  const std::vector<CacheRow> rows = rows_of(sequences);
  const std::int64_t head_rows = a.nope + a.value_dim, query = a.nope + a.rope;
  const numerics::RotaryTable rotary(a.rope_theta, a.rope);
  std::vector<float> out, cosine(static_cast<std::size_t>(a.rope / 2)), sine(cosine.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    rotary.angles(rows[r].position, cosine.data(), sine.data());
    std::vector<std::int32_t> list;
    const auto row = static_cast<std::int64_t>(r);
    if (selection != nullptr && selection->counts[r] > 0)
      list.assign(selection->chosen + row * selection->top_k, selection->chosen + row * selection->top_k + selection->counts[r]);
    else
      for (std::int64_t i = 0; i <= rows[r].position; ++i) list.push_back(static_cast<std::int32_t>(i));
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const float* q = queries + (row * a.heads + h) * query;
      std::vector<float> absorbed = scalar_transposed(kv_b.rows_view(h * head_rows, a.nope), q, query, 1);
      absorbed.resize(static_cast<std::size_t>(a.latent + a.rope));
      numerics::rotate_interleaved_to_halves(q + a.nope, cosine.data(), sine.data(), a.rope, absorbed.data() + a.latent);
      const std::vector<float> latent = scalar_attend(a, absorbed.data(), rows[r].entries, list);
      const std::vector<float> values =
          scalar_products(kv_b.rows_view(h * head_rows + a.nope, a.value_dim), latent.data(), a.latent, 1);
      out.insert(out.end(), values.begin(), values.end());
    }
  }
  return out;
}

// Initialised before each test and shut down after it.
class BackendTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(coli_metal_init(COLI_METAL_ALLOW_SOFTWARE), COLI_METAL_OK) << coli_metal_last_error(); }
  void TearDown() override { coli_metal_shutdown(); }
  std::vector<float> random_floats(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& v : values) v = test_float(rng_, false);
    return values;
  }
  static coli_metal_counter_values counters() {
    coli_metal_counter_values c;
    EXPECT_EQ(coli_metal_counters(&c), COLI_METAL_OK);
    return c;
  }

  FlushDenormals flush_;
  std::mt19937_64 rng_{run_seed()};
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, "COLIBRI_TEST_SEED=" + std::to_string(run_seed())};
};

// Three experts of five in memory, rows that choose among all five.
struct MoeCase {
  MoeCase(Slab& slab, std::mt19937_64& rng, WeightFormat gate, WeightFormat down, std::int64_t row_count);
  std::vector<coli_metal_expert> only(const std::vector<int>& ids) const {
    std::vector<coli_metal_expert> table(experts.size());
    for (const int id : ids) table[static_cast<std::size_t>(id)] = experts[static_cast<std::size_t>(id)].c();
    return table;
  }
  coli_metal_moe moe(const std::vector<coli_metal_expert>& table) const {
    return {kHidden,  kIntermediate, kExperts,       kPerToken,       rows,         table.data(),
            x.data(), chosen.data(), weights.data(), residual.data(), shared.data()};
  }
  std::vector<float> want(const std::vector<int>& there) const;

  static constexpr std::int64_t kHidden = 70, kIntermediate = 45, kExperts = 5, kPerToken = 3;
  std::int64_t rows;
  std::vector<ExpertWeight> experts;
  std::vector<float> x, weights, residual, shared;
  std::vector<std::int32_t> chosen;
};

inline MoeCase::MoeCase(Slab& slab, std::mt19937_64& rng, WeightFormat gate, WeightFormat down, std::int64_t row_count)
    : rows(row_count) {
  for (std::int64_t e = 0; e < kExperts; ++e)
    experts.push_back({random_weight(slab, rng, gate, kIntermediate, kHidden),
                       random_weight(slab, rng, gate, kIntermediate, kHidden),
                       random_weight(slab, rng, down, kHidden, kIntermediate)});
  for (auto* values : {&x, &residual, &shared})
    for (std::int64_t i = 0; i < rows * kHidden; ++i) values->push_back(test_float(rng, false));
  for (std::int64_t r = 0; r < rows; ++r) {
    std::vector<std::int32_t> order = {0, 1, 2, 3, 4};
    std::shuffle(order.begin(), order.end(), rng);
    chosen.insert(chosen.end(), order.begin(), order.begin() + kPerToken);
    for (std::int64_t i = 0; i < kPerToken; ++i) weights.push_back(test_float(rng, false));
  }
}

// Experts that are not in `there` count as zeros.
inline std::vector<float> MoeCase::want(const std::vector<int>& there) const {
  const Kernels& k = *find_kernels("scalar");
  std::vector<float> y(static_cast<std::size_t>(rows * kHidden));
  for (std::int64_t r = 0; r < rows; ++r) {
    float* sum = y.data() + r * kHidden;
    for (std::int64_t i = r * kPerToken; i < (r + 1) * kPerToken; ++i) {
      const std::int32_t id = chosen[static_cast<std::size_t>(i)];
      const bool has = std::find(there.begin(), there.end(), id) != there.end();
      const std::vector<float> out = has ? scalar_expert(experts[static_cast<std::size_t>(id)], x.data() + r * kHidden)
                                         : std::vector<float>(static_cast<std::size_t>(kHidden));
      k.accumulate(out.data(), weights[static_cast<std::size_t>(i)], sum, kHidden);
    }
    k.add(sum, shared.data() + r * kHidden, sum, kHidden);
    k.add(residual.data() + r * kHidden, sum, sum, kHidden);
  }
  return y;
}

// Latent attention of rows in several sequences.
struct AttentionCase {
  struct Span {
    std::int64_t first, rows = 1;
  };
  AttentionCase(Slab& slab, std::mt19937_64& rng, WeightFormat format, const std::vector<Span>& spans) {
    kv_b = random_weight(slab, rng, format, shape.heads * (shape.nope + shape.value_dim), shape.latent);
    for (const Span& span : spans) {
      const std::int64_t floats = (span.first + span.rows) * (shape.latent + shape.rope);
      float* entries = slab.block<float>(floats);
      for (std::int64_t i = 0; i < floats; ++i) entries[i] = test_float(rng, false);
      sequences.push_back({entries, nullptr, span.first, span.rows});
    }
    const std::int64_t count = rows() * shape.heads * (shape.nope + shape.rope);
    for (std::int64_t i = 0; i < count; ++i) queries.push_back(test_float(rng, false));
  }
  std::int64_t rows() const { return static_cast<std::int64_t>(rows_of(sequences).size()); }
  std::vector<float> context() const {
    return std::vector<float>(static_cast<std::size_t>(rows() * shape.heads * shape.value_dim), kPoison);
  }
  int run(const coli_metal_selection* selection, std::vector<float>& out) const {
    return coli_metal_attn_decode(&shape, &kv_b.c, sequences.data(), static_cast<std::int64_t>(sequences.size()), selection,
                                  queries.data(), out.data());
  }
  std::vector<float> want(const coli_metal_selection* selection) const {
    return scalar_attention(shape, kv_b.m, sequences, selection, queries.data());
  }

  coli_metal_attention shape = {3, 36, 8, 20, 12, 10000.0};
  Weight kv_b;
  std::vector<coli_metal_sequence> sequences;
  std::vector<float> queries;
};

}  // namespace colibri::gpu::test

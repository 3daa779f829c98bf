// coli_metal_layer_decode against a layer written out with the scalar kernels.
#include "backend_metal_support.h"
#include "numerics/elementary.h"
#include "numerics/selection.h"

#ifndef __APPLE__
#include <dlfcn.h>

#include "softmetal/soft_metal.h"
#endif

namespace colibri::gpu::test {
namespace {

// Two rows of one sequence and one of another.
class LayerCase {
 public:
  static constexpr std::int64_t kHidden = 64, kQRank = 40, kPositions = 40, kMlp = 48, kExperts = 6, kPerToken = 2, kMoe = 34;
  static constexpr std::int64_t kIndexHeads = 2, kIndexDim = 16, kTopK = 12, kRows = 3;

  LayerCase(std::mt19937_64& rng, WeightFormat format, bool sparse, bool with_indexer) : slab_(std::uint64_t{1} << 20) {
    const auto weight = [&](std::int64_t outputs, std::int64_t cols) { return random_weight(slab_, rng, format, outputs, cols); };
    const auto floats = [&](std::int64_t count) {
      std::vector<float> v(static_cast<std::size_t>(count));
      for (float& f : v) f = test_float(rng, false);
      return v;
    };
    const coli_metal_attention& a = shape;
    q_a = weight(kQRank, kHidden);
    q_b = weight(a.heads * (a.nope + a.rope), kQRank);
    kv_a = weight(a.latent + a.rope, kHidden);
    kv_b = weight(a.heads * (a.nope + a.value_dim), a.latent);
    o = weight(kHidden, a.heads * a.value_dim);
    gate = weight(kMlp, kHidden);
    up = weight(kMlp, kHidden);
    down = weight(kHidden, kMlp);
    input_norm = floats(kHidden);
    post_norm = floats(kHidden);
    q_a_norm = floats(kQRank);
    kv_a_norm = floats(a.latent);
    k_norm = floats(kIndexDim);
    k_bias = floats(kIndexDim);
    bias = floats(kExperts);
    x = floats(kRows * kHidden);
    layer = {};
    layer.attention = a;
    layer.hidden = kHidden;
    layer.q_lora_rank = kQRank;
    layer.eps = 1e-5f;
    layer.input_norm = input_norm.data();
    layer.post_attention_norm = post_norm.data();
    layer.q_a_norm = q_a_norm.data();
    layer.kv_a_norm = kv_a_norm.data();
    layer.q_a = q_a.c;
    layer.q_b = q_b.c;
    layer.kv_a = kv_a.c;
    layer.kv_b = kv_b.c;
    layer.o = o.c;
    layer.gate = gate.c;
    layer.up = up.c;
    layer.down = down.c;
    if (with_indexer) {
      wq_b = weight(kIndexHeads * kIndexDim, kQRank);
      wk = weight(kIndexDim, kHidden);
      weights_proj = weight(kIndexHeads, kHidden);
      indexer = {kIndexHeads, kIndexDim, kTopK, wq_b.c, wk.c, weights_proj.c, k_norm.data(), k_bias.data()};
      layer.indexer = &indexer;
    }
    if (sparse) {
      router = weight(kExperts, kHidden);
      for (std::int64_t e = 0; e < kExperts; ++e) {
        experts.push_back({weight(kMoe, kHidden), weight(kMoe, kHidden), weight(kHidden, kMoe)});
        table.push_back(experts.back().c());
      }
      layer.experts = kExperts;
      layer.per_token = kPerToken;
      layer.moe_intermediate = kMoe;
      layer.renormalise = 1;
      layer.routed_scaling = 2.5f;
      layer.router = router.c;
      layer.router_bias = bias.data();
      layer.table = table.data();
    }
    for (int s = 0; s < 2; ++s) {
      const std::int64_t entries = kPositions * (a.latent + a.rope), keys = kPositions * kIndexDim;
      caches.push_back(slab_.block<float>(entries));
      caches.push_back(slab_.block<float>(keys));
      for (std::int64_t i = 0; i < entries; ++i) caches[caches.size() - 2][i] = test_float(rng, false);
      for (std::int64_t i = 0; i < keys; ++i) caches.back()[i] = test_float(rng, false);
    }
    sequences = {{caches[0], caches[1], 30, 2}, {caches[2], caches[3], 7, 1}};
  }

  std::int64_t cache_floats(std::size_t i) const { return kPositions * (i % 2 == 0 ? shape.latent + shape.rope : kIndexDim); }
  std::vector<float> cached() const {
    std::vector<float> all;
    for (std::size_t i = 0; i < caches.size(); ++i) all.insert(all.end(), caches[i], caches[i] + cache_floats(i));
    return all;
  }
  void put_cached(const std::vector<float>& all) const {
    const float* from = all.data();
    for (std::size_t i = 0; i < caches.size(); from += cache_floats(i++)) std::copy(from, from + cache_floats(i), caches[i]);
  }
  int run(coli_metal_selection* selection, std::vector<float>& out) const {
    return coli_metal_layer_decode(&layer, sequences.data(), static_cast<std::int64_t>(sequences.size()), selection, x.data(),
                                   out.data());
  }
  // Writes the caches' entries as the layer does. selection: filled with an indexer, read without one.
  std::vector<float> reference(std::vector<std::vector<std::int32_t>>& selected) const;

  coli_metal_attention shape = {2, 32, 8, 12, 10, 10000.0};
  coli_metal_layer layer;
  coli_metal_indexer indexer = {};
  Weight q_a, q_b, kv_a, kv_b, o, gate, up, down, wq_b, wk, weights_proj, router;
  std::vector<float> input_norm, post_norm, q_a_norm, kv_a_norm, k_norm, k_bias, bias, x;
  std::vector<ExpertWeight> experts;
  std::vector<coli_metal_expert> table;
  std::vector<float*> caches;  // entries and keys of each sequence
  std::vector<coli_metal_sequence> sequences;

 private:
  Slab slab_;
};

std::vector<float> product(const Weight& w, const std::vector<float>& x) { return scalar_products(w.m, x.data(), w.m.cols, 1); }

std::vector<float> normed(const std::vector<float>& x, const std::vector<float>& weight, float eps) {
  std::vector<float> y(x.size());
  numerics::rms_norm(x.data(), weight.data(), eps, y.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

std::vector<float> sum(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> y(a.size());
  find_kernels("scalar")->add(a.data(), b.data(), y.data(), static_cast<std::int64_t>(y.size()));
  return y;
}

std::vector<float> LayerCase::reference(std::vector<std::vector<std::int32_t>>& selected) const {
  const Kernels& k = *find_kernels("scalar");
  const std::int64_t cache = shape.latent + shape.rope;
  const numerics::RotaryTable rotary(shape.rope_theta, shape.rope);
  const std::vector<CacheRow> rows = rows_of(sequences);
  const auto row_of = [](const std::vector<float>& v, std::size_t r) {
    return std::vector<float>(v.begin() + static_cast<std::ptrdiff_t>(r * kHidden),
                              v.begin() + static_cast<std::ptrdiff_t>((r + 1) * kHidden));
  };
  std::vector<std::vector<float>> inputs, latents;
  std::vector<float> queries, cosine(static_cast<std::size_t>(shape.rope / 2)), sine(cosine.size());
  const auto rotate_key = [&](const float* from, std::int64_t dim, float* to) {
    numerics::rotate_interleaved_to_halves(from, cosine.data(), sine.data(), shape.rope, to);
    std::copy(from + shape.rope, from + dim, to + shape.rope);
  };
  for (std::size_t r = 0; r < kRows; ++r) {  // every row's entry before any row looks
    rotary.angles(rows[r].position, cosine.data(), sine.data());
    inputs.push_back(normed(row_of(x, r), input_norm, layer.eps));
    latents.push_back(normed(product(q_a, inputs[r]), q_a_norm, numerics::kLatentNormEps));
    const std::vector<float> q = product(q_b, latents[r]), kv = product(kv_a, inputs[r]);
    queries.insert(queries.end(), q.begin(), q.end());
    float* entry = rows[r].entries + rows[r].position * cache;
    numerics::rms_norm(kv.data(), kv_a_norm.data(), numerics::kLatentNormEps, entry, shape.latent);
    numerics::rotate_interleaved_to_halves(kv.data() + shape.latent, cosine.data(), sine.data(), shape.rope,
                                           entry + shape.latent);
    if (layer.indexer == nullptr) continue;
    std::vector<float> key = product(wk, inputs[r]);
    numerics::layer_norm(key.data(), k_norm.data(), k_bias.data(), numerics::kLatentNormEps, key.data(), kIndexDim);
    rotate_key(key.data(), kIndexDim, rows[r].keys + rows[r].position * kIndexDim);
  }
  if (layer.indexer != nullptr) selected.assign(kRows, {});
  for (std::size_t r = 0; r < kRows && layer.indexer != nullptr; ++r) {
    if (rows[r].position + 1 <= kTopK) continue;
    rotary.angles(rows[r].position, cosine.data(), sine.data());
    const std::vector<float> q = product(wq_b, latents[r]), head_weights = product(weights_proj, inputs[r]);
    std::vector<float> scores(static_cast<std::size_t>(rows[r].position + 1)), rotated(static_cast<std::size_t>(kIndexDim));
    for (std::size_t p = 0; p < scores.size(); ++p) {
      for (std::int64_t h = 0; h < kIndexHeads; ++h) {
        rotate_key(q.data() + h * kIndexDim, kIndexDim, rotated.data());
        const float dot = k.dot(rotated.data(), rows[r].keys + static_cast<std::int64_t>(p) * kIndexDim, kIndexDim);
        k.indexer_accumulate(&dot, numerics::inverse_sqrt(kIndexDim), head_weights[static_cast<std::size_t>(h)], &scores[p], 1);
      }
      k.scale(&scores[p], numerics::inverse_sqrt(kIndexHeads), 1);
    }
    EXPECT_TRUE(numerics::top_k(scores, kTopK, selected[r]));
    std::sort(selected[r].begin(), selected[r].end());
  }
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(kRows * kTopK));
  std::vector<std::uint32_t> counts(static_cast<std::size_t>(kRows));
  for (std::size_t r = 0; r < selected.size(); ++r) {
    counts[r] = static_cast<std::uint32_t>(selected[r].size());
    std::copy(selected[r].begin(), selected[r].end(), chosen.begin() + static_cast<std::ptrdiff_t>(r * kTopK));
  }
  const coli_metal_selection selection = {kTopK, chosen.data(), counts.data()};
  const std::vector<float> context =
      scalar_attention(shape, kv_b.m, sequences, selected.empty() ? nullptr : &selection, queries.data());

  std::vector<float> out;
  for (std::size_t r = 0; r < kRows; ++r) {
    const auto per_row = static_cast<std::ptrdiff_t>(shape.heads * shape.value_dim),
               first = static_cast<std::ptrdiff_t>(r) * per_row;
    const std::vector<float> own(context.begin() + first, context.begin() + first + per_row);
    const std::vector<float> mid = sum(row_of(x, r), product(o, own)), input = normed(mid, post_norm, layer.eps);
    std::vector<float> act = product(gate, input);
    const std::vector<float> u = product(up, input);
    k.swiglu(act.data(), u.data(), act.data(), kMlp);
    std::vector<float> y = product(down, act);
    if (layer.experts > 0) {
      std::vector<float> scores = product(router, input), weights, routed(static_cast<std::size_t>(kHidden));
      std::vector<std::int32_t> ids;
      for (float& s : scores) s = numerics::sigmoid(s);
      EXPECT_TRUE(numerics::route_sigmoid(scores, bias, {kPerToken, true, layer.routed_scaling}, ids, weights));
      for (std::size_t i = 0; i < ids.size(); ++i)
        k.accumulate(scalar_expert(experts[static_cast<std::size_t>(ids[i])], input.data()).data(), weights[i], routed.data(),
                     kHidden);
      y = sum(routed, y);
    }
    y = sum(mid, y);
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

using LayerTest = BackendTest;

// Runs the layer, then the reference over the same caches, which must write what is there.
void expect_reference(const LayerCase& c, coli_metal_selection* selection, std::vector<std::vector<std::int32_t>> selected) {
  std::vector<float> out(c.x.size(), kPoison);
  ASSERT_EQ(c.run(selection, out), COLI_METAL_OK) << coli_metal_last_error();
  const std::vector<float> cached = c.cached();
  const std::vector<float> want = c.reference(selected);
  EXPECT_TRUE(same(cached, c.cached()));
  EXPECT_TRUE(same(out, want));
  for (std::size_t r = 0; r < selected.size(); ++r) {
    ASSERT_EQ(selection->counts[r], selected[r].size());
    EXPECT_TRUE(std::equal(selected[r].begin(), selected[r].end(), selection->chosen + r * LayerCase::kTopK));
  }
}

TEST_F(LayerTest, ADenseLayer) {
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kInt8Row})
    expect_reference(LayerCase(rng_, format, false, false), nullptr, {});
  EXPECT_EQ(counters().command_buffers, 2u);
  EXPECT_EQ(counters().waits, 2u);
}

TEST_F(LayerTest, ASparseLayerThatChoosesItsPositions) {
  std::vector<std::int32_t> chosen(LayerCase::kRows * LayerCase::kTopK);
  std::vector<std::uint32_t> counts(LayerCase::kRows, 99);
  coli_metal_selection selection = {LayerCase::kTopK, chosen.data(), counts.data()};
  for (const WeightFormat format : {WeightFormat::kInt4Grouped, WeightFormat::kF8Block128})
    expect_reference(LayerCase(rng_, format, true, true), &selection, {});
  EXPECT_EQ(counters().command_buffers, 2u);
  EXPECT_EQ(counters().experts, 2u * LayerCase::kRows * LayerCase::kPerToken);
}

TEST_F(LayerTest, ALayerThatUsesAnothersChoice) {
  std::vector<std::vector<std::int32_t>> selected = {{0, 3, 9, 30}, {1, 2, 31}, {}};
  std::vector<std::int32_t> chosen(LayerCase::kRows * LayerCase::kTopK);
  std::vector<std::uint32_t> counts = {4, 3, 0};
  for (std::size_t r = 0; r < selected.size(); ++r)
    std::copy(selected[r].begin(), selected[r].end(), chosen.begin() + static_cast<std::ptrdiff_t>(r * LayerCase::kTopK));
  coli_metal_selection selection = {LayerCase::kTopK, chosen.data(), counts.data()};
  expect_reference(LayerCase(rng_, WeightFormat::kInt4Row, true, false), &selection, selected);
}

// Both sequences in one call, each by itself, and row after row: the same states and cache entries.
TEST_F(LayerTest, RaggedAndContiguousRowsHaveTheSameBits) {
  const LayerCase c(rng_, WeightFormat::kInt8Row, true, false);
  const std::vector<float> before = c.cached();
  std::vector<float> together(c.x.size(), kPoison);
  ASSERT_EQ(c.run(nullptr, together), COLI_METAL_OK) << coli_metal_last_error();
  const std::vector<float> cached = c.cached();
  for (const bool by_row : {false, true}) {
    c.put_cached(before);
    std::vector<float> alone(c.x.size(), kPoison);
    std::ptrdiff_t first = 0;
    for (const coli_metal_sequence& s : c.sequences) {
      for (std::int64_t r = 0; r < s.rows; r += by_row ? 1 : s.rows) {
        const coli_metal_sequence rows = {s.entries, s.keys, s.first + r, by_row ? 1 : s.rows};
        ASSERT_EQ(coli_metal_layer_decode(&c.layer, &rows, 1, nullptr, c.x.data() + first, alone.data() + first), COLI_METAL_OK)
            << coli_metal_last_error();
        first += rows.rows * LayerCase::kHidden;
      }
    }
    EXPECT_TRUE(same(alone, together)) << by_row;
    EXPECT_TRUE(same(c.cached(), cached)) << by_row;
  }
}

TEST_F(LayerTest, WrongLayersAreRefused) {
  LayerCase c(rng_, WeightFormat::kInt8Row, true, true);
  std::vector<std::int32_t> chosen(LayerCase::kRows * LayerCase::kTopK);
  std::vector<std::uint32_t> counts(LayerCase::kRows);
  coli_metal_selection selection = {LayerCase::kTopK, chosen.data(), counts.data()};
  std::vector<float> out(c.x.size(), kPoison);
  const coli_metal_layer good = c.layer;
  const auto good_sequences = c.sequences;
  const std::vector<float> cached = c.cached();
  const auto refused = [&](coli_metal_status status, const char* text, coli_metal_selection* s) {
    EXPECT_EQ(c.run(s, out), status) << text;
    EXPECT_NE(std::string(coli_metal_last_error()).find(text), std::string::npos) << coli_metal_last_error();
    c.layer = good;
    c.sequences = good_sequences;
  };
  refused(COLI_METAL_BAD_ARGUMENT, "selection", nullptr);
  coli_metal_selection other = selection;
  other.top_k = 5;
  refused(COLI_METAL_BAD_ARGUMENT, "selection.top_k: expected 12", &other);
  c.layer.input_norm = nullptr;
  refused(COLI_METAL_BAD_ARGUMENT, "layer.input_norm", &selection);
  c.layer.q_b.rows -= 1;
  refused(COLI_METAL_BAD_ARGUMENT, "layer.q_b: expected 40 x 40, found 39 x 40", &selection);
  c.layer.eps = -1;
  refused(COLI_METAL_BAD_ARGUMENT, "layer.eps", &selection);
  c.layer.router_bias = nullptr;
  refused(COLI_METAL_BAD_ARGUMENT, "layer.router_bias", &selection);
  c.layer.o.data = out.data();
  refused(COLI_METAL_NOT_REGISTERED, "layer.o.data", &selection);
  c.layer.hidden = 0;
  refused(COLI_METAL_BAD_ARGUMENT, "layer.hidden", &selection);
  c.sequences[1].entries = c.sequences[0].entries;
  refused(COLI_METAL_BAD_ARGUMENT, "sequences[1].entries: expected memory of its own", &selection);
  c.sequences[0].keys = c.sequences[1].keys + 4;
  refused(COLI_METAL_BAD_ARGUMENT, "sequences[1].keys: expected memory of its own", &selection);
  c.sequences[1].keys = c.sequences[0].entries + 4;
  refused(COLI_METAL_BAD_ARGUMENT, "sequences[1].keys: expected memory of its own, found that of sequences[0].entries",
          &selection);
  c.sequences[1].keys = nullptr;
  refused(COLI_METAL_BAD_ARGUMENT, "sequences[1].keys", &selection);
  c.sequences[1].rows = 65;
  refused(COLI_METAL_BAD_ARGUMENT, "sequences[1].rows: expected 1 .. 64, found 65", &selection);
  c.table[4].gate.data = nullptr;
  refused(COLI_METAL_BAD_ARGUMENT, "expert 4 not there", &selection);
  EXPECT_EQ(coli_metal_layer_decode(nullptr, c.sequences.data(), 2, &selection, c.x.data(), out.data()), COLI_METAL_BAD_ARGUMENT);
  EXPECT_EQ(coli_metal_layer_decode(&c.layer, c.sequences.data(), 65, &selection, c.x.data(), out.data()),
            COLI_METAL_BAD_ARGUMENT);
  EXPECT_TRUE(same(out, std::vector<float>(out.size(), kPoison)));
  EXPECT_TRUE(same(c.cached(), cached));
}

TEST_F(LayerTest, AnInfiniteNumberIsNamedAndNothingChanges) {
  LayerCase c(rng_, WeightFormat::kF32, false, false);
  c.x[70] = std::numeric_limits<float>::infinity();
  const std::vector<float> cached = c.cached();
  std::vector<float> out(c.x.size(), kPoison);
  EXPECT_EQ(c.run(nullptr, out), COLI_METAL_NOT_FINITE);
  EXPECT_NE(std::string(coli_metal_last_error()).find("attention"), std::string::npos) << coli_metal_last_error();
  EXPECT_TRUE(same(out, std::vector<float>(out.size(), kPoison)));
  EXPECT_TRUE(same(c.cached(), cached));
  EXPECT_EQ(counters().fallbacks, 0u);
}

#ifndef __APPLE__
TEST_F(LayerTest, AFaultIsAnErrorAndNothingChanges) {
  void* library = ::dlopen(COLIBRI_SOFT_METAL_LIBRARY, RTLD_NOW);
  ASSERT_TRUE(library) << ::dlerror();
  const auto arm = reinterpret_cast<decltype(&soft_metal_arm)>(::dlsym(library, "soft_metal_arm"));
  ASSERT_TRUE(arm);
  const LayerCase c(rng_, WeightFormat::kInt8Row, false, false);
  const std::vector<float> cached = c.cached();
  std::vector<float> out(c.x.size(), kPoison);
  for (int i = 0; i < 4; ++i) {
    if (i < 3) arm(kSoftMetalTimeout, 0, 1);
    EXPECT_EQ(c.run(nullptr, out), i < 3 ? COLI_METAL_GPU_FAULT : COLI_METAL_UNAVAILABLE);
    EXPECT_NE(std::string(coli_metal_last_error()).find("timeout"), std::string::npos) << coli_metal_last_error();
    EXPECT_TRUE(same(out, std::vector<float>(out.size(), kPoison)));
    EXPECT_TRUE(same(c.cached(), cached));
  }
  EXPECT_EQ(coli_metal_available(), 0);
  EXPECT_EQ(counters().fallback_timeout, 3u);
  EXPECT_EQ(counters().fallback_off, 1u);
}
#endif

}  // namespace
}  // namespace colibri::gpu::test

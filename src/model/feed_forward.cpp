#include "model/feed_forward.h"

#include <algorithm>

#include "model/damage.h"
#include "numerics/finite.h"

namespace colibri {
namespace {

AlignedArray<float> floats(std::int64_t count) { return AlignedArray<float>(static_cast<std::size_t>(count)); }

}  // namespace

FeedForward::FeedForward(Ops& ops, const ModelConfig& config, const ModelWeights& weights, std::int64_t max_rows)
    : ops_(ops),
      model_weights_(weights),
      hidden_(config.hidden_size),
      intermediate_(config.moe_intermediate_size),
      expert_count_(config.experts),
      per_token_(config.experts_per_token),
      eps_(config.rms_norm_eps),
      rule_{config.experts_per_token, config.norm_topk_prob, config.routed_scaling_factor} {
  const std::int64_t widest =
      std::max(config.intermediate_size, intermediate_ * std::max<std::int64_t>(config.shared_experts, 1));
  const std::int64_t slots = max_rows * per_token_;
  normed_ = floats(max_rows * hidden_);
  packed_ = floats(PackedRows::floats(max_rows, hidden_));
  gate_ = floats(max_rows * widest);
  up_ = floats(max_rows * widest);
  packed_act_ = floats(PackedRows::floats(max_rows, widest));
  out_ = floats(max_rows * hidden_);
  router_ = floats(max_rows * expert_count_);
  predicted_ = floats(max_rows * (hidden_ + expert_count_) + PackedRows::floats(max_rows, hidden_));
  gathered_ = floats(slots * hidden_);
  packed_in_ = floats(PackedRows::floats(slots, hidden_));
  expert_gate_ = floats(slots * intermediate_);
  expert_up_ = floats(slots * intermediate_);
  packed_expert_act_ = floats(PackedRows::floats(slots, intermediate_));
  expert_out_ = floats(slots * hidden_);
}

std::uint64_t FeedForward::scratch_bytes() const {
  std::uint64_t count = 0;
  for (const auto* a : {&normed_, &packed_, &gate_, &up_, &packed_act_, &out_, &router_, &predicted_, &gathered_, &packed_in_,
                        &expert_gate_, &expert_up_, &packed_expert_act_, &expert_out_})
    count += a->size();
  return count * sizeof(float);
}

Result<StepEnd> FeedForward::run(const LayerWeights& layer, std::int64_t index, std::span<const Row> step, float* x,
                                 const LayerWeights* next, PhaseTimes& times, const KeepGoing& keep_going) {
  const auto rows = static_cast<std::int64_t>(step.size());
  if (keep_going && !keep_going()) return StepEnd::kStopped;
  PhaseClock clock;
  const MlpWeights& mlp = layer.mlp;
  const std::int64_t width = mlp.gate.rows;
  ops_.rms_norm(x, layer.post_attention_norm.data(), eps_, normed_.data(), rows, hidden_);
  input_ = ops_.pack(normed_.data(), hidden_, rows, hidden_, packed_.data());
  std::vector<Product> products;
  if (layer.sparse) {  // the router first: its choice starts the reads of missing experts
    ops_.multiply({{layer.router, input_, router_.data(), expert_count_}});
    COLIBRI_CHECK(route(layer, index, step));
    if (next && experts_->wants_predictions()) predict_next(*next, index + 1, step, x);
  }
  if (width > 0) {
    ops_.multiply({{mlp.gate, input_, gate_.data(), width}, {mlp.up, input_, up_.data(), width}});
    activate(rows, width);
    ops_.multiply({{mlp.down, ops_.pack(gate_.data(), width, rows, width, packed_act_.data()), out_.data(), hidden_}});
  }
  if (!layer.sparse) {
    ops_.kernels().add(x, out_.data(), x, rows * hidden_);
    if (!numerics::all_finite(x, rows * hidden_)) return pass(damage(layer, index, {}));
    clock.add_to(times.feed_forward);
    return StepEnd::kDone;
  }
  clock.add_to(times.feed_forward);
  COLIBRI_TRY(outcome, run_experts(rows, times, clock, keep_going));
  if (outcome == StepEnd::kStopped) return outcome;
  ops_.team().parallel_for(rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* sum = normed_.data() + r * hidden_;
      std::fill(sum, sum + hidden_, 0.0f);
      for (std::int64_t rank = 0; rank < per_token_; ++rank) {
        const auto i = static_cast<std::size_t>(r * per_token_ + rank);
        ops_.kernels().accumulate(expert_out_.data() + slot_of_[i] * hidden_, weights_[i], sum, hidden_);
      }
      if (width > 0) ops_.kernels().add(sum, out_.data() + r * hidden_, sum, hidden_);
      ops_.kernels().add(x + r * hidden_, sum, x + r * hidden_, hidden_);
    }
  });
  clock.add_to(times.expert_matmul);
  if (!numerics::all_finite(x, rows * hidden_)) return pass(damage(layer, index, ids_));
  return StepEnd::kDone;
}

Error FeedForward::damage(const LayerWeights& layer, std::int64_t index, std::span<const std::int32_t> experts) const {
  return find_damage(model_weights_, feed_forward_suspects(layer, index, experts), ops_.team());
}

// gate_ = silu(gate_) * up_
void FeedForward::activate(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kBlock = 1024;
  const std::int64_t count = rows * cols;
  ops_.team().parallel_for(ceil_div(count, kBlock), 2, [&](std::int64_t begin, std::int64_t end, int) {
    const std::int64_t first = begin * kBlock, n = std::min(end * kBlock, count) - first;
    ops_.kernels().swiglu(gate_.data() + first, up_.data() + first, gate_.data() + first, n);
  });
}

bool FeedForward::choose(const LayerWeights& layer, std::int64_t index, const Row& row, float* logits,
                         std::vector<std::int32_t>& ids, std::vector<float>& weights) const {
  ops_.kernels().sigmoid(logits, logits, expert_count_);
  const std::span<const float> scores(logits, static_cast<std::size_t>(expert_count_));
  if (!routing_) return numerics::route_sigmoid(scores, layer.router_bias.span(), rule_, ids, weights);
  if (numerics::argmax(scores) < 0) return false;
  routing_->choose(row.position, index, ids);
  numerics::router_weights(scores, rule_, ids, weights);
  return true;
}

Result<void> FeedForward::route(const LayerWeights& layer, std::int64_t index, std::span<const Row> step) {
  const auto rows = static_cast<std::int64_t>(step.size());
  chosen_.clear();
  weights_.clear();
  std::vector<float> weights;
  // A sigmoid makes a plausible score of an infinite one.
  if (!numerics::all_finite(router_.data(), rows * expert_count_)) return pass(damage(layer, index, {}));
  for (std::int64_t r = 0; r < rows; ++r) {
    if (!choose(layer, index, step[static_cast<std::size_t>(r)], router_.data() + r * expert_count_, ids_, weights))
      return pass(damage(layer, index, {}));
    chosen_.insert(chosen_.end(), ids_.begin(), ids_.end());
    weights_.insert(weights_.end(), weights.begin(), weights.end());
  }
  group_by_expert(rows);
  ids_.clear();
  id_rows_.clear();
  for (const Group& g : groups_) {
    ids_.push_back(g.expert);
    id_rows_.push_back(static_cast<std::int32_t>(g.slots));
  }
  return experts_->request(index, ids_, id_rows_);
}

// Each distinct expert once, in the order of first appearance, with the rows that chose it side by side.
void FeedForward::group_by_expert(std::int64_t rows) {
  groups_.clear();
  std::vector<std::int64_t> group_of(static_cast<std::size_t>(expert_count_), -1);
  for (const std::int32_t id : chosen_) {
    std::int64_t& group = group_of[static_cast<std::size_t>(id)];
    if (group < 0) {
      group = static_cast<std::int64_t>(groups_.size());
      groups_.push_back({id, 0, 0});
    }
    ++groups_[static_cast<std::size_t>(group)].slots;
  }
  std::int64_t next = 0;
  for (Group& g : groups_) {
    g.first_slot = next;
    next += g.slots;
    g.slots = 0;
  }
  slot_of_.resize(chosen_.size());
  slot_row_.resize(chosen_.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t rank = 0; rank < per_token_; ++rank) {
      const auto i = static_cast<std::size_t>(r * per_token_ + rank);
      Group& g = groups_[static_cast<std::size_t>(group_of[static_cast<std::size_t>(chosen_[i])])];
      slot_of_[i] = g.first_slot + g.slots++;
      slot_row_[static_cast<std::size_t>(slot_of_[i])] = r;
    }
}

// The next layer's router applied to this layer's state: right for about three experts in four, early enough to read.
void FeedForward::predict_next(const LayerWeights& next, std::int64_t index, std::span<const Row> step, const float* x) {
  const auto rows = static_cast<std::int64_t>(step.size());
  float* normed = predicted_.data();
  float* logits = normed + rows * hidden_;
  float* packed = predicted_.data() + (predicted_.size() - static_cast<std::size_t>(PackedRows::floats(rows, hidden_)));
  ops_.rms_norm(x, next.post_attention_norm.data(), eps_, normed, rows, hidden_);
  ops_.multiply({{next.router, ops_.pack(normed, hidden_, rows, hidden_, packed), logits, expert_count_}});
  std::vector<std::int32_t> ids, ranked;
  std::vector<float> weights;
  std::vector<bool> seen(static_cast<std::size_t>(expert_count_));
  for (std::int64_t r = 0; r < rows; ++r) {
    const Row& row = step[static_cast<std::size_t>(r)];
    if (routing_)
      routing_->predict(row.position, index, ranked);
    else if (!choose(next, index, row, logits + r * expert_count_, ranked, weights))
      return;  // the layer itself will report it
    for (const std::int32_t id : ranked) {
      if (seen[static_cast<std::size_t>(id)]) continue;
      seen[static_cast<std::size_t>(id)] = true;
      ids.push_back(id);
    }
  }
  experts_->predict(index, ids);
}

Result<StepEnd> FeedForward::run_experts(std::int64_t rows, PhaseTimes& times, PhaseClock& clock, const KeepGoing& keep_going) {
  std::vector<ExpertSource::Ready> batch;
  const auto release = [&] {
    for (const auto& ready : batch) experts_->release(ready.index);
    batch.clear();
  };
  for (;;) {
    // Whatever is there now is computed together; waiting happens only with nothing in hand.
    const bool wait = batch.empty();
    if (wait && keep_going && !keep_going()) return StepEnd::kStopped;
    auto ready = experts_->next(wait);
    if (wait) clock.add_to(times.expert_wait);
    if (!ready) {
      release();
      return pass(std::move(ready).error());
    }
    if (*ready) {
      batch.push_back(**ready);
      continue;
    }
    if (batch.empty()) return StepEnd::kDone;
    compute(batch, rows);
    release();
    clock.add_to(times.expert_matmul);
  }
}

void FeedForward::compute(std::span<const ExpertSource::Ready> batch, std::int64_t rows) {
  const auto group = [&](const ExpertSource::Ready& ready) -> const Group& { return groups_[ready.index]; };
  const std::int64_t packed_hidden = PackedRows::floats(1, hidden_), packed_act = PackedRows::floats(1, intermediate_);
  const auto count = static_cast<std::int64_t>(batch.size());
  const bool one_row = rows == 1;  // then every expert reads the same packed input
  if (!one_row) {
    ops_.team().parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t b = begin; b < end; ++b) {
        const Group& g = group(batch[static_cast<std::size_t>(b)]);
        for (std::int64_t s = g.first_slot; s < g.first_slot + g.slots; ++s) {
          const float* source = normed_.data() + slot_row_[static_cast<std::size_t>(s)] * hidden_;
          std::copy(source, source + hidden_, gathered_.data() + s * hidden_);
        }
        ops_.pack(gathered_.data() + g.first_slot * hidden_, hidden_, g.slots, hidden_,
                  packed_in_.data() + g.first_slot * packed_hidden);
      }
    });
  }
  std::vector<Product> products;
  for (const auto& ready : batch) {
    const Group& g = group(ready);
    const PackedRows x = one_row ? input_ : PackedRows{packed_in_.data() + g.first_slot * packed_hidden, g.slots, hidden_};
    products.push_back({ready.weights.gate, x, expert_gate_.data() + g.first_slot * intermediate_, intermediate_});
    products.push_back({ready.weights.up, x, expert_up_.data() + g.first_slot * intermediate_, intermediate_});
  }
  ops_.multiply(products);
  products.clear();
  ops_.team().parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t b = begin; b < end; ++b) {
      const Group& g = group(batch[static_cast<std::size_t>(b)]);
      float* act = expert_gate_.data() + g.first_slot * intermediate_;
      ops_.kernels().swiglu(act, expert_up_.data() + g.first_slot * intermediate_, act, g.slots * intermediate_);
      ops_.pack(act, intermediate_, g.slots, intermediate_, packed_expert_act_.data() + g.first_slot * packed_act);
    }
  });
  for (const auto& ready : batch) {
    const Group& g = group(ready);
    products.push_back({ready.weights.down,
                        {packed_expert_act_.data() + g.first_slot * packed_act, g.slots, intermediate_},
                        expert_out_.data() + g.first_slot * hidden_,
                        hidden_});
  }
  ops_.multiply(products);
}

}  // namespace colibri

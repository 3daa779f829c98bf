// Routed experts: moe_block, and its begin and end.
#include <algorithm>

#include "capi/moe_work.h"

namespace colibri::capi {
namespace {

constexpr std::int64_t kMostSlots = std::int64_t{1} << 20;
constexpr std::int64_t kMostNumbers = std::int64_t{1} << 34;

std::uint64_t lay_out(MoeWork& w, gpu::Address memory) {
  gpu::Placer p(memory);
  const auto table_bytes = static_cast<std::uint64_t>(w.shape.experts) * sizeof(gpu::ExpertEntry);
  const std::int64_t numbers = w.rows * w.shape.hidden;
  w.tables = p.take(table_bytes);
  w.late_table = p.take(table_bytes);
  w.chosen_at = p.take(static_cast<std::uint64_t>(w.slots()) * sizeof(std::int32_t));
  w.x_at = p.floats(numbers);
  w.weights_at = p.floats(w.slots());
  w.residual_at = p.floats(numbers);
  w.shared_at = p.floats(numbers);
  w.groups_at = p.take(gpu::expert_groups_bytes(w.shape, w.rows));
  w.act = p.floats(w.slots() * w.shape.intermediate);
  w.out = p.floats(w.slots() * w.shape.hidden);
  w.y = p.floats(numbers);
  w.damage = p.floats(1);
  return p.used();
}

// Fills a table of the device; the formats of its experts go into shape.
void fill_table(gpu::Encoder& e, WorkLease& memory, gpu::Address at, const std::vector<std::int32_t>& distinct,
                const std::vector<Expert>& table, gpu::ExpertShape& shape) {
  memory->put(at, nullptr, table.size() * sizeof(gpu::ExpertEntry));
  auto* entries = memory->block.host<gpu::ExpertEntry>(at);
  for (const std::int32_t id : distinct) {
    const Expert& x = table[static_cast<std::size_t>(id)];
    if (!x.there) continue;
    entries[id] = {gpu::matrix_args(e, x.gate), gpu::matrix_args(e, x.up), gpu::matrix_args(e, x.down)};
    shape.gate = x.gate.format;
    shape.up = x.up.format;
    shape.down = x.down.format;
  }
}

void encode_experts(gpu::Encoder& e, const MoeWork& w, const gpu::ExpertShape& shape, gpu::Address table) {
  gpu::expert_swiglu(e, shape, table, w.groups(), {w.x_at, w.rows, shape.hidden, shape.hidden}, w.act);
  e.barrier();
  gpu::expert_down(e, shape, table, w.groups(), w.rows, w.act, w.out);
  e.barrier();
}

void encode_sums(gpu::Encoder& e, const MoeWork& w) {
  gpu::combine_experts(e, w.shape, w.groups(), w.rows, w.weights_at, w.out, w.shared.empty() ? 0 : w.shared_at, w.residual_at,
                       w.y, w.damage);
}

bool any_there(const std::vector<Expert>& table) {
  return std::any_of(table.begin(), table.end(), [](const Expert& e) { return e.there; });
}

// Those of `table` that rows chose, checked.
Outcome<std::vector<Expert>> read_table(const Memory& memory, const coli_metal_expert* table, const MoeWork& w,
                                        const std::vector<Expert>* skip) {
  std::vector<Expert> out(static_cast<std::size_t>(w.shape.experts));
  const Expert* first = nullptr;
  for (const std::int32_t id : w.distinct) {
    const auto i = static_cast<std::size_t>(id);
    if (skip != nullptr && (*skip)[i].there) continue;
    COLIBRI_TRY(expert, memory.expert(table[i], id, w.shape.hidden, w.shape.intermediate));
    out[i] = expert;
    if (!expert.there) continue;
    if (first == nullptr) first = &out[i];
    COLIBRI_CHECK(check_same_formats(*first, expert, id));
  }
  return out;
}

}  // namespace

Outcome<std::unique_ptr<MoeWork>> Backend::moe_prepare(const coli_metal_moe* moe) {
  COLIBRI_CHECK(check_pointer(moe, "moe"));
  COLIBRI_CHECK(check_range(moe->hidden, 1, kMostExtent, "moe.hidden"));
  COLIBRI_CHECK(check_range(moe->intermediate, 1, kMostExtent, "moe.intermediate"));
  COLIBRI_CHECK(check_range(moe->experts, 1, 65536, "moe.experts"));
  COLIBRI_CHECK(check_range(moe->per_token, 1, moe->experts, "moe.per_token"));
  COLIBRI_CHECK(check_range(moe->rows, 1, 65536, "moe.rows"));
  const std::int64_t slots = moe->rows * moe->per_token, numbers = moe->rows * moe->hidden;
  if (slots >= kMostSlots || slots * std::max(moe->hidden, moe->intermediate) > kMostNumbers)
    return bad("moe.rows: expected rows * per_token below {} and at most {} numbers of activations, found {} rows", kMostSlots,
               kMostNumbers, moe->rows);
  COLIBRI_CHECK(check_pointer(moe->table, "moe.table"));
  COLIBRI_CHECK(check_floats(moe->x, "moe.x"));
  COLIBRI_CHECK(check_pointer(moe->chosen, "moe.chosen"));
  COLIBRI_CHECK(check_floats(moe->weights, "moe.weights"));
  if (moe->residual != nullptr) COLIBRI_CHECK(check_floats(moe->residual, "moe.residual"));
  if (moe->shared != nullptr) COLIBRI_CHECK(check_floats(moe->shared, "moe.shared"));
  COLIBRI_CHECK(check_choice(moe->chosen, moe->rows, moe->per_token, moe->experts));

  auto work = std::make_unique<MoeWork>();
  MoeWork& w = *work;
  w.shape = {moe->hidden, moe->intermediate, moe->experts, moe->per_token, {}, {}, {}};
  w.rows = moe->rows;
  const Stopwatch watch(counters_.scatter_seconds);
  w.chosen.assign(moe->chosen, moe->chosen + slots);
  w.distinct = w.chosen;
  std::sort(w.distinct.begin(), w.distinct.end());
  w.distinct.erase(std::unique(w.distinct.begin(), w.distinct.end()), w.distinct.end());
  COLIBRI_TRY(table, read_table(memory_, moe->table, w, nullptr));
  w.table = std::move(table);
  w.x.assign(moe->x, moe->x + numbers);
  w.weights.assign(moe->weights, moe->weights + slots);
  if (moe->residual != nullptr) w.residual.assign(moe->residual, moe->residual + numbers);
  if (moe->shared != nullptr) w.shared.assign(moe->shared, moe->shared + numbers);
  return work;
}

void Backend::moe_submit(MoeWork& w) {
  w.complete = std::all_of(w.distinct.begin(), w.distinct.end(),
                           [&](std::int32_t id) { return w.table[static_cast<std::size_t>(id)].there; });
  w.memory = lease(lay_out(w, 0));
  if (!w.memory) return;
  lay_out(w, w.memory->address());
  {
    const Stopwatch watch(counters_.scatter_seconds);
    WorkLease& m = *w.memory;
    const std::uint64_t bytes = float_bytes(w.rows * w.shape.hidden);
    m->put(w.chosen_at, w.chosen.data(), w.chosen.size() * sizeof(std::int32_t));
    m->put(w.x_at, w.x.data(), bytes);
    m->put(w.weights_at, w.weights.data(), float_bytes(w.slots()));
    m->put(w.residual_at, w.residual.empty() ? nullptr : w.residual.data(), bytes);
    if (!w.shared.empty()) m->put(w.shared_at, w.shared.data(), bytes);
    // What no expert writes counts as zeros.
    if (!w.complete) m->put(w.out, nullptr, float_bytes(w.slots() * w.shape.hidden));
    m->put(w.damage, nullptr, sizeof(std::uint32_t));
  }
  w.pending = submit([&](gpu::Encoder& e) {
    gpu::ExpertShape shape = w.shape;
    fill_table(e, *w.memory, w.tables, w.distinct, w.table, shape);
    gpu::group_by_expert(e, shape, w.rows, w.chosen_at, w.groups());
    e.barrier();
    if (any_there(w.table)) encode_experts(e, w, shape, w.tables);
    if (w.complete) encode_sums(e, w);
  });
  w.on_gpu = w.pending.has_value();
}

// Afterwards nothing is in flight and the experts of `table` are needed no longer.
void Backend::moe_settle(MoeWork& w) {
  if (w.pending) {
    w.on_gpu = finish(*w.pending);
    w.pending.reset();
  }
  if (w.on_gpu || !w.outputs.empty()) return;
  const std::int64_t hidden = w.shape.hidden;
  w.outputs.assign(static_cast<std::size_t>(w.slots() * hidden), 0.0f);
  for (std::int64_t i = 0; i < w.slots(); ++i) {
    const Expert& expert = w.table[static_cast<std::size_t>(w.chosen[static_cast<std::size_t>(i)])];
    if (expert.there) cpu_.expert(expert, w.x.data() + i / w.shape.per_token * hidden, w.outputs.data() + i * hidden);
  }
}

Outcome<> Backend::moe_finish(MoeWork& w, const coli_metal_expert* late_table, float* y) {
  COLIBRI_CHECK(check_floats(y, "y"));
  std::vector<Expert> late(static_cast<std::size_t>(w.shape.experts));
  if (late_table != nullptr && !w.complete) {
    COLIBRI_TRY(read, read_table(memory_, late_table, w, &w.table));
    late = std::move(read);
  }
  const auto there = [&](std::int32_t id) {
    return w.table[static_cast<std::size_t>(id)].there || late[static_cast<std::size_t>(id)].there;
  };
  const auto missing =
      static_cast<std::uint64_t>(std::count_if(w.chosen.begin(), w.chosen.end(), [&](std::int32_t id) { return !there(id); }));
  moe_settle(w);
  const std::int64_t hidden = w.shape.hidden;
  counters_.experts_missing += missing;
  bool done = w.on_gpu && w.complete;
  if (w.on_gpu && !w.complete) {
    auto rest = submit([&](gpu::Encoder& e) {
      if (any_there(late)) {
        gpu::ExpertShape shape = w.shape;
        fill_table(e, *w.memory, w.late_table, w.distinct, late, shape);
        encode_experts(e, w, shape, w.late_table);
      }
      encode_sums(e, w);
    });
    done = rest && finish(*rest);
  }
  if (done) {
    const Stopwatch watch(counters_.scatter_seconds);
    (*w.memory)->get(y, w.y, float_bytes(w.rows * hidden));
    succeeded(static_cast<std::uint64_t>(w.slots()) - missing);
    return {};
  }

  // What the GPU had finished before is still good: the outputs of the experts that begin had.
  if (w.on_gpu) {
    w.outputs.assign(static_cast<std::size_t>(w.slots() * hidden), 0.0f);
    const auto* slot_of = (*w.memory)->block.host<std::int32_t>(w.groups().slot_of);
    for (std::int64_t i = 0; i < w.slots(); ++i)
      if (w.table[static_cast<std::size_t>(w.chosen[static_cast<std::size_t>(i)])].there)
        (*w.memory)->get(w.outputs.data() + i * hidden, w.out + float_bytes(slot_of[i] * hidden), float_bytes(hidden));
  }
  std::vector<const float*> of_row(static_cast<std::size_t>(w.shape.per_token));
  for (std::int64_t r = 0; r < w.rows; ++r) {
    for (std::int64_t rank = 0; rank < w.shape.per_token; ++rank) {
      const std::int64_t i = r * w.shape.per_token + rank;
      float* out = w.outputs.data() + i * hidden;
      const Expert& expert = late[static_cast<std::size_t>(w.chosen[static_cast<std::size_t>(i)])];
      if (expert.there) cpu_.expert(expert, w.x.data() + r * hidden, out);
      of_row[static_cast<std::size_t>(rank)] = out;
    }
    CpuBlocks::combine(of_row, w.weights.data() + r * w.shape.per_token,
                       w.shared.empty() ? nullptr : w.shared.data() + r * hidden,
                       w.residual.empty() ? nullptr : w.residual.data() + r * hidden, hidden, y + r * hidden);
  }
  return {};
}

Outcome<> Backend::moe_block(const coli_metal_moe* moe, float* y) {
  COLIBRI_CHECK(check_floats(y, "y"));
  COLIBRI_TRY(work, moe_prepare(moe));
  moe_submit(*work);
  return moe_finish(*work, nullptr, y);
}

Outcome<coli_metal_moe_work*> Backend::moe_begin(const coli_metal_moe* moe) {
  COLIBRI_TRY(work, moe_prepare(moe));
  moe_submit(*work);
  auto* handle = reinterpret_cast<coli_metal_moe_work*>(work.get());
  open_.emplace(handle, std::move(work));
  return handle;
}

Outcome<> Backend::moe_end(coli_metal_moe_work* handle, const coli_metal_expert* late, float* y) {
  const auto found = open_.find(handle);
  if (found == open_.end())
    return bad("work: expected what coli_metal_moe_block_begin gave and no end has taken, found {}",
               static_cast<const void*>(handle));
  MoeWork& work = *found->second;
  if (y == nullptr) {
    if (work.pending) work.pending->wait();
  } else {
    COLIBRI_CHECK(moe_finish(work, late, y));
  }
  open_.erase(found);
  return {};
}

}  // namespace colibri::capi

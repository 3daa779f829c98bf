#include "inventory.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "format/packed.h"

namespace colibri {
namespace {

// Parts in the order of the table.
constexpr std::array<std::string_view, 11> kParts = {"embedding", "attention", "indexer",        "norms",
                                                     "dense MLP", "router",    "shared experts", "routed experts",
                                                     "MTP layer", "head",      "other"};

constexpr std::int32_t kVectorGroup = 16;  // src/cpu/superblock.h: other groups go to the scalar kernels

struct Name {
  std::int64_t layer = -1;
  std::string_view rest;  // after "model.layers.N."
};

Name split_name(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return {-1, name};
  std::string_view rest = name.substr(kPrefix.size());
  std::int64_t layer = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') return {-1, name};
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
  return {layer, rest};
}

bool has(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

bool is_routed_expert(const Name& name) { return name.rest.starts_with("mlp.experts."); }

std::string_view part_of(const Name& name, const ModelConfig* config) {
  if (name.rest == "model.embed_tokens.weight") return "embedding";
  if (name.rest == "lm_head.weight") return "head";
  if (is_routed_expert(name)) return "routed experts";
  if (config && name.layer >= config->layers) return "MTP layer";
  if (has(name.rest, "self_attn.indexer.")) return "indexer";
  if (has(name.rest, "norm.")) return "norms";
  if (name.rest.starts_with("self_attn.")) return "attention";
  if (name.rest.starts_with("mlp.shared_experts.")) return "shared experts";
  if (name.rest.starts_with("mlp.gate.")) return "router";
  if (name.rest.starts_with("mlp.")) return "dense MLP";
  return "other";
}

// [rows, cols] of a matrix, which blobs of quantised weights do not say themselves.
std::optional<std::pair<std::int64_t, std::int64_t>> matrix_shape(const Name& name, const ModelConfig& c) {
  const std::string_view rest = name.rest;
  const MlaShape& a = c.mla;
  const std::int64_t d = c.hidden_size;
  const auto ends = [&](std::string_view tail) { return rest.ends_with(tail); };
  if (rest == "model.embed_tokens.weight" || rest == "lm_head.weight") return {{c.vocab_size, d}};
  if (ends("eh_proj.weight")) return {{d, 2 * d}};
  if (ends("q_a_proj.weight")) return {{a.q_lora_rank, d}};
  if (ends("q_b_proj.weight")) return {{c.heads * a.qk_head_dim(), a.q_lora_rank}};
  if (ends("kv_a_proj_with_mqa.weight")) return {{a.cache_dim(), d}};
  if (ends("kv_b_proj.weight")) return {{c.heads * (a.qk_nope_head_dim + a.v_head_dim), a.kv_lora_rank}};
  if (ends("o_proj.weight")) return {{d, c.heads * a.v_head_dim}};
  if (ends("indexer.wq_b.weight")) return {{c.indexer.heads * c.indexer.head_dim, a.q_lora_rank}};
  if (ends("indexer.wk.weight")) return {{c.indexer.head_dim, d}};
  if (ends("indexer.weights_proj.weight")) return {{c.indexer.heads, d}};
  if (ends("mlp.gate.weight")) return {{c.experts, d}};
  const std::int64_t inner = is_routed_expert(name)                    ? c.moe_intermediate_size
                             : rest.starts_with("mlp.shared_experts.") ? c.moe_intermediate_size * c.shared_experts
                                                                       : c.intermediate_size;
  if (ends("gate_proj.weight") || ends("up_proj.weight")) return {{inner, d}};
  if (ends("down_proj.weight")) return {{d, inner}};
  return std::nullopt;
}

std::int64_t elements(const TensorInfo& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= size;
  return count;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string describe_format(const Matrix& m) {
  std::string name(format_name(m.format));
  if (m.format == WeightFormat::kInt4Grouped) name += fmt::format(" g{}", m.group);
  return name;
}

// Such groups are in no container and nothing here writes them, but a packed file may state any.
bool runs_slowly(const Matrix& m) {
  return m.format == WeightFormat::kInt4Grouped && m.group % kVectorGroup != 0 && m.group < m.cols;
}

// One expert of the packed layout counts as one tensor of all its weights.
std::string describe_format(const PackedExpert& e) {
  const std::string gate = describe_format(e.gate.matrix), down = describe_format(e.down.matrix);
  return (gate == down ? gate : gate + ", " + down) + " packed";
}

std::int64_t parameters_of(const PackedExpert& e) {
  return 2 * e.gate.matrix.rows * e.gate.matrix.cols + e.down.matrix.rows * e.down.matrix.cols;
}

}  // namespace

Inventory take_inventory(const Checkpoint& checkpoint, const ModelConfig* config) {
  Inventory out;
  std::map<std::pair<std::size_t, std::string>, InventoryRow> rows;
  std::int64_t unresolved = 0;
  std::string first_problem;
  std::set<std::string> slow;  // formats
  std::map<std::string, PackedExpert, std::less<>> records;
  if (const auto packed = PackedIndex::open(checkpoint)) {
    for (PackedExpert& expert : packed->all()) records.emplace(expert.name, std::move(expert));
  } else {
    out.notes.push_back(packed.error().message);
  }
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    // Scales count with the weights they belong to.
    const auto belongs_to_other = [&](std::string_view tail) {
      return tensor.name.ends_with(tail) &&
             checkpoint.find(std::string_view(tensor.name).substr(0, tensor.name.size() - tail.size()));
    };
    if (belongs_to_other(".qs") || belongs_to_other("_scale_inv")) continue;
    const TensorInfo* scales = checkpoint.find(tensor.name + ".qs");
    if (!scales) scales = checkpoint.find(tensor.name + "_scale_inv");

    const Name name = split_name(tensor.name);
    std::string format = lower(dtype_name(tensor.dtype));
    std::int64_t parameters = elements(tensor);
    if (const auto record = records.find(tensor.name); record != records.end()) {
      format = describe_format(record->second);
      for (const MatrixSource* m : {&record->second.gate, &record->second.up, &record->second.down})
        if (runs_slowly(m->matrix)) slow.insert(describe_format(m->matrix));
      parameters = parameters_of(record->second);
    } else if (tensor.dtype == DType::kU8) {
      parameters = 0;
      if (const auto shape = config ? matrix_shape(name, *config) : std::nullopt) {
        if (auto source = checkpoint.find_matrix(tensor.name, shape->first, shape->second)) {
          format = describe_format(source->matrix);
          parameters = shape->first * shape->second;
        } else {
          if (unresolved++ == 0) first_problem = source.error().message;
        }
      }
    } else if (tensor.dtype == DType::kF8E4M3 && scales) {
      format = format_name(WeightFormat::kF8Block128);
    }

    const std::string_view part = part_of(name, config);
    const auto order = static_cast<std::size_t>(std::find(kParts.begin(), kParts.end(), part) - kParts.begin());
    InventoryRow& row = rows[{order, format}];
    row.part = part;
    row.format = format;
    row.tensors += 1;
    row.parameters += parameters;
    const std::uint64_t bytes = tensor.range.bytes + (scales ? scales->range.bytes : 0);
    row.bytes += bytes;
    out.parameters += parameters;
    out.bytes += bytes;
    if (is_routed_expert(name)) out.expert_bytes += bytes;
  }
  for (const std::string& format : slow)
    out.notes.push_back(
        fmt::format("{} runs slowly: the fast kernels want groups of a multiple of {} columns; the results are the same", format,
                    kVectorGroup));
  for (auto& [key, row] : rows) out.rows.push_back(std::move(row));
  if (unresolved > 0)
    out.notes.push_back(fmt::format("the format of {} tensors could not be told; the first: {}", unresolved, first_problem));
  return out;
}

}  // namespace colibri

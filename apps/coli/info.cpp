// coli info: what a model directory holds, from its headers alone.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "command.h"
#include "format/synthetic_routing.h"
#include "inventory.h"
#include "locate.h"
#include "model/kv_cache.h"
#include "model/weights.h"
#include "options.h"
#include "report.h"

namespace colibri {
namespace {

struct InfoFlags {
  std::string dir;
  bool json = false;
};

std::uint64_t cache_bytes_per_token(const ModelConfig& config) {
  return KvCache::bytes_per_position(config, config.indexer_full);
}

std::int64_t count(const std::vector<bool>& flags) { return std::count(flags.begin(), flags.end(), true); }

void print_config(const ModelConfig& c) {
  const std::int64_t sparse = count(c.sparse);
  fmt::print("architecture  {}: {} layers ({} dense, {} with experts){}, hidden {}, {} heads, vocabulary {}\n", c.model_type,
             c.layers, c.layers - sparse, sparse, c.mtp_layers > 0 ? fmt::format(", {} MTP", c.mtp_layers) : "",
             with_commas(c.hidden_size), c.heads, with_commas(c.vocab_size));
  fmt::print("attention     MLA: query rank {}, latent {} + rope {}, head {} + {}, value {}\n", c.mla.q_lora_rank,
             c.mla.kv_lora_rank, c.mla.qk_rope_head_dim, c.mla.qk_nope_head_dim, c.mla.qk_rope_head_dim, c.mla.v_head_dim);
  if (c.indexer.top_k > 0)
    fmt::print("indexer       {} heads of {}, top {}; own selection in {} of {} layers\n", c.indexer.heads, c.indexer.head_dim,
               with_commas(c.indexer.top_k), count(c.indexer_full), c.layers);
  if (c.experts > 0)
    fmt::print("experts       {} a layer, {} a token, {} shared; {} router\n", c.experts, c.experts_per_token, c.shared_experts,
               c.router == RouterKind::kSigmoid ? "sigmoid" : "softmax");
  fmt::print("context       {} tokens; the cache takes {} a token\n", with_commas(c.max_positions),
             human_bytes(cache_bytes_per_token(c)));
}

void print_inventory(const Inventory& inventory) {
  fmt::print("\n{:<16}{:<18}{:>9}{:>18}{:>13}{:>8}\n", "part", "format", "tensors", "parameters", "size", "bits");
  const auto line = [](std::string_view part, std::string_view format, std::int64_t tensors, std::int64_t parameters,
                       std::uint64_t bytes) {
    fmt::print("{:<16}{:<18}{:>9}{:>18}{:>13}{:>8}\n", part, format, with_commas(tensors),
               parameters > 0 ? with_commas(parameters) : "?", human_bytes(bytes),
               parameters > 0 ? fmt::format("{:.2f}", 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters)) : "?");
  };
  std::int64_t tensors = 0;
  for (const InventoryRow& row : inventory.rows) {
    line(row.part, row.format, row.tensors, row.parameters, row.bytes);
    tensors += row.tensors;
  }
  line("all", "", tensors, inventory.parameters, inventory.bytes);
  fmt::print("\nrouted experts {}, everything else {}\n", human_bytes(inventory.expert_bytes),
             human_bytes(inventory.bytes - inventory.expert_bytes));
}

nlohmann::json config_json(const ModelConfig& c) {
  return {
      {"model_type", c.model_type},
      {"layers", c.layers},
      {"sparse_layers", count(c.sparse)},
      {"mtp_layers", c.mtp_layers},
      {"hidden_size", c.hidden_size},
      {"heads", c.heads},
      {"vocab_size", c.vocab_size},
      {"max_positions", c.max_positions},
      {"q_lora_rank", c.mla.q_lora_rank},
      {"kv_lora_rank", c.mla.kv_lora_rank},
      {"indexer_top_k", c.indexer.top_k},
      {"indexer_full_layers", count(c.indexer_full)},
      {"experts", c.experts},
      {"experts_per_token", c.experts_per_token},
      {"shared_experts", c.shared_experts},
      {"cache_bytes_per_token", cache_bytes_per_token(c)},
  };
}

int info(const InfoFlags& flags) {
  auto dir = find_model(flags.dir);
  if (!dir) return fail_with(dir.error());
  auto checkpoint = Checkpoint::open(*dir);
  if (!checkpoint) return fail_with(checkpoint.error());
  const auto config = ModelConfig::load(*dir);
  const Inventory inventory = take_inventory(*checkpoint, config ? &*config : nullptr);
  std::vector<std::string> notes = inventory.notes;
  for (const std::string& notice : checkpoint->notices()) notes.push_back(notice);
  if (const auto routing = load_synthetic_routing(*dir); routing && *routing)
    notes.insert(notes.begin(), "a synthetic model: random weights, its text is noise");
  // Runnable: the engine finds every tensor it needs in a shape and format it knows. No matrix is read for that.
  std::string problem;
  if (!config)
    problem = config.error().message;
  else if (const auto weights = ModelWeights::plan(*checkpoint, *config); !weights)
    problem = weights.error().message;
  if (!problem.empty()) notes.insert(notes.begin(), "colibri cannot run this model: " + problem);
  std::uint64_t file_bytes = 0;
  for (const Checkpoint::Shard& shard : checkpoint->shards()) file_bytes += shard.file_bytes;

  if (flags.json) {
    nlohmann::json out = {
        {"dir", dir->string()},
        {"runnable", problem.empty()},
        {"shards", checkpoint->shards().size()},
        {"file_bytes", file_bytes},
        {"parameters", inventory.parameters},
        {"bytes", inventory.bytes},
        {"expert_bytes", inventory.expert_bytes},
        {"notes", notes},
        {"parts", nlohmann::json::array()},
    };
    if (config) out["config"] = config_json(*config);
    for (const InventoryRow& row : inventory.rows)
      out["parts"].push_back({{"part", row.part},
                              {"format", row.format},
                              {"tensors", row.tensors},
                              {"parameters", row.parameters},
                              {"bytes", row.bytes}});
    print_json(out);
    return kExitOk;
  }
  fmt::print("model         {}\n", dir->string());
  if (config) print_config(*config);
  fmt::print("files         {}, {}\n", checkpoint->shards().size(), human_bytes(file_bytes));
  print_inventory(inventory);
  for (const std::string& note : notes) fmt::print("note: {}\n", one_line(note));
  return kExitOk;
}

}  // namespace

Action declare_info(CommandLine& line) {
  auto flags = std::make_shared<InfoFlags>();
  line.option("DIR,-m,--model", flags->dir, "Model directory; default: the demo model").from_environment("COLI_MODEL");
  line.flag("--json", flags->json, "One JSON object instead of text");
  return [flags] { return info(*flags); };
}

}  // namespace colibri

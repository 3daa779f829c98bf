#include "loaded_model.h"

#include <algorithm>
#include <cstdio>

#include "base/thread_team.h"
#include "options.h"
#include "report.h"

namespace colibri {
namespace {

std::vector<std::int32_t> stop_ids(const ModelConfig& config, const Result<ChatTemplate>& chat) {
  std::vector<std::int32_t> ids = config.eos_ids;
  if (chat) ids.insert(ids.end(), chat->stop_ids().begin(), chat->stop_ids().end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

Result<LoadedModel> LoadedModel::open(const EngineOptions& options) {
  // The tokenizer first: it is small, and a mistake there should not cost a long load.
  COLIBRI_TRY(tokenizer, Tokenizer::load(options.model / "tokenizer.json"));
  COLIBRI_TRY(engine, Engine::open(options));
  const ModelConfig& config = engine->config();
  if (tokenizer.vocab_size() > config.vocab_size)
    return fail("{}: the tokenizer has ids up to {}, the model only {} (config.json, vocab_size)",
                (options.model / "tokenizer.json").string(), tokenizer.vocab_size() - 1, config.vocab_size);
  auto chat = ChatTemplate::for_model(config.model_type, tokenizer);
  std::vector<std::int32_t> stops = stop_ids(config, chat);
  return LoadedModel{std::move(engine), std::move(tokenizer), std::move(chat), std::move(stops)};
}

void save_usage(const Engine& engine) {
  if (environment_off("USAGE_SAVE")) return;
  if (const auto saved = engine.save_usage(); !saved) print_note("the usage history is not kept: " + saved.error().message);
}

void print_notices(const Engine& engine) {
  const std::vector<std::string> about_files = engine.checkpoint().notices();
  for (const std::string& notice : engine.weights().notices)
    if (std::find(about_files.begin(), about_files.end(), notice) == about_files.end()) print_note(notice);
  if (engine.routing())
    print_note("synthetic weights and routing (colibri_synthetic_routing in config.json): for measuring, the text means nothing");
  if (engine.verifies() && !engine.packed())
    print_note("--verify: this model has no checksums; `coli convert SRC DST --pack` makes a copy that has them");
  if (engine.stand_ins()) print_note("--stand-in-experts: the text is wrong, only the times are meant");
  for (const std::string& notice : engine.notices()) print_note(notice);
  if (const int cpus = available_cpus(); engine.threads() > cpus)
    print_note(fmt::format("{} threads share the {} CPUs this process may use, which is slower than --threads {}",
                           engine.threads(), cpus, cpus));
}

}  // namespace colibri

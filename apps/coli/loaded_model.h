// Everything a command needs to turn text into text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace colibri {

struct LoadedModel {
  std::unique_ptr<Engine> engine;
  Tokenizer tokenizer;
  Result<ChatTemplate> chat;        // or why there is none
  std::vector<std::int32_t> stops;  // the model's eos ids and the template's

  static Result<LoadedModel> open(const EngineOptions& options);
};

// What a user should know about the model, on stderr. How single tensors were read is left to `coli info`.
void print_notices(const Engine& engine);
// At the end of a run: the history of used experts, unless USAGE_SAVE=0. A failure is a note.
void save_usage(const Engine& engine);

}  // namespace colibri

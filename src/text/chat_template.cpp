#include "text/chat_template.h"

#include <algorithm>
#include <array>

namespace colibri {
namespace {

// A family's template as data. In each string the texts of `tokens` are special tokens and the rest is ordinary text.
struct Family {
  std::array<std::string_view, 4> model_types{};
  std::array<std::string_view, 12> tokens{};  // the tokenizer must have each; a token that begins another stands behind it
  std::string_view prefix{};
  std::string_view system_open{}, system_close{};
  std::string_view user_open{}, user_close{};
  std::string_view assistant_open{}, assistant_close{};
  std::string_view reasoning_open{}, reasoning_close{};  // in the history, after assistant_open; the reasoning may be empty
  std::string_view tool_run_open{};                      // once before tool results that follow each other
  std::string_view tool_open{}, tool_close{};
  std::array<std::string_view, 4> effort{};  // with thinking, behind the prefix: low, medium, high, max
  std::string_view answer{}, thinking_answer{};
  std::array<std::string_view, 4> stops{};  // those that the tokenizer has
};

constexpr Family kFamilies[] = {
    {
        .model_types = {"glm_moe_dsa"},
        .tokens = {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>",
                   "<tool_response>", "</tool_response>"},
        .prefix = "[gMASK]<sop>",
        .system_open = "<|system|>",
        .user_open = "<|user|>",
        .assistant_open = "<|assistant|>",
        .reasoning_open = "<think>",
        .reasoning_close = "</think>",
        .tool_run_open = "<|observation|>",
        .tool_open = "<tool_response>",
        .tool_close = "</tool_response>",
        .effort = {"<|system|>Reasoning Effort: Low", "<|system|>Reasoning Effort: Medium", "<|system|>Reasoning Effort: High",
                   "<|system|>Reasoning Effort: Max"},
        .answer = "<|assistant|><think></think>",
        .thinking_answer = "<|assistant|><think>",
        .stops = {"<|endoftext|>", "<|user|>", "<|observation|>"},
    },
};

const Family* find_family(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    const auto end = family.model_types.end();
    if (!model_type.empty() && std::find(family.model_types.begin(), end, model_type) != end) return &family;
  }
  return nullptr;
}

}  // namespace

// Turns a family's strings into parts for one tokenizer.
class ChatTemplateBuilder {
 public:
  static Result<ChatTemplate> build(const Family& family, const Tokenizer& tokenizer) {
    for (const std::string_view token : family.tokens) {
      if (!token.empty() && !tokenizer.token_id(token)) {
        return fail("the chat template of {} needs the token {}, which the tokenizer does not have", family.model_types[0],
                    token);
      }
    }
    const auto parts = [&](std::string_view text) { return split(family, tokenizer, text); };
    ChatTemplate out;
    for (const ChatTemplate::Part& part : parts(family.prefix)) out.prefix_.push_back(part.token);
    out.system_ = {parts(family.system_open), parts(family.system_close)};
    out.user_ = {parts(family.user_open), parts(family.user_close)};
    out.assistant_open_ = parts(family.assistant_open);
    out.assistant_close_ = parts(family.assistant_close);
    out.reasoning_ = {parts(family.reasoning_open), parts(family.reasoning_close)};
    out.tool_run_open_ = parts(family.tool_run_open);
    out.tool_ = {parts(family.tool_open), parts(family.tool_close)};
    std::transform(family.effort.begin(), family.effort.end(), out.effort_.begin(), parts);
    out.answer_ = parts(family.answer);
    out.thinking_answer_ = parts(family.thinking_answer);
    for (const std::string_view stop : family.stops) {
      if (stop.empty()) continue;
      if (const auto id = tokenizer.token_id(stop)) out.stop_ids_.push_back(*id);
    }
    return out;
  }

 private:
  static ChatTemplate::Parts split(const Family& family, const Tokenizer& tokenizer, std::string_view text) {
    ChatTemplate::Parts parts;
    while (!text.empty()) {
      const auto token = std::find_if(family.tokens.begin(), family.tokens.end(),
                                      [&](std::string_view t) { return !t.empty() && text.starts_with(t); });
      if (token != family.tokens.end()) {
        parts.push_back({*tokenizer.token_id(*token), {}});
        text.remove_prefix(token->size());
        continue;
      }
      if (parts.empty() || parts.back().token >= 0) parts.emplace_back();
      parts.back().text.push_back(text.front());
      text.remove_prefix(1);
    }
    return parts;
  }
};

Result<ChatTemplate> ChatTemplate::for_model(std::string_view model_type, const Tokenizer& tokenizer) {
  const Family* const family = find_family(model_type);
  if (family == nullptr) return fail("no chat template is built in for the model type \"{}\"", model_type);
  return ChatTemplateBuilder::build(*family, tokenizer);
}

std::vector<std::int32_t> ChatTemplate::render(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                                               const ChatOptions& options) const {
  std::vector<std::int32_t> ids = prefix_;
  std::string text;  // ordinary text not yet encoded
  const auto flush = [&] {
    const std::vector<std::int32_t> encoded = tokenizer.encode(text, false);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    text.clear();
  };
  const auto put = [&](const Parts& parts) {
    for (const Part& part : parts) {
      if (part.token < 0) {
        text += part.text;
      } else {
        flush();
        ids.push_back(part.token);
      }
    }
  };
  const auto put_turn = [&](const Turn& turn, std::string_view content) {
    put(turn.open);
    text += content;
    put(turn.close);
  };

  if (options.thinking) put(effort_[static_cast<std::size_t>(options.effort)]);
  bool tool_before = false;
  for (const ChatMessage& message : messages) {
    switch (message.role) {
      case Role::kSystem: put_turn(system_, message.content); break;
      case Role::kUser: put_turn(user_, message.content); break;
      case Role::kAssistant:
        put(assistant_open_);
        put_turn(reasoning_, message.reasoning);
        if (message.content_ids.empty()) {
          text += message.content;
        } else {
          flush();
          ids.insert(ids.end(), message.content_ids.begin(), message.content_ids.end());
        }
        put(assistant_close_);
        break;
      case Role::kTool:
        if (!tool_before) put(tool_run_open_);
        put_turn(tool_, message.content);
        break;
    }
    tool_before = message.role == Role::kTool;
  }
  put(options.thinking ? thinking_answer_ : answer_);
  flush();
  return ids;
}

}  // namespace colibri

// Chat templates, built in per family and chosen by model type (no Jinja at run time).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace colibri {

enum class Role : std::uint8_t { kSystem, kUser, kAssistant, kTool };

struct ChatMessage {
  Role role = Role::kUser;
  std::string content;
  std::string reasoning;  // an assistant's thinking, where it is kept in the history
  // The ids that the model gave for content, where they are known. They stand for it: encoding the text again may cut it
  // otherwise, and then what a cache holds of the conversation would not fit.
  std::vector<std::int32_t> content_ids{};
};

// How long to think, in families that can be told. Only with thinking.
enum class ReasoningEffort : std::uint8_t { kLow, kMedium, kHigh, kMax };

struct ChatOptions {
  bool thinking = false;
  ReasoningEffort effort = ReasoningEffort::kHigh;
};

class ChatTemplate {
 public:
  // An error when the family has no built-in template or the tokenizer lacks one of its special tokens.
  static Result<ChatTemplate> for_model(std::string_view model_type, const Tokenizer& tokenizer);

  // The ids a plain continuation starts with (GLM: [gMASK]<sop>).
  const std::vector<std::int32_t>& prefix() const { return prefix_; }
  // The whole conversation followed by the opening of the assistant's answer. Message text is never read for special
  // tokens: a user cannot write a role marker.
  std::vector<std::int32_t> render(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                                   const ChatOptions& options) const;
  // Ids that end an answer besides the model's eos ids.
  const std::vector<std::int32_t>& stop_ids() const { return stop_ids_; }

 private:
  // A stretch of the template: ids of special tokens and the ordinary text between them. The text is encoded together with
  // the message text beside it, as if the conversation were one string.
  struct Part {
    std::int32_t token = -1;  // -1: text
    std::string text;
  };
  using Parts = std::vector<Part>;
  struct Turn {
    Parts open, close;
  };
  friend class ChatTemplateBuilder;

  Turn system_, user_, tool_, reasoning_;
  Parts assistant_open_, assistant_close_;
  Parts tool_run_open_;          // once before each run of tool results
  std::array<Parts, 4> effort_;  // by ReasoningEffort
  Parts answer_, thinking_answer_;
  std::vector<std::int32_t> prefix_, stop_ids_;
};

}  // namespace colibri

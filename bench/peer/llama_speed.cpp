// How fast llama.cpp runs a GGUF model on the CPU: one prompt, then greedy tokens one by one.
//   llama_speed MODEL.gguf LIBRARY_DIR PROMPT_TOKENS NEW_TOKENS THREADS
// Prints one JSON object: prompt and decode tokens per second (all steps, and the second half of them).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void only_errors(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

int fail(const char* what) {
  std::fprintf(stderr, "llama_speed: %s\n", what);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return fail("usage: llama_speed MODEL.gguf LIBRARY_DIR PROMPT_TOKENS NEW_TOKENS THREADS");
  const int prompt = std::atoi(argv[3]), fresh = std::atoi(argv[4]), threads = std::atoi(argv[5]);
  if (prompt < 1 || fresh < 2 || threads < 1) return fail("expected at least 1 prompt token, 2 new tokens, 1 thread");
  llama_log_set(only_errors, nullptr);
  ggml_backend_load_all_from_path(argv[2]);
  llama_backend_init();
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  model_params.use_extra_bufts = false;  // repacked weights would be a copy of the whole file in memory
  llama_model* model = llama_model_load_from_file(argv[1], model_params);
  if (!model) return fail("the model cannot be loaded");
  llama_context_params context_params = llama_context_default_params();
  context_params.n_ctx = static_cast<std::uint32_t>(prompt + fresh + 8);
  context_params.n_batch = context_params.n_ubatch = 512;
  context_params.n_threads = context_params.n_threads_batch = threads;
  llama_context* context = llama_init_from_model(model, context_params);
  if (!context) return fail("no context");
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

  std::vector<llama_token> tokens;
  for (int i = 0; i < prompt; ++i) tokens.push_back((i * 7919 + 13) % vocab);
  const double start = now();
  if (llama_decode(context, llama_batch_get_one(tokens.data(), prompt)) != 0) return fail("the prompt cannot be computed");
  const auto best = [&] {
    const float* logits = llama_get_logits_ith(context, -1);
    return static_cast<llama_token>(std::max_element(logits, logits + vocab) - logits);
  };
  llama_token token = best();
  const double prompt_seconds = now() - start;
  std::vector<double> ends{now()};
  for (int i = 0; i < fresh; ++i) {
    if (llama_decode(context, llama_batch_get_one(&token, 1)) != 0) return fail("a token cannot be computed");
    token = best();
    ends.push_back(now());
  }
  const auto rate = [&](int from) {
    return (fresh - from) / (ends[static_cast<std::size_t>(fresh)] - ends[static_cast<std::size_t>(from)]);
  };
  std::printf("{\"prompt_tok_s\": %.3f, \"decode_tok_s\": %.3f, \"decode_second_half_tok_s\": %.3f}\n", prompt / prompt_seconds,
              rate(0), rate(fresh / 2));
  llama_free(context);
  llama_model_free(model);
  return 0;
}

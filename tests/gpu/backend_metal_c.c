/* The C API as a C program sees it: this file is compiled as C11. */
#include <stdlib.h>
#include <string.h>

#include "colibri/backend_metal.h"

/* y = w x for a matrix of ones; 0 when all went well, else the line that failed. */
int backend_metal_from_c(void);

int backend_metal_from_c(void) {
  enum { kRows = 5, kCols = 33 };
  const size_t bytes = 16384;
  float* memory = aligned_alloc(16384, bytes);
  coli_metal_matrix w = {.format = COLI_METAL_F32, .rows = kRows, .cols = kCols};
  float x[kCols], y[kRows];
  coli_metal_counter_values before, after;
  if (memory == NULL) return __LINE__;
  memset(memory, 0, bytes);
  for (int i = 0; i < kRows * kCols; ++i) memory[i] = 1.0f;
  for (int i = 0; i < kCols; ++i) x[i] = 2.0f;
  w.data = memory;
  /* One row over a cache of two entries (a contiguous batch), whose context is the values of the only head. */
  const coli_metal_attention shape = {.heads = 1, .latent = 4, .rope = 2, .nope = 1, .value_dim = 1, .rope_theta = 10000.0};
  const coli_metal_matrix kv_b = {.format = COLI_METAL_F32, .rows = 2, .cols = 4, .data = memory};
  const coli_metal_sequence sequence = {.entries = memory + 64, .first = 1, .rows = 1};
  const float query[3] = {1.0f, 0.0f, 0.0f};
  float context = 0.0f;
  if (coli_metal_register(memory, bytes) != COLI_METAL_OK) return __LINE__;
  if (coli_metal_counters(&before) != COLI_METAL_OK) return __LINE__;
  if (coli_metal_matmul(&w, x, kCols, 1, y, kRows) != COLI_METAL_OK) return __LINE__;
  for (int i = 0; i < kRows; ++i)
    if (y[i] != 2.0f * kCols) return __LINE__;
  if (coli_metal_attn_decode(&shape, &kv_b, &sequence, 1, NULL, query, &context) != COLI_METAL_OK) return __LINE__;
  if (context != 4.0f) return __LINE__; /* W_V of ones, entries of ones */
  if (coli_metal_counters(&after) != COLI_METAL_OK || after.ok != before.ok + 2) return __LINE__;
  if (coli_metal_unregister(memory) != COLI_METAL_OK) return __LINE__;
  if (coli_metal_matmul(&w, x, kCols, 1, y, kRows) != COLI_METAL_NOT_REGISTERED) return __LINE__;
  if (strstr(coli_metal_last_error(), "w.data") == NULL) return __LINE__;
  free(memory);
  return 0;
}

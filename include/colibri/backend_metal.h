/* The Metal backend as a C library: weights that lie in registered host memory are used by the GPU where they lie, and every
 * result has the bits that the CPU kernels give (docs/numerics.md).
 *
 * Arrays are row-major, without gaps unless a stride is given. Sizes and strides of float arrays count floats, other lengths
 * count bytes, times are seconds. Weights, tables of experts and caches lie in registered memory. Activations (x, y, queries,
 * choices, norms ...) may be any memory of the host: they are copied, so an output may overlap an input.
 *
 * Errors. Calls that can fail return COLI_METAL_OK (0) or another coli_metal_status, and coli_metal_last_error() says for the
 * calling thread which argument it was, what was expected and what was found. A call that fails has written nothing.
 *
 * Faults of the GPU. matmul, gemm, moe_block, moe_block_end and attn_decode compute a block that failed again on the CPU: they
 * return COLI_METAL_OK with the right bits and the fault is counted by its reason (coli_metal_counters). Three failures in a row
 * switch the GPU off: coli_metal_available() is 0 from then on and those calls go on with the CPU. layer_decode is not computed
 * again: it returns COLI_METAL_GPU_FAULT, its outputs and caches as they were.
 *
 * Threads. Any thread may call; calls are carried out one after another. A thread that waits for the GPU blocks.
 *
 * Numbers that are not finite are passed on as IEEE 754 has it (which NaN is not fixed); only layer_decode looks at them. */
#ifndef COLIBRI_BACKEND_METAL_H
#define COLIBRI_BACKEND_METAL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum coli_metal_status {
  COLI_METAL_OK = 0,
  COLI_METAL_BAD_ARGUMENT = 1,   /* null, misaligned, out of range, or shapes that do not fit each other */
  COLI_METAL_NOT_REGISTERED = 2, /* weights or a cache not wholly inside one registered region */
  COLI_METAL_UNAVAILABLE = 3,    /* not initialised, no device, or (layer_decode) the GPU was switched off */
  COLI_METAL_OUT_OF_MEMORY = 4,
  COLI_METAL_GPU_FAULT = 5,     /* layer_decode: the GPU failed */
  COLI_METAL_NOT_FINITE = 6,    /* layer_decode: an infinite or NaN value came up */
  COLI_METAL_INTERNAL_ERROR = 7 /* a mistake of this library */
} coli_metal_status;

/* Why the last call of this thread that failed did so; empty before the first. Valid until the thread's next call. */
const char* coli_metal_last_error(void);

/* --- the device ---------------------------------------------------------------------------------------------------- */

/* Accept the software device, which runs the kernels on the CPU for tests, where there is no Metal. */
#define COLI_METAL_ALLOW_SOFTWARE 1u

/* Opens the system's Metal device. flags: 0 or COLI_METAL_ALLOW_SOFTWARE. Once initialised, another call changes nothing. The
 * environment is read here: COLI_METAL_RESSET=0/1 (residency set), COLI_METAL_GEMM_MIN (see coli_metal_matmul). */
int coli_metal_init(uint32_t flags);
/* Waits for the GPU, gives up what moe_block_begin left open, unregisters everything and closes the device. Counters start
 * again. Without an init it does nothing. */
void coli_metal_shutdown(void);
/* 1: initialised and the GPU computes; 0: not initialised, or switched off after failures. */
int coli_metal_available(void);

/* Regions registered by the caller and their bytes. Either pointer may be null. */
int coli_metal_stats(uint64_t* regions, uint64_t* bytes);
/* Unified memory this process uses on the device, and what it can use without slowing down (bytes). Either may be null. */
int coli_metal_mem_info(uint64_t* used, uint64_t* total);

/* Makes [base, base + bytes) usable by the GPU without a copy and keeps it resident. base: a multiple of 16,384; bytes: a
 * multiple of 16,384, above 0 and at most the device's longest buffer; no byte registered already. The memory stays the
 * caller's and must not be freed before it is unregistered. */
int coli_metal_register(void* base, uint64_t bytes);
/* Waits for work in flight; afterwards the memory may be freed or registered again. Blocks begun with moe_block_begin whose
 * experts lie here are brought to where they no longer need them. base: as it was registered. */
int coli_metal_unregister(void* base);

/* --- weights --------------------------------------------------------------------------------------------------------- */

/* Formats of the colibri containers (docs/containers.md has their bytes). */
typedef enum coli_metal_format {
  COLI_METAL_F32 = 0,
  COLI_METAL_BF16 = 1,
  COLI_METAL_F16 = 2,
  COLI_METAL_INT8_ROW = 3,     /* one scale a row */
  COLI_METAL_INT4_ROW = 4,     /* two weights a byte, one scale a row */
  COLI_METAL_INT4_GROUPED = 5, /* two weights a byte, one scale for `group` columns of a row */
  COLI_METAL_INT2_ROW = 6,     /* four weights a byte, one scale a row */
  COLI_METAL_INT3_G64 = 7,     /* 24 bytes and one scale for 64 columns of a row */
  COLI_METAL_FP8_B128 = 8      /* OCP e4m3, one scale for a block of 128 x 128 */
} coli_metal_format;

/* A weight matrix, rows (outputs) x cols (inputs), each 1 .. 2^24 - 1. data and scales: in registered memory, aligned to the
 * stored number (f32, scales: 4; bf16, f16: 2); 64 bytes behind the last row of data belong to the same region (they are
 * never used, but vector loads touch them). */
typedef struct coli_metal_matrix {
  int32_t format;       /* coli_metal_format */
  int32_t group;        /* columns a scale of INT4_GROUPED, a multiple of 2; 0 for others, or 64 for INT3_G64, 128 for FP8_B128 */
  int64_t rows, cols;   /* of weights */
  int64_t row_bytes;    /* distance of two rows in data; 0: without gaps */
  int64_t scale_stride; /* distance of two rows (FP8_B128: of two blocks of 128 rows) in scales, in floats; 0: without gaps */
  const void* data;
  const float* scales; /* null for F32, BF16 and F16 */
} coli_metal_matrix;

/* y[r * y_stride + o] = dot(row o of w, row r of x) for `rows` rows of x, w->cols floats each, x_stride apart (rule C2).
 * x_stride >= w->cols, y_stride >= w->rows; floats between rows of y are left alone. matmul takes the kernel for few rows
 * below COLI_METAL_GEMM_MIN rows (16), gemm always the tiled one: the bits are the same. 1 <= rows < 2^24. */
int coli_metal_matmul(const coli_metal_matrix* w, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride);
int coli_metal_gemm(const coli_metal_matrix* w, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride);

/* --- routed experts -------------------------------------------------------------------------------------------------- */

/* SwiGLU: down (silu(gate x) * up x). An expert whose gate.data is null is not there. */
typedef struct coli_metal_expert {
  coli_metal_matrix gate, up; /* intermediate x hidden */
  coli_metal_matrix down;     /* hidden x intermediate */
} coli_metal_expert;

/* One sparse block. Those of `table` that are there have one format for all gates, one for all ups and one for all downs. */
typedef struct coli_metal_moe {
  int64_t hidden, intermediate;   /* 1 .. 2^24 - 1 */
  int64_t experts, per_token;     /* 1 <= per_token <= experts <= 65,536 */
  int64_t rows;                   /* 1 .. 65,536, rows * per_token < 2^20 */
  const coli_metal_expert* table; /* [experts]; read during the call only, the matrices it names stay where they are */
  const float* x;                 /* [rows][hidden], what the experts are applied to */
  const int32_t* chosen;          /* [rows][per_token], expert ids in router-rank order, those of a row all different */
  const float* weights;           /* [rows][per_token] */
  const float* residual;          /* [rows][hidden], or null: zeros */
  const float* shared;            /* [rows][hidden], the shared experts' output; null: none */
} coli_metal_moe;

/* y[rows][hidden] = residual + (sum over ranks of weight * expert + shared), in the order of rule C8. A chosen expert that is
 * not there counts as an output of zeros and is counted as missing. */
int coli_metal_moe_block(const coli_metal_moe* moe, float* y);

/* The same in two halves, so that the caller can read missing experts from disk meanwhile. begin copies the activations,
 * submits the experts that are there and returns before the GPU has finished. Their memory must stay as it is until end or
 * unregister. *work is owned by the caller until it is given to end; null after an error. Any number may be open. */
typedef struct coli_metal_moe_work coli_metal_moe_work;
int coli_metal_moe_block_begin(const coli_metal_moe* moe, coli_metal_moe_work** work);
/* Waits, applies the experts that begin did not have and `late` does ([experts], same formats; null: none came), and writes
 * y[rows][hidden]: the bits of moe_block with all of them. Blocks. Frees work, except when an argument is refused
 * (COLI_METAL_BAD_ARGUMENT, COLI_METAL_NOT_REGISTERED); then end may be called again. y null: gives the block up. */
int coli_metal_moe_block_end(coli_metal_moe_work* work, const coli_metal_expert* late, float* y);

/* --- attention and layers -------------------------------------------------------------------------------------------- */

/* Rows of one sequence at neighbouring positions first, first + 1, ...: a decode step, a draft to be verified, a chunk of a
 * prompt. One of these is a contiguous batch. Several, one after another, are a ragged batch: the rows of the first sequence,
 * then those of the next, at positions that have nothing to do with each other; each sequence comes once, with a cache of its
 * own (memory that overlaps is refused). */
typedef struct coli_metal_sequence {
  float* entries; /* latent cache of this layer, float[positions][latent + rope], in registered memory up to and with its last
                   * row, at a multiple of 16 bytes */
  float* keys;    /* indexer keys, float[positions][head_dim], likewise; layer_decode with an indexer only */
  int64_t first;  /* position of its first row, from 0; first + rows <= 2^30 */
  int64_t rows;   /* at least 1 */
} coli_metal_sequence;

/* Positions the rows attend to. Row r attends to chosen[r * top_k ...], counts[r] of them in rising order, none above its
 * position; counts[r] 0: to every position up to its own, at most top_k of them. */
typedef struct coli_metal_selection {
  int64_t top_k;
  int32_t* chosen;  /* [rows][top_k] */
  uint32_t* counts; /* [rows] */
} coli_metal_selection;

typedef struct coli_metal_attention {
  int64_t heads;                         /* 1 .. 65,535 */
  int64_t latent, rope, nope, value_dim; /* kv_lora_rank, qk_rope, qk_nope and v head dimensions: 1 .. 65,536; rope even */
  double rope_theta;                     /* above 0; scores are scaled by 1 / sqrt(nope + rope) */
} coli_metal_attention;

/* Latent attention in absorbed form (rules C5, C6, C9). queries: float[rows][heads][nope + rope], not rotated yet; kv_b:
 * heads * (nope + value_dim) x latent, per head W_K, then W_V; the cache holds every row's own entry already. selection: null,
 * or which positions. context: float[rows][heads][value_dim]. `rows`: of all sequences together, at most 4,096. */
int coli_metal_attn_decode(const coli_metal_attention* shape, const coli_metal_matrix* kv_b, const coli_metal_sequence* sequences,
                           int64_t sequence_count, const coli_metal_selection* selection, const float* queries, float* context);

typedef struct coli_metal_indexer {
  int64_t heads, head_dim, top_k;    /* rope <= head_dim; 1 <= top_k */
  coli_metal_matrix wq_b;            /* heads * head_dim x q_lora_rank */
  coli_metal_matrix wk;              /* head_dim x hidden */
  coli_metal_matrix weights_proj;    /* heads x hidden */
  const float *k_norm, *k_norm_bias; /* [head_dim] */
} coli_metal_indexer;

/* A decode layer. Norms and biases: any memory. */
typedef struct coli_metal_layer {
  coli_metal_attention attention;
  int64_t hidden, q_lora_rank;
  float eps;                                     /* of the layer's own norms, above 0 */
  const float *input_norm, *post_attention_norm; /* [hidden] */
  const float* q_a_norm;                         /* [q_lora_rank] */
  const float* kv_a_norm;                        /* [latent] */
  coli_metal_matrix q_a;                         /* q_lora_rank x hidden */
  coli_metal_matrix q_b;                         /* heads * (nope + rope) x q_lora_rank */
  coli_metal_matrix kv_a;                        /* latent + rope x hidden */
  coli_metal_matrix kv_b;                        /* heads * (nope + value_dim) x latent */
  coli_metal_matrix o;                           /* hidden x heads * value_dim */
  const coli_metal_indexer* indexer;             /* null: none */
  coli_metal_matrix gate, up, down; /* dense MLP or shared experts: n x hidden, n x hidden, hidden x n; gate.data null: none */
  /* A sparse layer (experts > 0): sigmoid router and routed experts, as in coli_metal_moe. All of table are there. */
  int64_t experts, per_token, moe_intermediate;
  int32_t renormalise;
  float routed_scaling;
  coli_metal_matrix router; /* experts x hidden */
  const float* router_bias; /* [experts] */
  const coli_metal_expert* table;
} coli_metal_layer;

/* x_out[rows][hidden] = the layer applied to x[rows][hidden], in one command buffer (more where one would run for too long):
 * norm, queries and latent, the rows' cache entries (and indexer keys), the indexer's choice, attention, norm, dense MLP or
 * router, shared and routed experts. The entries at the rows' positions are written, earlier ones are read. selection: written
 * by a layer with an indexer (then required, top_k as the indexer's), read by others (null: every position). `rows`: of all
 * sequences together, at most 64. A fault or a number that is not finite: an error code, x_out, selection and caches as they
 * were. */
int coli_metal_layer_decode(const coli_metal_layer* layer, const coli_metal_sequence* sequences, int64_t sequence_count,
                            coli_metal_selection* selection, const float* x, float* x_out);

/* --- what happened ------------------------------------------------------------------------------------------------------ */

typedef struct coli_metal_counter_values {
  uint64_t ok;        /* blocks (calls) computed by the GPU */
  uint64_t fallbacks; /* blocks computed by the CPU instead, and layers given up; the sum of the reasons: */
  uint64_t fallback_error, fallback_timeout, fallback_memory, fallback_residency, fallback_compile;
  uint64_t fallback_off;    /* the GPU had been switched off */
  uint64_t experts;         /* routed experts applied to rows by the GPU */
  uint64_t experts_missing; /* chosen experts that were nowhere */
  uint64_t command_buffers, dispatches, waits;
  double setup_seconds;    /* planning and encoding */
  double gpu_wall_seconds; /* waiting for the GPU */
  double kernel_seconds;   /* the GPU at work, from its own clock */
  double scatter_seconds;  /* copying activations */
} coli_metal_counter_values;
/* Since init. */
int coli_metal_counters(coli_metal_counter_values* out);

typedef struct coli_metal_resset_values {
  int32_t in_use;       /* 0: residency is declared per command buffer */
  uint64_t allocations; /* in the set */
  uint64_t bytes;
  uint64_t flushes; /* times that additions were committed */
  double flush_seconds;
} coli_metal_resset_values;
int coli_metal_resset_stats(coli_metal_resset_values* out);

#ifdef __cplusplus
}
#endif
#endif

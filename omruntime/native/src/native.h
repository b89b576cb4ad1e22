/* The native library's C interface: all that Python calls, and all that it needs to know.
 *
 * A matrix is packed once for products of few rows. A program is a flat list of kernels over
 * tensors whose addresses never change, run from first to last by a pool of threads. Functions
 * that can fail return NULL, or a text that says why and that stands until the calling thread's
 * next call. A program and its pool belong to one thread at a time.
 */
#ifndef OMSERVE_NATIVE_H
#define OMSERVE_NATIVE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever this file changes meaning; the loader refuses another one. */
#define OM_ABI_VERSION 2
#define OM_MAX_RANK 6

typedef enum {
  OM_FLOAT32 = 0,
  OM_BFLOAT16 = 1,
  OM_INT8 = 2,
  OM_INT32 = 3,
  OM_INT64 = 4,
  OM_BOOL = 5,
  /* `data` is an om_matrix*, `shape` its inputs and outputs. */
  OM_MATRIX = 6,
} om_dtype;

/* A window into memory that the caller keeps. `strides` count elements and may be 0. */
typedef struct {
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t shape[OM_MAX_RANK];
  int64_t strides[OM_MAX_RANK];
} om_tensor;

typedef struct om_pool om_pool;
typedef struct om_matrix om_matrix;
typedef struct om_program om_program;

int32_t om_abi_version(void);

/* The instruction set in use: `avx512`, `avx2` or `baseline`, the best that this CPU has. */
const char* om_instruction_set(void);

/* Take another instruction set, for tests; before the first matrix, since packing depends on it. */
const char* om_choose_instruction_set(const char* name);

/* Threads of one run, the calling one included; at least 1. */
om_pool* om_pool_new(int32_t num_threads);
void om_pool_free(om_pool* pool);

/* Copy a matrix of `inputs` x `outputs` into the layout of the product kernels.
 *
 * values: float32, bfloat16 or int8, rank 2, any strides; not needed afterwards.
 * scales: float32 [outputs], what each output is multiplied by; NULL means 1.
 */
const char* om_matrix_pack(const om_tensor* values, const float* scales, om_matrix** matrix);
void om_matrix_free(om_matrix* matrix);

om_program* om_program_new(void);
void om_program_free(om_program* program);

/* Append a kernel by its name, over tensors and numbers as its file describes. */
const char* om_program_append(om_program* program, const char* kernel, const om_tensor* tensors,
                              int32_t num_tensors, const double* numbers, int32_t num_numbers);

void om_program_run(const om_program* program, om_pool* pool);

/* A row of scores to draw a token from, by weights exp((score - best) * scale).
 *
 * A token is drawn from the whole row by the first number, and again by the next when top_p or
 * min_p would not have kept it. A row's result depends on nothing but the row.
 */
typedef struct {
  const float* scores;   /* -infinity cannot be drawn; any address */
  const double* numbers; /* uniform, in [0, 1) */
  double top_p;          /* 1: all of the mass */
  double min_p;          /* share of the best token's weight; 0: all */
  float scale;           /* 1 / temperature; 0: the best token, the first of equal ones */
  int32_t top_k;         /* 0: all */
  int32_t num_numbers;
  int32_t token_id; /* result; -1 when the best score is not finite or no number was let through */
  float best;       /* result: the best score; NaN when one of them is */
} om_draw;

void om_draw_rows(om_draw* rows, int64_t num_rows, int64_t num_scores, om_pool* pool);

/* A row of scores to say of how likely one of its tokens is. */
typedef struct {
  const float* scores; /* any address */
  int32_t* best_ids;   /* result: num_best of them (all when there are fewer), best first, of equal
                          ones the lower id first */
  double log_total;    /* result: the logarithm of the sum of the scores' exponentials */
  int32_t token_id;
  int32_t num_best;
  int32_t num_better; /* result: tokens with a higher score than token_id's */
  float best;         /* result, as in om_draw; when it is not finite there is no other */
} om_score;

void om_score_rows(om_score* rows, int64_t num_rows, int64_t num_scores, om_pool* pool);

#ifdef __cplusplus
}
#endif

#endif

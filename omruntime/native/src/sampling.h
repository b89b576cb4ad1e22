// Sampling: the next token of each, or how likely one was, of rows of scores.
#pragma once

#include <cstdint>

#include "native.h"

namespace omserve {

// A token that may be chosen.
struct Candidate {
  float score;
  int32_t index;
};

// Memory for one row at a time. Plain pointers: an inline function of a container would be compiled
// for one instruction set and shared with all others.
struct RowScratch {
  float* block_bests;
  double* run_ends;
  float* scores;
  Candidate* candidates;
};

// What an instruction set does with one row.
struct SamplingKernels {
  void (*draw)(om_draw& row, int64_t num_scores, const RowScratch& scratch);
  void (*score)(om_score& row, int64_t num_scores, const RowScratch& scratch);
};

// The calling thread's own, for rows of that length.
const RowScratch& row_scratch(int64_t num_scores);

// The k-th largest value, k from 1; the values change places.
float kth_largest(float* values, int64_t num_values, int64_t k);

// Bring the k best to the front, best first; of equal scores the lower index is the better one.
void best_first(Candidate* candidates, int64_t num_candidates, int64_t k);

}  // namespace omserve

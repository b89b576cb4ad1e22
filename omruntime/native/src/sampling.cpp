#include "sampling.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace omserve {

const RowScratch& row_scratch(int64_t num_scores) {
  thread_local std::vector<float> block_bests, scores;
  thread_local std::vector<double> run_ends;
  thread_local std::vector<Candidate> candidates;
  thread_local RowScratch scratch;
  const auto length = static_cast<std::size_t>(num_scores);
  if (scores.size() < length) {
    // There are fewer blocks and runs than scores.
    block_bests.resize(length);
    run_ends.resize(length);
    scores.resize(length);
    candidates.resize(length);
    scratch = {block_bests.data(), run_ends.data(), scores.data(), candidates.data()};
  }
  return scratch;
}

float kth_largest(float* values, int64_t num_values, int64_t k) {
  std::nth_element(values, values + k - 1, values + num_values, std::greater<float>());
  return values[k - 1];
}

void best_first(Candidate* candidates, int64_t num_candidates, int64_t k) {
  const auto is_better = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.index < b.index;
  };
  std::partial_sort(candidates, candidates + k, candidates + num_candidates, is_better);
}

}  // namespace omserve

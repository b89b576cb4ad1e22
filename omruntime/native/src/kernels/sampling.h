// Sampling: the best score of a row, weights exp((score - best) * scale), their sums, and the draw.
//
// A row is cut into blocks whose best scores are remembered, so that later passes leave out blocks
// that cannot matter, and into runs whose sums lead to the drawn token. Weights are computed again
// where they are needed, which takes less than to write them down: a row of a large vocabulary
// and its weights do not fit into the second level cache together.

constexpr int64_t kBlock = 256;
constexpr int64_t kRun = 1024;
constexpr int64_t kBlocksPerRun = kRun / kBlock;
// How far ahead of the first pass memory is asked for; without, one core takes twice as long.
constexpr int64_t kAheadFloats = 1024;
constexpr int64_t kLineFloats = 16;
// Exponentials below are 0, as is that of -infinity: the least float that keeps all its digits.
constexpr float kLeastExponent = -86.0f;
// Sixteen sums side by side, whatever a register holds: they come out the same, bit by bit, on
// every CPU that multiplies and adds in one rounding.
constexpr int kLanes = 16;
constexpr int kParts = kLanes / OM_WIDTH;

struct Lanes {
  F part[kParts];
};

// The sum of all lanes, in a fixed order.
OM_INLINE double sum_of(const Lanes& lanes) {
  float values[kLanes];
  for (int i = 0; i < kParts; ++i) store(values + i * OM_WIDTH, lanes.part[i]);
  double sum = 0.0;
  for (int i = 0; i < kLanes; ++i) sum += values[i];
  return sum;
}

struct RowView {
  const float* scores;
  int64_t num_scores;
  int64_t num_blocks;
  float* block_bests;
  // The last block, filled up with -infinity.
  float last[kBlock];
  float best;
  float scale;

  OM_INLINE const float* block(int64_t index) const {
    return index < num_blocks - 1 ? scores + index * kBlock : last;
  }
};

inline bool has_nan(const float* scores, int64_t num_scores) {
  for (int64_t i = 0; i < num_scores; ++i)
    if (scores[i] != scores[i]) return true;
  return false;
}

// Look at all scores once. `best` becomes NaN when one of them is, which a sum of all would be as
// well, and seldom otherwise: by infinities of both signs.
inline void open_row(RowView& row, const float* scores, int64_t num_scores, const RowScratch& scratch) {
  row.scores = scores;
  row.num_scores = num_scores;
  row.num_blocks = (num_scores + kBlock - 1) / kBlock;
  row.block_bests = scratch.block_bests;
  const int64_t first = (row.num_blocks - 1) * kBlock;
  for (int64_t i = 0; i < kBlock; ++i)
    row.last[i] = first + i < num_scores ? scores[first + i] : -INFINITY;
  float best = -INFINITY;
  F sums[4] = {};
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    const float* x = row.block(b);
    F bests[4];
    for (int j = 0; j < 4; ++j) bests[j] = splat(-INFINITY);
    for (int64_t i = 0; i < kBlock; i += 4 * OM_WIDTH) {
      for (int j = 0; j < 4 * OM_WIDTH; j += kLineFloats)
        __builtin_prefetch(x + i + j + kAheadFloats);
      for (int j = 0; j < 4; ++j) {
        const F value = load(x + i + j * OM_WIDTH);
        sums[j] += value;
        bests[j] = max_of(value, bests[j]);
      }
    }
    const F pair = max_of(max_of(bests[0], bests[1]), max_of(bests[2], bests[3]));
    row.block_bests[b] = largest_of(pair);
    best = row.block_bests[b] > best ? row.block_bests[b] : best;
  }
  const F sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  row.best = best;
  for (int i = 0; i < OM_WIDTH; ++i)
    if (sum[i] != sum[i] && has_nan(scores, num_scores)) row.best = NAN;
}

// The first index of a score that occurs.
inline int64_t first_index_of(const RowView& row, float score) {
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    if (row.block_bests[b] < score) continue;
    const float* x = row.block(b);
    for (int64_t i = 0; i < kBlock; ++i)
      if (x[i] == score) return b * kBlock + i;
  }
  return 0;
}

// Vectors that are weighed side by side: each step of one waits for the last, and a core looks too
// few instructions ahead to find the next vector's by itself.
constexpr int kAbreast = 4;

// The weights of neighbouring scores. As `exp_of`, for exponents up to 0, which need no other bound
// and no more than a sum for their power of two.
OM_INLINE void weigh(const RowView& row, const float* x, F (&weights)[kAbreast]) {
  const F magic = splat(12582912.0f), least = splat(kLeastExponent);
  F t[kAbreast], shifted[kAbreast], r[kAbreast], p[kAbreast];
#define OM_EACH for (int j = 0; j < kAbreast; ++j)
  OM_EACH t[j] = (load(x + j * OM_WIDTH) - splat(row.best)) * splat(row.scale);
  OM_EACH r[j] = max_of(t[j], least);
  OM_EACH shifted[j] = r[j] * splat(1.44269504f) + magic;
  OM_EACH p[j] = shifted[j] - magic;
  OM_EACH r[j] = r[j] - p[j] * splat(0.693359375f);
  OM_EACH r[j] = r[j] - p[j] * splat(-2.12194440e-4f);
  OM_EACH p[j] = r[j] * splat(1.9875691500e-4f) + splat(1.3981999507e-3f);
  OM_EACH p[j] = p[j] * r[j] + splat(8.3334519073e-3f);
  OM_EACH p[j] = p[j] * r[j] + splat(4.1665795894e-2f);
  OM_EACH p[j] = p[j] * r[j] + splat(1.6666665459e-1f);
  OM_EACH p[j] = p[j] * r[j] + splat(5.0000001201e-1f);
  OM_EACH p[j] = p[j] * (r[j] * r[j]) + r[j];
  OM_EACH p[j] = p[j] + splat(1.0f);
  OM_EACH {
    const I bits = reinterpret_cast<I>(p[j]) + (reinterpret_cast<I>(shifted[j]) << 23);
    weights[j] = t[j] < least ? F{} : reinterpret_cast<F>(bits);
  }
#undef OM_EACH
}

// Running sums of weights at the ends of runs; returns the total.
inline double sum_runs(const RowView& row, const RowScratch& scratch) {
  const int64_t num_runs = (row.num_blocks + kBlocksPerRun - 1) / kBlocksPerRun;
  double total = 0.0;
  for (int64_t r = 0; r < num_runs; ++r) {
    Lanes sums{};
    for (int64_t b = r * kBlocksPerRun; b < (r + 1) * kBlocksPerRun && b < row.num_blocks; ++b) {
      const float* x = row.block(b);
      for (int64_t i = 0; i < kBlock; i += kAbreast * OM_WIDTH) {
        F weights[kAbreast];
        weigh(row, x + i, weights);
        for (int j = 0; j < kAbreast; ++j) sums.part[j % kParts] += weights[j];
      }
    }
    total += sum_of(sums);
    scratch.run_ends[r] = total;
  }
  return total;
}

// The first index whose running sum passes the target; never one without weight.
OM_INLINE int64_t passed(const double* sums, int64_t count, double target) {
  // Rounding may lift the target to the total or above.
  if (!(target < sums[count - 1])) {
    int64_t i = count - 1;
    while (i > 0 && sums[i - 1] >= sums[count - 1]) --i;
    return i;
  }
  int64_t low = 0, high = count - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sums[middle] > target)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

struct Drawn {
  int64_t index;
  float weight;
};

// The token at which the running sum passes a share of the total.
inline Drawn token_at(const RowView& row, const RowScratch& scratch, double share, double total) {
  const int64_t num_runs = (row.num_blocks + kBlocksPerRun - 1) / kBlocksPerRun;
  const double target = share * total;
  const int64_t run = passed(scratch.run_ends, num_runs, target);
  const double before = run > 0 ? scratch.run_ends[run - 1] : 0.0;
  float weights[kRun];
  double sums[kRun], sum = 0.0;
  int64_t count = 0;
  for (int64_t b = run * kBlocksPerRun; b < (run + 1) * kBlocksPerRun && b < row.num_blocks; ++b)
    for (int64_t i = 0; i < kBlock; i += kAbreast * OM_WIDTH) {
      F some[kAbreast];
      weigh(row, row.block(b) + i, some);
      for (int j = 0; j < kAbreast; ++j, count += OM_WIDTH) store(weights + count, some[j]);
    }
  for (int64_t i = 0; i < count; ++i) sums[i] = sum += weights[i];
  const int64_t within = passed(sums, count, target - before);
  return {run * kRun + within, weights[within]};
}

// The sum of the weights of a block's scores that are better; `or_equal` takes equal ones, too.
OM_INLINE double block_mass(const RowView& row, const float* x, float score, bool or_equal) {
  Lanes sums{};
  // The next float below: what is above that is as good at least.
  const F bound = splat(or_equal ? std::nextafter(score, -INFINITY) : score);
  for (int64_t i = 0; i < kBlock; i += kAbreast * OM_WIDTH) {
    F weights[kAbreast];
    weigh(row, x + i, weights);
    for (int j = 0; j < kAbreast; ++j)
      sums.part[j % kParts] += load(x + i + j * OM_WIDTH) > bound ? weights[j] : F{};
  }
  return sum_of(sums);
}

// The sum of the weights of better tokens; of equal scores the lower index is the better one.
// Stops at `enough`.
inline double mass_above(const RowView& row, int64_t choice, double enough) {
  const int64_t own = choice / kBlock;
  const float score = row.block(own)[choice % kBlock];
  float before[kBlock];
  const float* x = row.block(own);
  for (int64_t i = 0; i < kBlock; ++i) {
    const bool is_better = x[i] > score || (x[i] == score && i < choice % kBlock);
    before[i] = is_better ? x[i] : -INFINITY;
  }
  double mass = block_mass(row, before, -INFINITY, false);
  for (int64_t b = 0; b < row.num_blocks && mass < enough; ++b) {
    const float best = row.block_bests[b];
    if (b != own && (best > score || (best == score && b < own)))
      mass += block_mass(row, row.block(b), score, b < own);
  }
  return mass;
}

// The index that top_p and min_p let through; -1 when the numbers do not suffice.
inline int64_t draw_filtered(const RowView& row, const om_draw& draw, const RowScratch& scratch) {
  const double total = sum_runs(row, scratch), wanted = draw.top_p * total;
  const int64_t best_index = first_index_of(row, row.best);
  if (draw.top_p < 1.0 && wanted <= 1.0) return best_index;  // it alone has the mass
  for (int32_t attempt = 0; attempt < draw.num_numbers; ++attempt) {
    const Drawn drawn = token_at(row, scratch, draw.numbers[attempt], total);
    if (drawn.index == best_index) return drawn.index;
    if (drawn.weight < draw.min_p) continue;
    if (draw.top_p == 1.0 || mass_above(row, drawn.index, wanted) < wanted) return drawn.index;
  }
  return -1;
}

// Collect the tokens whose scores reach the k-th best, in order of their indices; their number.
inline int64_t take_best(const RowView& row, int64_t k, const RowScratch& scratch) {
  float bound = -INFINITY;
  // The k-th best of the blocks' bests is reached by k scores at least.
  if (2 * k <= row.num_blocks) {
    for (int64_t b = 0; b < row.num_blocks; ++b) scratch.scores[b] = row.block_bests[b];
    bound = kth_largest(scratch.scores, row.num_blocks, k);
  }
  int64_t count = 0;
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    if (row.block_bests[b] < bound) continue;
    const float* x = row.block(b);
    for (int64_t i = b * kBlock; i < (b + 1) * kBlock && i < row.num_scores; ++i) {
      const float score = x[i - b * kBlock];
      if (score < bound) continue;
      scratch.candidates[count] = {score, static_cast<int32_t>(i)};
      scratch.scores[count++] = score;
    }
  }
  const float worst = kth_largest(scratch.scores, count, k);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i)
    if (scratch.candidates[i].score >= worst) scratch.candidates[kept++] = scratch.candidates[i];
  return kept;
}

inline void draw_row(om_draw& draw, int64_t num_scores, const RowScratch& scratch) {
  RowView row;
  open_row(row, draw.scores, num_scores, scratch);
  draw.best = row.best;
  draw.token_id = -1;
  if (!std::isfinite(row.best)) return;
  row.scale = draw.scale;
  if (draw.scale == 0.0f) {
    draw.token_id = static_cast<int32_t>(first_index_of(row, row.best));
  } else if (0 < draw.top_k && draw.top_k < num_scores) {
    const int64_t count = take_best(row, draw.top_k, scratch);
    for (int64_t i = 0; i < count; ++i) scratch.scores[i] = scratch.candidates[i].score;
    RowView best;
    open_row(best, scratch.scores, count, scratch);
    best.scale = draw.scale;
    const int64_t index = draw_filtered(best, draw, scratch);
    if (index >= 0) draw.token_id = scratch.candidates[index].index;
  } else {
    draw.token_id = static_cast<int32_t>(draw_filtered(row, draw, scratch));
  }
}

inline void score_row(om_score& score, int64_t num_scores, const RowScratch& scratch) {
  RowView row;
  open_row(row, score.scores, num_scores, scratch);
  score.best = row.best;
  if (!std::isfinite(row.best)) return;
  row.scale = 1.0f;
  score.log_total = row.best + std::log(sum_runs(row, scratch));
  const float own = score.scores[score.token_id];
  int32_t num_better = 0;
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    if (row.block_bests[b] <= own) continue;
    const float* x = row.block(b);
    for (int64_t i = 0; i < kBlock; ++i) num_better += x[i] > own;
  }
  score.num_better = num_better;
  const int64_t k = score.num_best < num_scores ? score.num_best : num_scores;
  if (k == 0) return;
  best_first(scratch.candidates, take_best(row, k, scratch), k);
  for (int64_t i = 0; i < k; ++i) score.best_ids[i] = scratch.candidates[i].index;
}

constexpr SamplingKernels kSamplingKernels{draw_row, score_row};

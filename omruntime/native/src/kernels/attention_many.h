// Attention of many query rows, as in prefill: keys are turned around in the first level cache, so
// that scores and results are products of the same tiles as those of linear.

// Query rows of a tile; with the keys and values of one, sums and scores of heads of 64 values fit
// the second level cache many times, and turning the keys costs a tenth of the products.
constexpr int64_t kTileRows = 96;
// Rows of one register tile. It divides kTileRows.
constexpr int kRegisterRows = 6;
// Keys of a tile, a whole number of panels in every instruction set.
constexpr int64_t kTileKeys = 32;

struct ManyRows {
  alignas(64) float queries[kTileRows * kMaxHeadDim];
  alignas(64) float sums[kTileRows * kMaxHeadDim];
  alignas(64) float scores[kTileRows * kTileKeys];
  // Panels of [dim][kPanel], and rows of whole panels.
  alignas(64) float keys[kTileKeys * kMaxHeadDim];
  alignas(64) float values[kTileKeys * kMaxHeadDim];
  float largest[kTileRows], total[kTileRows];
  // Rows rounded up to whole register tiles, and head sizes to whole panels.
  int64_t num_rows, padded_rows, padded_dim;
};

// Copy keys in [first, last) into the tile, turned around, and values as they are; zeros behind.
template <bool IS_PAST, class T>
void stage_keys(const AttentionCall& call, int64_t batch, int64_t kv_head, int64_t first,
                int64_t last, ManyRows& rows) {
  std::memset(rows.keys, 0, kTileKeys * call.dim * sizeof(float));
  std::memset(rows.values, 0, kTileKeys * rows.padded_dim * sizeof(float));
  int64_t key = first;
  while (key < last) {
    const auto run = run_at<IS_PAST, T>(call, batch, kv_head, key, last);
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t at = key - first + i;
      float* column = rows.keys + at / kPanel * call.dim * kPanel + at % kPanel;
      float* row = rows.values + at * rows.padded_dim;
      for (int64_t d = 0; d < call.dim; ++d) {
        column[d * kPanel] = widened(run.keys[i * run.key_stride + d]);
        row[d] = widened(run.values[i * run.value_stride + d]);
      }
    }
    key += run.count;
  }
}

OM_INLINE void score_tile(const AttentionCall& call, ManyRows& rows, int64_t num_keys) {
  for (int64_t panel = 0; panel * kPanel < num_keys; ++panel)
    for (int64_t r = 0; r < rows.padded_rows; r += kRegisterRows) {
      F sums[kRegisterRows][2];
      sum_tile<kRegisterRows, 1>(rows.queries + r * call.dim, call.dim,
                                 rows.keys + panel * call.dim * kPanel, kPanel, call.dim, sums);
      for (int i = 0; i < kRegisterRows; ++i) {
        float* scores = rows.scores + (r + i) * kTileKeys + panel * kPanel;
        store(scores, sums[i][0]);
        store(scores + OM_WIDTH, sums[i][1]);
      }
    }
}

OM_INLINE void add_tile(ManyRows& rows, int64_t num_keys, const float* factors) {
  for (int64_t d = 0; d < rows.padded_dim; d += kPanel)
    for (int64_t r = 0; r < rows.padded_rows; r += kRegisterRows) {
      F added[kRegisterRows][2];
      sum_tile<kRegisterRows, 1>(rows.scores + r * kTileKeys, kTileKeys, rows.values + d,
                                 rows.padded_dim, num_keys, added);
      for (int i = 0; i < kRegisterRows; ++i) {
        float* sums = rows.sums + (r + i) * rows.padded_dim + d;
        const F factor = splat(factors[r + i]);
        store(sums, load(sums) * factor + added[i][0]);
        store(sums + OM_WIDTH, load(sums + OM_WIDTH) * factor + added[i][1]);
      }
    }
}

// The tokens [first_token, last_token) of a head group over keys in [first, last).
template <bool IS_PAST, class T>
void attend_many_over(const AttentionCall& call, int64_t batch, int64_t kv_head, int64_t first,
                      int64_t last, int64_t first_token, int64_t num_tokens, ManyRows& rows) {
  for (int64_t begin = first; begin < last; begin += kTileKeys) {
    const int64_t end = std::min(last, begin + kTileKeys);
    const int64_t padded = (end - begin + OM_WIDTH - 1) / OM_WIDTH * OM_WIDTH;
    float factors[kTileRows];
    stage_keys<IS_PAST, T>(call, batch, kv_head, begin, end, rows);
    score_tile(call, rows, end - begin);
    for (int64_t r = 0; r < rows.padded_rows; ++r) {
      const int64_t token = first_token + std::min(r, rows.num_rows - 1) % num_tokens;
      const int64_t seen = IS_PAST ? call.first_past(batch, token) : call.first_new(token);
      const int64_t end_seen = IS_PAST ? end : std::min(end, token + 1);
      factors[r] = weigh(rows.scores + r * kTileKeys, padded, seen - begin, end_seen - begin,
                         call.softcap, rows.largest[r], rows.total[r]);
    }
    add_tile(rows, end - begin, factors);
  }
}

template <class T>
void attend_many(const AttentionCall& call, int64_t batch, int64_t kv_head, int64_t first_token,
                 int64_t last_token) {
  ManyRows rows;
  const int64_t num_tokens = last_token - first_token, past = call.past_len(batch);
  rows.num_rows = call.group * num_tokens;
  rows.padded_rows = (rows.num_rows + kRegisterRows - 1) / kRegisterRows * kRegisterRows;
  rows.padded_dim = (call.dim + kPanel - 1) / kPanel * kPanel;
  std::memset(rows.sums, 0, rows.padded_rows * rows.padded_dim * sizeof(float));
  for (int64_t r = 0; r < rows.padded_rows; ++r) {
    const int64_t row = std::min(r, rows.num_rows - 1);
    const float* query = query_of(call, batch, kv_head * call.group + row / num_tokens,
                                  first_token + row % num_tokens);
    for (int64_t d = 0; d < call.dim; ++d) rows.queries[r * call.dim + d] = query[d] * call.scale;
    rows.largest[r] = kUnseen;
    rows.total[r] = 0;
  }
  attend_many_over<true, T>(call, batch, kv_head, std::min(past, call.first_past(batch, first_token)),
                            past, first_token, num_tokens, rows);
  attend_many_over<false, float>(call, batch, kv_head, call.first_new(first_token), last_token,
                                 first_token, num_tokens, rows);
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    float* y = result_of(call, batch, kv_head * call.group + r / num_tokens,
                         first_token + r % num_tokens);
    for (int64_t d = 0; d < call.dim; ++d)
      y[d] = rows.sums[r * rows.padded_dim + d] / rows.total[r];
  }
}

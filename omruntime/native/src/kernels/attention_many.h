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

#if OM_WIDTH >= 8
OM_INLINE __m256 eight_values(const float* p) { return _mm256_loadu_ps(p); }
OM_INLINE __m256 eight_values(const uint16_t* bfloat16) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bfloat16));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// Eight values of eight keys, each key becoming a column of `out`.
template <class T>
OM_INLINE void turn_eight(const T* keys, int64_t stride, float* out) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = eight_values(keys + i * stride);
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xEE);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * kPanel, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * kPanel, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}
#endif

// Keys of a run into columns of their panels, from column `at` of the tile on.
template <class T>
OM_INLINE void turn_keys(const KeyRun<T>& run, int64_t dim, int64_t at, float* panels) {
  const auto column = [&](int64_t key) {
    return panels + (at + key) / kPanel * dim * kPanel + (at + key) % kPanel;
  };
  int64_t key = 0;
#if OM_WIDTH >= 8
  // Whole groups of eight columns never cross a panel's edge.
  for (; at % 8 == 0 && dim % 8 == 0 && key + 8 <= run.count; key += 8)
    for (int64_t d = 0; d < dim; d += 8)
      turn_eight(run.keys + key * run.key_stride + d, run.key_stride, column(key) + d * kPanel);
#endif
  for (; key < run.count; ++key)
    for (int64_t d = 0; d < dim; ++d)
      column(key)[d * kPanel] = widened(run.keys[key * run.key_stride + d]);
}

// Copy keys in [first, last) into the tile, turned around, and values as they are; zeros behind.
template <bool IS_PAST, class T>
void stage_keys(const AttentionCall& call, int64_t batch, int64_t kv_head, int64_t first,
                int64_t last, ManyRows& rows) {
  if (last - first < kTileKeys) {
    std::memset(rows.keys, 0, kTileKeys * call.dim * sizeof(float));
    std::memset(rows.values, 0, kTileKeys * rows.padded_dim * sizeof(float));
  }
  for (int64_t key = first; key < last;) {
    const auto run = run_at<IS_PAST, T>(call, batch, kv_head, key, last);
    turn_keys(run, call.dim, key - first, rows.keys);
    for (int64_t i = 0; i < run.count; ++i) {
      float* row = rows.values + (key - first + i) * rows.padded_dim;
      const T* values = run.values + i * run.value_stride;
      for (int64_t d = 0; d < call.dim; ++d) row[d] = widened(values[d]);
      for (int64_t d = call.dim; d < rows.padded_dim; ++d) row[d] = 0;
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

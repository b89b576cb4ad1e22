// Attention of a few query rows, as in decode: keys and values are read once, in place.

// Above this many rows it pays to turn keys around first (attention_many.h).
constexpr int64_t kFewRows = 8;
// Keys between two rescalings; 64 of 64 values (16 KiB), or the values that belong to them, stay in
// the first level cache while the rows of a group go over them.
constexpr int64_t kFewKeys = 64;
// Dot products that are summed up together.
constexpr int kDots = 8;

// The sum of each of eight vectors.
#if OM_WIDTH >= 8
OM_INLINE __m256 eight_lanes(F v) {
#if OM_WIDTH == 16
  const __m512 wide = reinterpret_cast<__m512>(v);
  return _mm256_add_ps(_mm512_castps512_ps256(wide), _mm512_extractf32x8_ps(wide, 1));
#else
  return reinterpret_cast<__m256>(v);
#endif
}

OM_INLINE void sums_of(const F (&v)[kDots], float* out) {
  const auto pair = [&](int i) { return _mm256_hadd_ps(eight_lanes(v[i]), eight_lanes(v[i + 1])); };
  const __m256 low = _mm256_hadd_ps(pair(0), pair(2)), high = _mm256_hadd_ps(pair(4), pair(6));
  _mm256_storeu_ps(out, _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                                      _mm256_permute2f128_ps(low, high, 0x31)));
}
#else
OM_INLINE void sums_of(const F (&v)[kDots], float* out) {
  for (int i = 0; i < kDots; ++i) out[i] = sum_of(v[i]);
}
#endif

OM_INLINE float widened(float value) { return value; }
OM_INLINE float widened(uint16_t bfloat16) {
  const uint32_t bits = static_cast<uint32_t>(bfloat16) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// scores[i] = query . key i, for up to eight keys; what stands behind `count` is undefined.
template <class T>
OM_INLINE void score_eight(const float* query, const T* keys, int64_t stride, int64_t count,
                           int64_t dim, float* scores) {
  const T* key[kDots];
  for (int i = 0; i < kDots; ++i) key[i] = keys + std::min<int64_t>(i, count - 1) * stride;
  F sums[kDots] = {};
  int64_t d = 0;
  for (; d + OM_WIDTH <= dim; d += OM_WIDTH) {
    const F q = load(query + d);
#pragma GCC unroll 8
    for (int i = 0; i < kDots; ++i) sums[i] += q * load(key[i] + d);
  }
  sums_of(sums, scores);
  for (; d < dim; ++d)
    for (int i = 0; i < kDots; ++i) scores[i] += query[d] * widened(key[i][d]);
}

// out = out * factor + sum of weights[i] * values[i], N vectors of it.
template <int N, class T>
OM_INLINE void add_values(const float* weights, const T* values, int64_t stride, int64_t count,
                          float* out) {
  F sums[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) sums[n] = load(out + n * OM_WIDTH);
  for (int64_t i = 0; i < count; ++i) {
    const F weight = splat(weights[i]);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sums[n] += weight * load(values + i * stride + n * OM_WIDTH);
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) store(out + n * OM_WIDTH, sums[n]);
}

template <class T>
OM_INLINE void add_all_values(const float* weights, const KeyRun<T>& run, int64_t dim, float* out) {
  int64_t d = 0;
  for (; d + 8 * OM_WIDTH <= dim; d += 8 * OM_WIDTH)
    add_values<8>(weights, run.values + d, run.value_stride, run.count, out + d);
  for (; d + 2 * OM_WIDTH <= dim; d += 2 * OM_WIDTH)
    add_values<2>(weights, run.values + d, run.value_stride, run.count, out + d);
  for (; d + OM_WIDTH <= dim; d += OM_WIDTH)
    add_values<1>(weights, run.values + d, run.value_stride, run.count, out + d);
  for (; d < dim; ++d)
    for (int64_t i = 0; i < run.count; ++i)
      out[d] += weights[i] * widened(run.values[i * run.value_stride + d]);
}

// What the rows of one head group know so far.
struct FewRows {
  alignas(64) float queries[kFewRows][kMaxHeadDim];
  alignas(64) float sums[kFewRows][kMaxHeadDim];
  // Of one tile of keys. What is written over the end of a run, the next one or the padding
  // overwrites.
  alignas(64) float scores[kFewRows][kFewKeys + 2 * kDots + OM_WIDTH];
  float largest[kFewRows], total[kFewRows];
};

// The keys between two rescalings, as runs.
template <class T>
struct FewKeys {
  KeyRun<T> runs[kFewKeys];
  int num_runs = 0;
};

template <bool IS_PAST, class T>
OM_INLINE FewKeys<T> few_keys(const AttentionCall& call, int64_t batch, int64_t kv_head,
                              int64_t begin, int64_t last) {
  FewKeys<T> keys;
  const int64_t end = std::min(last, begin + kFewKeys);
  for (int64_t key = begin; key < end; key += keys.runs[keys.num_runs++].count)
    keys.runs[keys.num_runs] = run_at<IS_PAST, T>(call, batch, kv_head, key, end);
  return keys;
}

// Blocks lie anywhere, where no prefetcher of the CPU expects them: what comes next is asked for
// while the present is worked on, values while keys are, the next keys while values are. Each of
// `num_rows` query rows asks for its share, so that memory never waits for arithmetic.
template <class T>
OM_INLINE void fetch_share(const T* rows, int64_t stride, int64_t count, int64_t dim, int64_t r,
                           int64_t num_rows) {
  constexpr int64_t kPerLine = 64 / sizeof(T);
  for (int64_t i = r; i < count; i += num_rows)
    for (int64_t d = 0; d < dim; d += kPerLine) __builtin_prefetch(rows + i * stride + d);
}

// A tile of keys for one row: scores, weights, and what they make of earlier sums.
template <class T>
OM_INLINE void score_row(const AttentionCall& call, const FewKeys<T>& keys, int64_t seen_begin,
                         int64_t seen_end, FewRows& rows, int64_t r) {
  const int64_t num_rows = call.group * call.tokens;
  int64_t count = 0;
  for (int i = 0; i < keys.num_runs; count += keys.runs[i].count, ++i) {
    const KeyRun<T>& run = keys.runs[i];
    fetch_share(run.values, run.value_stride, run.count, call.dim, r, num_rows);
    for (int64_t key = 0; key < run.count; key += kDots)
      score_eight(rows.queries[r], run.keys + key * run.key_stride, run.key_stride,
                  run.count - key, call.dim, rows.scores[r] + count + key);
  }
  const int64_t padded = (count + OM_WIDTH - 1) / OM_WIDTH * OM_WIDTH;
  const float factor = weigh(rows.scores[r], padded, seen_begin, std::min(seen_end, count),
                             call.softcap, rows.largest[r], rows.total[r]);
  if (factor != 1.0f)
    for (int64_t d = 0; d < call.dim; ++d) rows.sums[r][d] *= factor;
}

template <class T>
OM_INLINE void sum_row(const AttentionCall& call, const FewKeys<T>& keys, const FewKeys<T>& next,
                       FewRows& rows, int64_t r) {
  const float* weights = rows.scores[r];
  for (int i = 0; i < keys.num_runs; weights += keys.runs[i].count, ++i) {
    if (i < next.num_runs)
      fetch_share(next.runs[i].keys, next.runs[i].key_stride, next.runs[i].count, call.dim, r,
                  call.group * call.tokens);
    add_all_values(weights, keys.runs[i], call.dim, rows.sums[r]);
  }
}

// All rows over keys in [first, last) of the past or of the new tokens.
template <bool IS_PAST, class T>
void attend_few_over(const AttentionCall& call, int64_t batch, int64_t kv_head, int64_t first,
                     int64_t last, FewRows& rows) {
  const int64_t num_rows = call.group * call.tokens;
  FewKeys<T> keys = few_keys<IS_PAST, T>(call, batch, kv_head, first, last);
  for (int64_t begin = first; begin < last; begin += kFewKeys) {
    const int64_t end = std::min(last, begin + kFewKeys);
    const FewKeys<T> next = few_keys<IS_PAST, T>(call, batch, kv_head, end, last);
    // Keys and values of a tile fill the first level cache each: one after the other.
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t token = r % call.tokens;
      const int64_t seen = IS_PAST ? call.first_past(batch, token) : call.first_new(token);
      const int64_t end_seen = IS_PAST ? end : token + 1;
      score_row(call, keys, seen - begin, end_seen - begin, rows, r);
    }
    for (int64_t r = 0; r < num_rows; ++r) sum_row(call, keys, next, rows, r);
    keys = next;
  }
}

template <class T>
void attend_few(const AttentionCall& call, int64_t batch, int64_t kv_head) {
  FewRows rows;
  const int64_t num_rows = call.group * call.tokens, past = call.past_len(batch);
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* query =
        query_of(call, batch, kv_head * call.group + r / call.tokens, r % call.tokens);
    for (int64_t d = 0; d < call.dim; ++d) {
      rows.queries[r][d] = query[d] * call.scale;
      rows.sums[r][d] = 0;
    }
    rows.largest[r] = kUnseen;
    rows.total[r] = 0;
  }
  attend_few_over<true, T>(call, batch, kv_head, std::min(past, call.first_past(batch, 0)), past,
                           rows);
  attend_few_over<false, float>(call, batch, kv_head, 0, call.tokens, rows);
  for (int64_t r = 0; r < num_rows; ++r) {
    float* y = result_of(call, batch, kv_head * call.group + r / call.tokens, r % call.tokens);
    for (int64_t d = 0; d < call.dim; ++d) y[d] = rows.sums[r][d] / rows.total[r];
  }
}

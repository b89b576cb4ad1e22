// attention: softmax(q @ keys * scale) @ values over a paged cache, read where it lies.
//
// Row i of a batch sees the cached positions below its past length and the new tokens up to itself;
// with a window, only those less than so many positions back. Grouped queries share a key head.
// Scores go through scale, then softcap * tanh(score / softcap) where that is above 0.
//
// Tensors: q float32 [batch, heads, tokens, dim]; key, value float32 [batch, kv_heads, tokens, dim];
// the pool's keys and values, float32 or bfloat16 [kv_heads, blocks, block_size, dim]; block_tables
// int32 [batch, blocks of a row]; past_lens int32 [batch]; positions int32 [batch, tokens]; y float32
// [batch, tokens, heads, dim]. Numbers: scale, window (0: none), softcap (0: none).
//
// Softmax goes over the keys once, in tiles: sums so far are scaled down when a larger score comes.

// Wider heads would not fit the buffers below, which stand on the stack.
constexpr int64_t kMaxHeadDim = 256;
// Stands for the score of what is not seen: far below any score, and a number.
constexpr float kUnseen = -1e30f;

struct AttentionCall {
  om_tensor q, key, value, pool_key, pool_value, tables, past_lens, positions, y;
  float scale, softcap;
  int64_t window, group, tokens, dim, block_size;

  int64_t past_len(int64_t batch) const {
    // Never beyond the table, whatever the input says.
    const int64_t length = static_cast<const int32_t*>(past_lens.data)[batch];
    return std::max<int64_t>(0, std::min(length, tables.shape[1] * block_size));
  }
  // The first cached position that a token sees.
  int64_t first_past(int64_t batch, int64_t token) const {
    if (window == 0) return 0;
    const int32_t* at = static_cast<const int32_t*>(positions.data);
    const int64_t position = at[batch * positions.strides[0] + token * positions.strides[1]];
    return std::max<int64_t>(0, position - window + 1);
  }
  // The first new token that a token sees.
  int64_t first_new(int64_t token) const {
    return window == 0 ? 0 : std::max<int64_t>(0, token - window + 1);
  }
};

// Consecutive keys and values of one head, each row `stride` values after the one before.
template <class T>
struct KeyRun {
  const T *keys, *values;
  int64_t key_stride, value_stride, count;
};

// Cached positions from `first` on, up to `limit` and to the end of their block.
template <class T>
OM_INLINE KeyRun<T> past_run(const AttentionCall& call, int64_t batch, int64_t kv_head,
                             int64_t first, int64_t limit) {
  const int64_t block = static_cast<const int32_t*>(
      call.tables.data)[batch * call.tables.strides[0] + first / call.block_size];
  const int64_t offset = first % call.block_size;
  const auto at = [&](const om_tensor& pool) {
    return static_cast<const T*>(pool.data) + kv_head * pool.strides[0] + block * pool.strides[1] +
           offset * pool.strides[2];
  };
  return {at(call.pool_key), at(call.pool_value), call.pool_key.strides[2],
          call.pool_value.strides[2], std::min(limit - first, call.block_size - offset)};
}

// New tokens from `first` on, up to `limit`.
OM_INLINE KeyRun<float> new_run(const AttentionCall& call, int64_t batch, int64_t kv_head,
                                int64_t first, int64_t limit) {
  const auto at = [&](const om_tensor& t) {
    return static_cast<const float*>(t.data) + batch * t.strides[0] + kv_head * t.strides[1] +
           first * t.strides[2];
  };
  return {at(call.key), at(call.value), call.key.strides[2], call.value.strides[2], limit - first};
}

template <bool IS_PAST, class T>
OM_INLINE KeyRun<T> run_at(const AttentionCall& call, int64_t batch, int64_t kv_head, int64_t first,
                           int64_t limit) {
  if constexpr (IS_PAST) {
    return past_run<T>(call, batch, kv_head, first, limit);
  } else {
    return new_run(call, batch, kv_head, first, limit);
  }
}

OM_INLINE const float* query_of(const AttentionCall& call, int64_t batch, int64_t head,
                                int64_t token) {
  return static_cast<const float*>(call.q.data) + batch * call.q.strides[0] +
         head * call.q.strides[1] + token * call.q.strides[2];
}

OM_INLINE float* result_of(const AttentionCall& call, int64_t batch, int64_t head, int64_t token) {
  return static_cast<float*>(call.y.data) + batch * call.y.strides[0] + token * call.y.strides[1] +
         head * call.y.strides[2];
}

// Scores [count], a multiple of OM_WIDTH, become weights; those outside [seen_begin, seen_end) are
// hidden. Returns what earlier sums must be multiplied by.
OM_INLINE float weigh(float* scores, int64_t count, int64_t seen_begin, int64_t seen_end,
                      float softcap, float& largest, float& total) {
  if (softcap > 0)
    for (int64_t i = 0; i < count; i += OM_WIDTH)
      store(scores + i, splat(softcap) * tanh_of(load(scores + i) / splat(softcap)));
  for (int64_t i = 0; i < std::min(seen_begin, count); ++i) scores[i] = kUnseen;
  for (int64_t i = std::max<int64_t>(0, seen_end); i < count; ++i) scores[i] = kUnseen;
  F most = splat(largest);
  for (int64_t i = 0; i < count; i += OM_WIDTH) most = max_of(most, load(scores + i));
  const float now_largest = largest_of(most);
  F sum{};
  for (int64_t i = 0; i < count; i += OM_WIDTH) {
    const F weight = exp_of(load(scores + i) - splat(now_largest));
    store(scores + i, weight);
    sum += weight;
  }
  const float factor = now_largest == largest ? 1.0f : exp_of(splat(largest - now_largest))[0];
  total = total * factor + sum_of(sum);
  largest = now_largest;
  return factor;
}

#include "attention_few.h"

#include "attention_many.h"

template <class T>
void attention_of(const AttentionCall& call, ThreadPool& pool) {
  const int64_t kv_heads = call.key.shape[1], batch = call.q.shape[0];
  if (call.group * call.tokens <= kFewRows) {
    pool.run(batch * kv_heads,
             [&](int64_t item) { attend_few<T>(call, item / kv_heads, item % kv_heads); });
    return;
  }
  const int64_t tile_tokens = std::max<int64_t>(1, kTileRows / call.group);
  const int64_t num_tiles = (call.tokens + tile_tokens - 1) / tile_tokens;
  pool.run(batch * kv_heads * num_tiles, [&](int64_t item) {
    // Late tokens see most: they go first, so that no thread ends long after the others.
    const int64_t tile = num_tiles - 1 - item / (batch * kv_heads);
    const int64_t row = item % (batch * kv_heads);
    const int64_t first = tile * tile_tokens;
    attend_many<T>(call, row / kv_heads, row % kv_heads, first,
                   std::min(call.tokens, first + tile_tokens));
  });
}

void attention(const Call& call, ThreadPool& pool) {
  const auto& t = call.tensors;
  const AttentionCall attention{t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8],
                                static_cast<float>(call.numbers[0]),
                                static_cast<float>(call.numbers[2]),
                                static_cast<int64_t>(call.numbers[1]),
                                t[0].shape[1] / t[1].shape[1],
                                t[0].shape[2],
                                t[0].shape[3],
                                t[3].shape[2]};
  t[3].dtype == OM_BFLOAT16 ? attention_of<uint16_t>(attention, pool)
                            : attention_of<float>(attention, pool);
}

inline const char* check_pool(const om_tensor& pool, const om_tensor& key) {
  if (pool.rank != 4 || (pool.dtype != OM_FLOAT32 && pool.dtype != OM_BFLOAT16) ||
      pool.shape[0] != key.shape[1] || pool.shape[3] != key.shape[3] || pool.strides[3] != 1)
    return "attention takes a pool [kv_heads, blocks, block_size, dim], float32 or bfloat16";
  return nullptr;
}

inline const char* check_attention(const Call& call) {
  if (call.tensors.size() != 9 || call.numbers.size() != 3)
    return "attention takes 9 tensors and scale, window and softcap";
  const om_tensor &q = call.tensors[0], &key = call.tensors[1], &value = call.tensors[2],
                  &tables = call.tensors[5], &past_lens = call.tensors[6],
                  &positions = call.tensors[7], &y = call.tensors[8];
  for (const auto* t : {&q, &key, &value, &y})
    if (t->rank != 4 || !has_whole_rows(*t))
      return "attention takes float32 q, key, value and y of rank 4, heads in one piece";
  if (q.shape[3] > kMaxHeadDim) return "attention takes heads of at most 256 values";
  if (q.shape[1] > kTileRows * key.shape[1]) return "attention takes groups of at most 96 heads";
  if (!is_same_shape(key, value) || q.shape[0] != key.shape[0] || q.shape[2] != key.shape[2] ||
      q.shape[3] != key.shape[3] || q.shape[1] % key.shape[1] != 0)
    return "attention's q, key and value do not fit each other";
  if (y.shape[0] != q.shape[0] || y.shape[1] != q.shape[2] || y.shape[2] != q.shape[1] ||
      y.shape[3] != q.shape[3])
    return "attention takes y [batch, tokens, heads, dim]";
  if (const char* problem = check_pool(call.tensors[3], key)) return problem;
  if (const char* problem = check_pool(call.tensors[4], key)) return problem;
  if (call.tensors[3].dtype != call.tensors[4].dtype ||
      !is_same_shape(call.tensors[3], call.tensors[4]))
    return "attention takes keys and values of one type and shape";
  const int64_t batch = q.shape[0];
  if (tables.dtype != OM_INT32 || tables.rank != 2 || tables.shape[0] != batch ||
      (tables.shape[1] > 1 && tables.strides[1] != 1))
    return "attention takes int32 block_tables [batch, blocks]";
  if (past_lens.dtype != OM_INT32 || past_lens.rank != 1 || past_lens.shape[0] != batch)
    return "attention takes int32 past_lens [batch]";
  if (positions.dtype != OM_INT32 || positions.rank != 2 || positions.shape[0] != batch ||
      positions.shape[1] != q.shape[2])
    return "attention takes int32 positions [batch, tokens]";
  return nullptr;
}

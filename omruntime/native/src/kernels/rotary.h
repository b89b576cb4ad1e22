// rotary: y = x * cos + (-x2, x1) * sin, the head's halves apart.
//
// Tensors: x float32 [batch, heads, tokens, dim]; ids int64 [batch, tokens], rows of the tables; cos
// and sin float32 [rows, dim / 2]; y of x's shape, which may be x itself. Heads in one piece.

constexpr int64_t kRotaryValuesPerItem = 16384;

void rotary(const Call& call, ThreadPool& pool) {
  const om_tensor &x = call.tensors[0], &ids = call.tensors[1], &cos = call.tensors[2],
                  &sin = call.tensors[3], &y = call.tensors[4];
  const int64_t half = x.shape[3] / 2, heads = x.shape[1], tokens = x.shape[2];
  const float* in = static_cast<const float*>(x.data);
  float* out = static_cast<float*>(y.data);
  for_each_run(pool, num_rows(x), x.shape[3], kRotaryValuesPerItem, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t batch = row / (heads * tokens), token = row % tokens;
      const int64_t id =
          static_cast<const int64_t*>(ids.data)[batch * ids.strides[0] + token * ids.strides[1]];
      const float* c = static_cast<const float*>(cos.data) + id * cos.strides[0];
      const float* s = static_cast<const float*>(sin.data) + id * sin.strides[0];
      const float* from = in + row_offset(x, row);
      float* to = out + row_offset(y, row);
      for (int64_t i = 0; i < half; ++i) {
        const float first = from[i], second = from[i + half];
        to[i] = first * c[i] - second * s[i];
        to[i + half] = second * c[i] + first * s[i];
      }
    }
  });
}

const char* check_rotary(const Call& call) {
  if (call.tensors.size() != 5) return "rotary takes x, ids, cos, sin and y";
  const om_tensor &x = call.tensors[0], &ids = call.tensors[1], &cos = call.tensors[2],
                  &sin = call.tensors[3], &y = call.tensors[4];
  if (x.rank != 4 || !has_whole_rows(x) || !has_whole_rows(y) || !is_same_shape(x, y))
    return "rotary takes float32 x and y [batch, heads, tokens, dim], heads in one piece";
  if (ids.dtype != OM_INT64 || ids.rank != 2 || ids.shape[0] != x.shape[0] ||
      ids.shape[1] != x.shape[2])
    return "rotary takes int64 ids [batch, tokens]";
  if (!is_rows(cos) || !is_rows(sin) || cos.shape[1] * 2 != x.shape[3] || !is_same_shape(cos, sin))
    return "rotary takes tables of half a head's width";
  return nullptr;
}

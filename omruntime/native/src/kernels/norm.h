// rms_norm: y = x / sqrt(mean(x^2) + epsilon) * weight, over the last axis.
// layer_norm: y = (x - mean) / sqrt(variance + epsilon) * weight + bias.
//
// Tensors: x float32 of any rank and strides, its last axis in one piece; weight float32 [n], and
// bias alike for layer_norm; y of x's shape. Number: epsilon.

// Below this many values the threads cost more than they give.
constexpr int64_t kNormValuesPerItem = 16384;

OM_INLINE float sum_of_squares(const float* x, float mean, int64_t n) {
  F sums{};
  int64_t i = 0;
  for (; i + OM_WIDTH <= n; i += OM_WIDTH) {
    const F v = load(x + i) - splat(mean);
    sums += v * v;
  }
  float sum = sum_of(sums);
  for (; i < n; ++i) sum += (x[i] - mean) * (x[i] - mean);
  return sum;
}

OM_INLINE float mean_of(const float* x, int64_t n) {
  F sums{};
  int64_t i = 0;
  for (; i + OM_WIDTH <= n; i += OM_WIDTH) sums += load(x + i);
  float sum = sum_of(sums);
  for (; i < n; ++i) sum += x[i];
  return sum / static_cast<float>(n);
}

template <bool IS_CENTRED>
void norm(const Call& call, ThreadPool& pool) {
  const om_tensor &x = call.tensors[0], &y = call.tensors[IS_CENTRED ? 3 : 2];
  const float* weight = static_cast<const float*>(call.tensors[1].data);
  const float* bias = IS_CENTRED ? static_cast<const float*>(call.tensors[2].data) : nullptr;
  const float epsilon = static_cast<float>(call.numbers[0]);
  const int64_t n = x.shape[x.rank - 1];
  for_each_row(pool, x, y, kNormValuesPerItem, [&](const float* in, float* out) {
    const float mean = IS_CENTRED ? mean_of(in, n) : 0.0f;
    const float scale =
        1.0f / std::sqrt(sum_of_squares(in, mean, n) / static_cast<float>(n) + epsilon);
    for (int64_t i = 0; i < n; ++i)
      out[i] = (in[i] - mean) * scale * weight[i] + (IS_CENTRED ? bias[i] : 0.0f);
  });
}

template <bool IS_CENTRED>
const char* check_norm(const Call& call) {
  const std::size_t wanted = IS_CENTRED ? 4 : 3;
  if (call.tensors.size() != wanted || call.numbers.size() != 1)
    return "a norm takes x, its weights, y and epsilon";
  const om_tensor &x = call.tensors[0], &y = call.tensors[wanted - 1];
  if (!has_whole_rows(x) || !has_whole_rows(y) || !is_same_shape(x, y))
    return "a norm takes float32 x and y of one shape, the last axis in one piece";
  for (std::size_t i = 1; i + 1 < wanted; ++i)
    if (!is_vector(call.tensors[i], x.shape[x.rank - 1]))
      return "a norm takes float32 weights for its last axis";
  return nullptr;
}

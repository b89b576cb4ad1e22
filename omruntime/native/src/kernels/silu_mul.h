// silu_mul: y = gate * sigmoid(gate) * up.
//
// Tensors: gate, up and y, float32 of one shape, the last axis in one piece.

constexpr int64_t kSiluValuesPerItem = 8192;

void silu_mul(const Call& call, ThreadPool& pool) {
  const om_tensor &gate = call.tensors[0], &up = call.tensors[1], &y = call.tensors[2];
  const int64_t n = y.shape[y.rank - 1];
  for_each_run(pool, num_rows(y), n, kSiluValuesPerItem, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* g = static_cast<const float*>(gate.data) + row_offset(gate, row);
      const float* u = static_cast<const float*>(up.data) + row_offset(up, row);
      float* out = static_cast<float*>(y.data) + row_offset(y, row);
      int64_t i = 0;
      for (; i + OM_WIDTH <= n; i += OM_WIDTH) {
        const F value = load(g + i);
        store(out + i, value * sigmoid_of(value) * load(u + i));
      }
      for (; i < n; ++i) out[i] = g[i] / (1.0f + std::exp(-g[i])) * u[i];
    }
  });
}

const char* check_silu_mul(const Call& call) {
  if (call.tensors.size() != 3) return "silu_mul takes gate, up and y";
  for (const auto& tensor : call.tensors)
    if (!has_whole_rows(tensor) || !is_same_shape(tensor, call.tensors[2]))
      return "silu_mul takes float32 tensors of one shape, the last axis in one piece";
  return nullptr;
}

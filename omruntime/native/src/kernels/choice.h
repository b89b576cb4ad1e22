// What chooses experts: softmax, top_k, comparisons, where, sum.
//
// softmax: x, y float32 of one shape, over the last axis. top_k: x float32 [..., n], values float32
// and indices int64 [..., k], the largest first, of equal ones the one that comes first. equal,
// greater: x, z of one type (float32, int32 or int64) and y bool, of one shape. where: condition
// bool, x, z and y float32, of one shape. sum: x float32 [..., n], y float32 [...], over the last
// axis. A stride of 0 repeats a value.

void softmax(const Call& call, ThreadPool& pool) {
  const om_tensor &x = call.tensors[0], &y = call.tensors[1];
  const int64_t n = x.shape[x.rank - 1];
  for_each_row(pool, x, y, kValuesPerItem / 4, [&](const float* in, float* out) {
    float most = in[0], total = 0;
    for (int64_t i = 1; i < n; ++i) most = std::max(most, in[i]);
    for (int64_t i = 0; i < n; ++i) total += out[i] = std::exp(in[i] - most);
    for (int64_t i = 0; i < n; ++i) out[i] /= total;
  });
}

void top_k(const Call& call, ThreadPool& pool) {
  const om_tensor &x = call.tensors[0], &values = call.tensors[1], &indices = call.tensors[2];
  const int64_t n = x.shape[x.rank - 1], k = values.shape[values.rank - 1];
  for_each_run(pool, num_rows(x), n * k, kValuesPerItem, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = static_cast<const float*>(x.data) + row_offset(x, row);
      float* best = static_cast<float*>(values.data) + row_offset(values, row);
      int64_t* at = static_cast<int64_t*>(indices.data) + row_offset(indices, row);
      // Insertion into the k best so far: k is a handful.
      int64_t count = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (count == k && !(in[i] > best[k - 1])) continue;
        int64_t place = count < k ? count++ : k - 1;
        for (; place > 0 && in[i] > best[place - 1]; --place) {
          best[place] = best[place - 1];
          at[place] = at[place - 1];
        }
        best[place] = in[i];
        at[place] = i;
      }
    }
  });
}

struct Equal { template <class T> OM_INLINE static bool of(T a, T b) { return a == b; } };
struct Greater { template <class T> OM_INLINE static bool of(T a, T b) { return a > b; } };

template <class Function, class T>
void compare_of(const Call& call, ThreadPool& pool) {
  const om_tensor &a = call.tensors[0], &b = call.tensors[1], &y = call.tensors[2];
  const int last = y.rank - 1;
  for_each_run(pool, num_rows(y), y.shape[last], kValuesPerItem, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* left = static_cast<const T*>(a.data) + row_offset(a, row);
      const T* right = static_cast<const T*>(b.data) + row_offset(b, row);
      bool* out = static_cast<bool*>(y.data) + row_offset(y, row);
      for (int64_t i = 0; i < y.shape[last]; ++i)
        out[i] = Function::of(left[i * a.strides[last]], right[i * b.strides[last]]);
    }
  });
}

template <class Function>
void compare(const Call& call, ThreadPool& pool) {
  switch (call.tensors[0].dtype) {
    case OM_INT32: return compare_of<Function, int32_t>(call, pool);
    case OM_INT64: return compare_of<Function, int64_t>(call, pool);
    default: return compare_of<Function, float>(call, pool);
  }
}

void where(const Call& call, ThreadPool& pool) {
  const om_tensor &condition = call.tensors[0], &a = call.tensors[1], &b = call.tensors[2],
                  &y = call.tensors[3];
  const int last = y.rank - 1;
  for_each_run(pool, num_rows(y), y.shape[last], kValuesPerItem, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const bool* is = static_cast<const bool*>(condition.data) + row_offset(condition, row);
      const float* left = static_cast<const float*>(a.data) + row_offset(a, row);
      const float* right = static_cast<const float*>(b.data) + row_offset(b, row);
      float* out = static_cast<float*>(y.data) + row_offset(y, row);
      for (int64_t i = 0; i < y.shape[last]; ++i)
        out[i] = is[i * condition.strides[last]] ? left[i * a.strides[last]]
                                                 : right[i * b.strides[last]];
    }
  });
}

void sum(const Call& call, ThreadPool& pool) {
  const om_tensor &x = call.tensors[0], &y = call.tensors[1];
  const int64_t n = x.shape[x.rank - 1], stride = x.strides[x.rank - 1];
  // y's last axis is as good as a row of its own for each value.
  om_tensor out = y;
  out.shape[out.rank++] = 1;
  for_each_run(pool, num_rows(x), n, kValuesPerItem, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = static_cast<const float*>(x.data) + row_offset(x, row);
      float total = 0;
      for (int64_t i = 0; i < n; ++i) total += in[i * stride];
      static_cast<float*>(y.data)[row_offset(out, row)] = total;
    }
  });
}

const char* check_softmax(const Call& call) {
  const char* problem = check_unary(call);
  return problem == nullptr ? nullptr : "softmax takes float32 x and y of one shape, rows in one piece";
}

const char* check_top_k(const Call& call) {
  if (call.tensors.size() != 3) return "top_k takes x, values and indices";
  const om_tensor &x = call.tensors[0], &values = call.tensors[1], &indices = call.tensors[2];
  if (!has_whole_rows(x) || !has_whole_rows(values) || indices.dtype != OM_INT64 ||
      !is_same_shape(values, indices) || num_rows(x) != num_rows(values) ||
      (indices.shape[indices.rank - 1] > 1 && indices.strides[indices.rank - 1] != 1))
    return "top_k takes float32 x and values and int64 indices, rows in one piece";
  const int64_t k = values.shape[values.rank - 1];
  if (k < 1 || k > x.shape[x.rank - 1]) return "top_k takes at least 1 and at most a whole row";
  return nullptr;
}

const char* check_compare(const Call& call) {
  if (call.tensors.size() != 3) return "a comparison takes x, z and y";
  const om_tensor &a = call.tensors[0], &b = call.tensors[1], &y = call.tensors[2];
  if (y.dtype != OM_BOOL || y.rank == 0 || (y.shape[y.rank - 1] > 1 && y.strides[y.rank - 1] != 1))
    return "a comparison takes a y of truth values, rows in one piece";
  if (a.dtype != b.dtype || !is_same_shape(a, y) || !is_same_shape(b, y) ||
      (a.dtype != OM_FLOAT32 && a.dtype != OM_INT32 && a.dtype != OM_INT64))
    return "a comparison takes one type of float32, int32 or int64, and one shape";
  return nullptr;
}

const char* check_where(const Call& call) {
  if (call.tensors.size() != 4) return "where takes a condition, x, z and y";
  const om_tensor& y = call.tensors[3];
  if (call.tensors[0].dtype != OM_BOOL || !has_whole_rows(y))
    return "where takes a condition of truth values and a float32 y, rows in one piece";
  for (int i = 0; i < 3; ++i)
    if (!is_same_shape(call.tensors[i], y) || (i > 0 && call.tensors[i].dtype != OM_FLOAT32))
      return "where takes float32 x and z, and one shape";
  return nullptr;
}

const char* check_sum(const Call& call) {
  if (call.tensors.size() != 2) return "sum takes x and y";
  const om_tensor &x = call.tensors[0], &y = call.tensors[1];
  bool fits = x.dtype == OM_FLOAT32 && y.dtype == OM_FLOAT32 && x.rank == y.rank + 1;
  for (int axis = 0; fits && axis < y.rank; ++axis) fits = x.shape[axis] == y.shape[axis];
  return fits ? nullptr : "sum takes float32 x [..., n] and y [...]";
}

// Walks over the rows of tensors with strides. A row is the last axis.

// The element offset of row `index`, counted over all axes but the last.
OM_INLINE int64_t row_offset(const om_tensor& t, int64_t index) {
  int64_t offset = 0;
  for (int axis = t.rank - 2; axis >= 0; --axis) {
    offset += index % t.shape[axis] * t.strides[axis];
    index /= t.shape[axis];
  }
  return offset;
}

inline int64_t num_rows(const om_tensor& t) {
  int64_t rows = 1;
  for (int axis = 0; axis + 1 < t.rank; ++axis) rows *= t.shape[axis];
  return rows;
}

// Call `body(begin, end)` for runs of rows, each of about `values_per_item` values.
template <class Body>
void for_each_run(ThreadPool& pool, int64_t rows, int64_t row_values, int64_t values_per_item,
                  const Body& body) {
  const int64_t per_item = std::max<int64_t>(1, values_per_item / std::max<int64_t>(1, row_values));
  pool.run((rows + per_item - 1) / per_item, [&](int64_t item) {
    body(item * per_item, std::min(rows, (item + 1) * per_item));
  });
}

// Call `body(x's row, y's row)` for every row of two tensors of one shape.
template <class Body>
void for_each_row(ThreadPool& pool, const om_tensor& x, const om_tensor& y, int64_t values_per_item,
                  const Body& body) {
  const float* in = static_cast<const float*>(x.data);
  float* out = static_cast<float*>(y.data);
  for_each_run(pool, num_rows(x), x.shape[x.rank - 1], values_per_item,
               [&](int64_t begin, int64_t end) {
                 for (int64_t row = begin; row < end; ++row)
                   body(in + row_offset(x, row), out + row_offset(y, row));
               });
}

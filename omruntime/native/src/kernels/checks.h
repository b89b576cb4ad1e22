// What kernels ask of their tensors. Included in each instruction set's namespace, hence no guard.

// float32, of rank 1 or more, the last axis in one piece.
inline bool has_whole_rows(const om_tensor& t) {
  return t.dtype == OM_FLOAT32 && t.rank > 0 &&
         (t.strides[t.rank - 1] == 1 || t.shape[t.rank - 1] <= 1);
}

// float32 [rows, n], each row in one piece.
inline bool is_rows(const om_tensor& t) { return t.rank == 2 && has_whole_rows(t); }

inline bool is_vector(const om_tensor& t, int64_t size) {
  return t.rank == 1 && has_whole_rows(t) && t.shape[0] == size;
}

inline bool is_same_shape(const om_tensor& a, const om_tensor& b) {
  if (a.rank != b.rank) return false;
  for (int axis = 0; axis < a.rank; ++axis)
    if (a.shape[axis] != b.shape[axis]) return false;
  return true;
}

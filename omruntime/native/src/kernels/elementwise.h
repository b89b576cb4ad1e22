// Value by value: unary and binary functions, cast and gather, over any strides.
//
// unary: x, y of one shape, float32. binary: x, z, y of one shape (a stride of 0 repeats a value),
// all float32, int32 or int64. cast: x, y of one shape and any types but MATRIX; bfloat16 is rounded
// to the nearest even. gather: table [rows, n], ids int32 or int64 [count], y [count, n] of the
// table's type.

constexpr int64_t kValuesPerItem = 16384;

// Angles are few: one row for each new token.
template <float (*FUNCTION)(float)>
OM_INLINE F one_by_one(F x) {
  for (int i = 0; i < OM_WIDTH; ++i) x[i] = FUNCTION(x[i]);
  return x;
}

struct Cos {
  OM_INLINE static F of(F x) { return one_by_one<std::cos>(x); }
};
struct Sin {
  OM_INLINE static F of(F x) { return one_by_one<std::sin>(x); }
};
struct Neg {
  OM_INLINE static F of(F x) { return -x; }
};
struct Sigmoid {
  OM_INLINE static F of(F x) { return sigmoid_of(x); }
};
struct Tanh {
  OM_INLINE static F of(F x) { return tanh_of(x); }
};

struct Add {
  template <class T>
  OM_INLINE static T of(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <class T>
  OM_INLINE static T of(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <class T>
  OM_INLINE static T of(T a, T b) {
    return a * b;
  }
};
struct Div {
  template <class T>
  OM_INLINE static T of(T a, T b) {
    return a / b;
  }
};
struct Pow {
  template <class T>
  OM_INLINE static T of(T a, T b) {
    return static_cast<T>(std::pow(a, b));
  }
};

template <class Function>
void unary(const Call& call, ThreadPool& pool) {
  const om_tensor &x = call.tensors[0], &y = call.tensors[1];
  const int64_t n = y.shape[y.rank - 1];
  for_each_row(pool, x, y, kValuesPerItem / 4, [&](const float* in, float* out) {
    int64_t i = 0;
    for (; i + OM_WIDTH <= n; i += OM_WIDTH) store(out + i, Function::of(load(in + i)));
    for (; i < n; ++i) out[i] = Function::of(splat(in[i]))[0];
  });
}

const char* check_unary(const Call& call) {
  if (call.tensors.size() != 2 || !has_whole_rows(call.tensors[0]) ||
      !has_whole_rows(call.tensors[1]) || !is_same_shape(call.tensors[0], call.tensors[1]))
    return "a function of one value takes float32 x and y of one shape, the last axis in one piece";
  return nullptr;
}

template <class Function, class T>
OM_INLINE void binary_row(const T* a, int64_t a_stride, const T* b, int64_t b_stride, T* out,
                          int64_t n) {
  // Spelled out, so that each becomes a loop over vectors.
  if (a_stride == 1 && b_stride == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = Function::of(a[i], b[i]);
  } else if (a_stride == 1 && b_stride == 0) {
    const T value = b[0];
    for (int64_t i = 0; i < n; ++i) out[i] = Function::of(a[i], value);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = Function::of(a[i * a_stride], b[i * b_stride]);
  }
}

template <class Function, class T>
void binary_of(const Call& call, ThreadPool& pool) {
  const om_tensor &a = call.tensors[0], &b = call.tensors[1], &y = call.tensors[2];
  const int last = y.rank - 1;
  for_each_run(pool, num_rows(y), y.shape[last], kValuesPerItem, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      binary_row<Function, T>(static_cast<const T*>(a.data) + row_offset(a, row), a.strides[last],
                              static_cast<const T*>(b.data) + row_offset(b, row), b.strides[last],
                              static_cast<T*>(y.data) + row_offset(y, row), y.shape[last]);
  });
}

template <class Function>
void binary(const Call& call, ThreadPool& pool) {
  switch (call.tensors[2].dtype) {
    case OM_INT32: return binary_of<Function, int32_t>(call, pool);
    case OM_INT64: return binary_of<Function, int64_t>(call, pool);
    default: return binary_of<Function, float>(call, pool);
  }
}

const char* check_binary(const Call& call) {
  if (call.tensors.size() != 3) return "a function of two values takes x, z and y";
  const om_tensor& y = call.tensors[2];
  if (y.rank == 0 || (y.strides[y.rank - 1] != 1 && y.shape[y.rank - 1] > 1))
    return "a function of two values takes a y whose last axis is in one piece";
  if (y.dtype != OM_FLOAT32 && y.dtype != OM_INT32 && y.dtype != OM_INT64)
    return "a function of two values takes float32, int32 or int64";
  for (const auto& tensor : call.tensors)
    if (tensor.dtype != y.dtype || !is_same_shape(tensor, y))
      return "a function of two values takes one type and one shape";
  return nullptr;
}

// A bfloat16 as what it is stored in, but another type than any whole number.
struct Bfloat16 {
  uint16_t bits;
};

template <class To, class From>
OM_INLINE To cast_value(From from) {
  return static_cast<To>(from);
}
template <>
OM_INLINE float cast_value<float, Bfloat16>(Bfloat16 from) {
  const uint32_t bits = static_cast<uint32_t>(from.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
template <>
OM_INLINE Bfloat16 cast_value<Bfloat16, float>(float from) {
  uint32_t bits;
  std::memcpy(&bits, &from, sizeof(bits));
  // Rounding up would make an infinity of a NaN with few bits set.
  if (from != from) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

template <class From, class To>
void cast_of(const Call& call, ThreadPool& pool) {
  const om_tensor &x = call.tensors[0], &y = call.tensors[1];
  const int last = y.rank - 1;
  const int64_t n = y.shape[last], x_stride = x.strides[last], y_stride = y.strides[last];
  for_each_run(pool, num_rows(y), n, kValuesPerItem, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const From* in = static_cast<const From*>(x.data) + row_offset(x, row);
      To* out = static_cast<To*>(y.data) + row_offset(y, row);
      if (x_stride == 1 && y_stride == 1) {
        for (int64_t i = 0; i < n; ++i) out[i] = cast_value<To>(in[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) out[i * y_stride] = cast_value<To>(in[i * x_stride]);
      }
    }
  });
}

using Run = void (*)(const Call& call, ThreadPool& pool);

// The kernel for two types, or NULL.
inline Run find_cast(int32_t from, int32_t to) {
  if (from == OM_FLOAT32 && to == OM_FLOAT32) return cast_of<float, float>;
  if (from == OM_FLOAT32 && to == OM_BFLOAT16) return cast_of<float, Bfloat16>;
  if (from == OM_BFLOAT16 && to == OM_FLOAT32) return cast_of<Bfloat16, float>;
  if (from == OM_BFLOAT16 && to == OM_BFLOAT16) return cast_of<Bfloat16, Bfloat16>;
  if (from == OM_INT8 && to == OM_FLOAT32) return cast_of<int8_t, float>;
  if (from == OM_BOOL && to == OM_FLOAT32) return cast_of<bool, float>;
  if (from == OM_INT32 && to == OM_FLOAT32) return cast_of<int32_t, float>;
  if (from == OM_INT32 && to == OM_INT32) return cast_of<int32_t, int32_t>;
  if (from == OM_INT32 && to == OM_INT64) return cast_of<int32_t, int64_t>;
  if (from == OM_INT64 && to == OM_INT32) return cast_of<int64_t, int32_t>;
  if (from == OM_INT64 && to == OM_INT64) return cast_of<int64_t, int64_t>;
  return nullptr;
}

void cast(const Call& call, ThreadPool& pool) {
  find_cast(call.tensors[0].dtype, call.tensors[1].dtype)(call, pool);
}

const char* check_cast(const Call& call) {
  if (call.tensors.size() != 2 || call.tensors[1].rank == 0 ||
      !is_same_shape(call.tensors[0], call.tensors[1]))
    return "cast takes x and y of one shape";
  if (find_cast(call.tensors[0].dtype, call.tensors[1].dtype) == nullptr)
    return "cast does not know these types";
  return nullptr;
}

template <class Id>
void gather_by(const Call& call, ThreadPool& pool) {
  const om_tensor &table = call.tensors[0], &ids = call.tensors[1], &y = call.tensors[2];
  const std::size_t row_bytes = item_bytes(table.dtype) * static_cast<std::size_t>(y.shape[1]);
  const char* from = static_cast<const char*>(table.data);
  char* to = static_cast<char*>(y.data);
  const int64_t size = static_cast<int64_t>(item_bytes(table.dtype));
  for_each_run(pool, y.shape[0], y.shape[1], kValuesPerItem, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t id = static_cast<const Id*>(ids.data)[i * ids.strides[0]];
      // As ONNX has it; whatever else comes is kept inside the table.
      if (id < 0) id += table.shape[0];
      id = std::max<int64_t>(0, std::min(id, table.shape[0] - 1));
      std::memcpy(to + i * y.strides[0] * size, from + id * table.strides[0] * size, row_bytes);
    }
  });
}

void gather(const Call& call, ThreadPool& pool) {
  call.tensors[1].dtype == OM_INT32 ? gather_by<int32_t>(call, pool)
                                    : gather_by<int64_t>(call, pool);
}

const char* check_gather(const Call& call) {
  if (call.tensors.size() != 3) return "gather takes a table, ids and y";
  const om_tensor &table = call.tensors[0], &ids = call.tensors[1], &y = call.tensors[2];
  if (table.rank != 2 || y.rank != 2 || table.dtype != y.dtype || table.shape[1] != y.shape[1] ||
      (table.shape[1] > 1 && (table.strides[1] != 1 || y.strides[1] != 1)) || table.shape[0] < 1)
    return "gather takes a table [rows, n] and y [count, n] of one type, rows in one piece";
  if ((ids.dtype != OM_INT32 && ids.dtype != OM_INT64) || ids.rank != 1 ||
      ids.shape[0] != y.shape[0])
    return "gather takes an int32 or int64 id for each row of y";
  return nullptr;
}

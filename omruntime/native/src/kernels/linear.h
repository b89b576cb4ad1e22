// linear: y = x @ matrix * scales + bias + addend, summed in float32.
//
// Tensors: x float32 [rows, inputs], matrix [inputs, outputs], y float32 [rows, outputs], bias
// float32 [outputs] or empty, addend float32 [rows, outputs] or empty; rows may lie apart. `y` may
// be `addend` itself, but not `x`.

// Inputs that one pass works through, so that a panel's part (16 or 32 KiB) stays in the first
// level cache while all rows go by.
constexpr int64_t kPassInputs = 256;
// Rows that one pass works through, so that their part of x (192 KiB) stays in the second level.
constexpr int64_t kPassRows = 192;
// Panels handed to a thread at once when rows are many: each hands x through the cache once.
constexpr int64_t kPanelsPerItem = 8;

// How far weights are fetched ahead where each is used once: what arrives in a memory's latency.
constexpr int64_t kAheadBytes = 2048;

struct LinearCall {
  const Matrix* matrix;
  const float* x;
  float* y;
  const float* bias;
  const float* addend;
  int64_t rows, x_stride, y_stride, addend_stride;
};

// The part of a product that one tile finishes.
struct Tile {
  const LinearCall* call;
  int64_t row, panel, first_input, num_inputs;
  // Weights that are needed next.
  Ahead ahead;
};

// What the first pass adds to a tile's sums, and later ones find in y.
OM_INLINE void add_base(const Tile& tile, int r, int64_t column, int64_t num_columns, float* out) {
  const LinearCall& call = *tile.call;
  const int64_t row = tile.row + r;
  if (tile.first_input > 0) {
    const float* y = call.y + row * call.y_stride + column;
    for (int64_t n = 0; n < num_columns; ++n) out[n] += y[n];
    return;
  }
  if (call.bias != nullptr)
    for (int64_t n = 0; n < num_columns; ++n) out[n] += call.bias[column + n];
  if (call.addend != nullptr) {
    const float* addend = call.addend + row * call.addend_stride + column;
    for (int64_t n = 0; n < num_columns; ++n) out[n] += addend[n];
  }
}

template <int R, class W>
OM_INLINE void finish_tile(const Tile& tile, const W* w) {
  // Only tiles that hold all rows are as low as that: all rows of a product are summed up in the
  // same order, whichever tile they are in.
  constexpr int kUnroll = R == 1 ? 4 : R == 2 ? 2 : 1;
  const LinearCall& call = *tile.call;
  F sums[R][2];
  sum_tile<R, kUnroll, true>(call.x + tile.row * call.x_stride + tile.first_input, call.x_stride,
                             w, kPanel, tile.num_inputs, sums, tile.ahead);
  const int64_t column = tile.panel * kPanel;
  const int64_t num_columns = std::min<int64_t>(kPanel, call.matrix->outputs - column);
  const float* scales =
      call.matrix->scales.empty() ? nullptr : call.matrix->scales.data() + column;
  for (int r = 0; r < R; ++r) {
    if (scales != nullptr) {
      sums[r][0] *= load(scales);
      sums[r][1] *= load(scales + OM_WIDTH);
    }
    float out[kPanel];
    store(out, sums[r][0]);
    store(out + OM_WIDTH, sums[r][1]);
    float* y = call.y + (tile.row + r) * call.y_stride + column;
    if (num_columns == kPanel) {
      add_base(tile, r, column, kPanel, out);
      std::memcpy(y, out, sizeof(out));
    } else {
      add_base(tile, r, column, num_columns, out);
      std::memcpy(y, out, num_columns * sizeof(float));
    }
  }
}

template <class W, int R = 1>
void finish_rows(const Tile& tile, int rows, const W* w) {
  if constexpr (R < kMaxRows) {
    if (rows > R) return finish_rows<W, R + 1>(tile, rows, w);
  }
  finish_tile<R>(tile, w);
}

// All rows of a pass by one panel, in tiles of almost equal height: 8 rows are 4 and 4. Each tile
// fetches its share of the next panel's bytes, so that memory never waits for arithmetic.
template <class W>
void finish_panel(Tile tile, int64_t num_rows, const W* w) {
  const int64_t num_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
  const int64_t first_row = tile.row;
  const Ahead next = tile.ahead;
  tile.ahead.step = next.step / num_tiles;
  for (int64_t i = 0; i < num_tiles; ++i) {
    const int64_t begin = num_rows * i / num_tiles, end = num_rows * (i + 1) / num_tiles;
    tile.row = first_row + begin;
    tile.ahead.at = next.at + next.step * tile.num_inputs * i / num_tiles;
    finish_rows(tile, static_cast<int>(end - begin), w);
  }
}

template <class W>
const W* panel_of(const LinearCall& call, int64_t panel) {
  const W* panels = static_cast<const W*>(call.matrix->panels.get());
  return panels + panel * call.matrix->inputs * kPanel;
}

// Whether each tile widens its weights itself: where that is dear, or tiles are many, they are widened
// once for all, into the first level cache.
template <class W>
constexpr int64_t kMostTilesThatWiden = 0;
template <>
constexpr int64_t kMostTilesThatWiden<uint16_t> = 2;

// A pass over some inputs, for panels in [begin, end).
template <class W>
void pass_over_inputs(Tile tile, int64_t num_rows, int64_t begin, int64_t end) {
  alignas(64) float wide[kPassInputs * kPanel];
  for (tile.panel = begin; tile.panel < end; ++tile.panel) {
    const W* w = panel_of<W>(*tile.call, tile.panel) + tile.first_input * kPanel;
    const W* next = panel_of<W>(*tile.call, tile.panel + 1) + tile.first_input * kPanel;
    tile.ahead = {reinterpret_cast<const char*>(next), kPanel * sizeof(W)};
    if (num_rows <= kMostTilesThatWiden<W> * kMaxRows || std::is_same<W, float>::value) {
      finish_panel(tile, num_rows, w);
      continue;
    }
    for (int64_t i = 0; i < tile.num_inputs * kPanel; i += kPanel) {
      F w0, w1;
      load_panel(w + i, w0, w1);
      store(wide + i, w0);
      store(wide + i + OM_WIDTH, w1);
    }
    finish_panel(tile, num_rows, static_cast<const float*>(wide));
  }
}

template <class W>
void linear_many_rows(const LinearCall& call, int64_t begin, int64_t end) {
  const int64_t inputs = call.matrix->inputs;
  for (int64_t row = 0; row < call.rows; row += kPassRows) {
    const int64_t num_rows = std::min(kPassRows, call.rows - row);
    for (int64_t first = 0; first < inputs; first += kPassInputs) {
      const Tile tile{&call, row, 0, first, std::min(kPassInputs, inputs - first), {}};
      pass_over_inputs<W>(tile, num_rows, begin, end);
    }
  }
}

// One tile holds all rows: weights go from memory into registers and are never seen again.
template <class W>
void linear_few_rows(const LinearCall& call, int64_t begin, int64_t end) {
  for (int64_t panel = begin; panel < end; ++panel) {
    const W* w = panel_of<W>(call, panel);
    const Ahead ahead{reinterpret_cast<const char*>(w) + kAheadBytes, kPanel * sizeof(W)};
    const Tile tile{&call, 0, panel, 0, call.matrix->inputs, ahead};
    finish_rows(tile, static_cast<int>(call.rows), w);
  }
}

template <class W>
void linear_of(const LinearCall& call, ThreadPool& pool) {
  const int64_t num_panels = call.matrix->num_panels();
  const bool is_few = call.rows <= kMaxRows;
  // Four items a thread: enough to level out, and each a long run of weights.
  const int64_t even = std::max<int64_t>(1, num_panels / (4 * pool.num_threads()));
  const int64_t per_item = is_few ? even : std::min(even, kPanelsPerItem);
  pool.run((num_panels + per_item - 1) / per_item, [&](int64_t item) {
    const int64_t begin = item * per_item, end = std::min(num_panels, begin + per_item);
    is_few ? linear_few_rows<W>(call, begin, end) : linear_many_rows<W>(call, begin, end);
  });
}

void linear(const Call& call, ThreadPool& pool) {
  const om_tensor &x = call.tensors[0], &y = call.tensors[2], &bias = call.tensors[3],
                  &addend = call.tensors[4];
  const LinearCall linear{static_cast<const Matrix*>(call.tensors[1].data),
                          static_cast<const float*>(x.data),
                          static_cast<float*>(y.data),
                          static_cast<const float*>(bias.data),
                          static_cast<const float*>(addend.data),
                          x.shape[0],
                          x.strides[0],
                          y.strides[0],
                          addend.strides[0]};
  switch (linear.matrix->dtype) {
    case OM_BFLOAT16: return linear_of<uint16_t>(linear, pool);
    case OM_INT8: return linear_of<int8_t>(linear, pool);
    default: return linear_of<float>(linear, pool);
  }
}

const char* check_linear(const Call& call) {
  if (call.tensors.size() != 5) return "linear takes x, matrix, y, bias and addend";
  const om_tensor &x = call.tensors[0], &w = call.tensors[1], &y = call.tensors[2],
                  &bias = call.tensors[3], &addend = call.tensors[4];
  if (w.dtype != OM_MATRIX) return "linear takes a packed matrix";
  if (!is_rows(x) || !is_rows(y)) return "linear takes float32 x and y of rank 2, rows in one piece";
  const Matrix& matrix = *static_cast<const Matrix*>(w.data);
  if (matrix.panel_width != kPanel) return "linear takes a matrix packed for this instruction set";
  if (x.shape[1] != matrix.inputs || y.shape[1] != matrix.outputs || x.shape[0] != y.shape[0])
    return "linear's shapes do not fit each other";
  if (bias.data != nullptr && !is_vector(bias, matrix.outputs))
    return "linear takes a float32 bias for each output";
  if (addend.data != nullptr &&
      (!is_rows(addend) || !is_same_shape(addend, y)))
    return "linear takes a float32 addend as large as y";
  return nullptr;
}

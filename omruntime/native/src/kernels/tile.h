// The tile that all products are made of: a few rows by one panel, sums held in registers.

// One panel is two vectors wide: narrower tiles wait for loads, wider ones leave too few registers
// for rows.
constexpr int kPanel = 2 * OM_WIDTH;
// Rows of a tile: with two vectors of weights and one of x, 12 of AVX2's 16 registers hold sums.
// AVX-512 has twice as many registers; 16 sums hide the latency of a multiply-add twice over.
constexpr int kMaxRows = OM_WIDTH == 16 ? 8 : 6;

// Memory that is fetched into the caches while a tile works, `step` bytes for each input.
struct Ahead {
  const char* at;
  int64_t step;
};

// One input's weights, a panel of them.
template <class W>
OM_INLINE void load_panel(const W* w, F& w0, F& w1) {
  w0 = load(w);
  w1 = load(w + OM_WIDTH);
}

// Of bfloat16 a vector of pairs (matrix.h): widening both halves takes two operations, and not a
// conversion for each.
OM_INLINE void load_panel(const uint16_t* w, F& w0, F& w1) {
  const U pairs = *reinterpret_cast<const MemoryU*>(w);
  w0 = reinterpret_cast<F>(pairs << 16);
  w1 = reinterpret_cast<F>(pairs & 0xFFFF0000u);
}

// Sums of R rows by one panel over `num_inputs` inputs. Few rows have few sums, and a multiply-add
// takes four cycles: UNROLL of them run side by side.
template <int R, int UNROLL, bool FETCHES = false, class W>
OM_INLINE void sum_tile(const float* x, int64_t x_stride, const W* w, int64_t w_stride,
                        int64_t num_inputs, F (&sums)[R][2], Ahead ahead = {}) {
  F parts[UNROLL][R][2] = {};
  int64_t k = 0;
  for (; k + UNROLL <= num_inputs; k += UNROLL) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u) {
      if (FETCHES) __builtin_prefetch(ahead.at + (k + u) * ahead.step);
      F w0, w1;
      load_panel(w + (k + u) * w_stride, w0, w1);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const F value = splat(x[r * x_stride + k + u]);
        parts[u][r][0] += value * w0;
        parts[u][r][1] += value * w1;
      }
    }
  }
  for (; k < num_inputs; ++k) {
    F w0, w1;
    load_panel(w + k * w_stride, w0, w1);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F value = splat(x[r * x_stride + k]);
      parts[0][r][0] += value * w0;
      parts[0][r][1] += value * w1;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    sums[r][0] = parts[0][r][0];
    sums[r][1] = parts[0][r][1];
#pragma GCC unroll 8
    for (int u = 1; u < UNROLL; ++u) {
      sums[r][0] += parts[u][r][0];
      sums[r][1] += parts[u][r][1];
    }
  }
}

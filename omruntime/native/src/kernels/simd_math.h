// Functions over vectors of floats, to within two units in the last place unless said otherwise.

// Of two values of which one is no number, the second: limits come first, so that it is kept.
OM_INLINE F min_of(F a, F b) { return a < b ? a : b; }
OM_INLINE F max_of(F a, F b) { return a > b ? a : b; }

OM_INLINE float sum_of(F v) {
  float sum = 0;
  for (int i = 0; i < OM_WIDTH; ++i) sum += v[i];
  return sum;
}

OM_INLINE float largest_of(F v) {
  float most = v[0];
  for (int i = 1; i < OM_WIDTH; ++i) most = v[i] > most ? v[i] : most;
  return most;
}

// 2^n * e^r with r within half of ln 2, where a polynomial of degree 6 is exact enough. Below -87
// it is the smallest normal number, which is 0 beside any sum of exponentials.
OM_INLINE F exp_of(F x) {
  x = min_of(splat(88.0f), max_of(splat(-87.0f), x));
  // Added and taken off again, this rounds to a whole number.
  const F magic = splat(12582912.0f);
  const F shifted = x * splat(1.44269504f) + magic;
  const F n = shifted - magic;
  const F r = x - n * splat(0.693359375f) - n * splat(-2.12194440e-4f);
  F p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  const I power = (__builtin_convertvector(n, I) + 127) << 23;
  return p * reinterpret_cast<F>(power);
}

OM_INLINE F sigmoid_of(F x) { return splat(1.0f) / (splat(1.0f) + exp_of(-x)); }

// To within 1e-7 of the result's range.
OM_INLINE F tanh_of(F x) {
  const F limited = min_of(splat(20.0f), max_of(splat(-20.0f), x));
  return splat(1.0f) - splat(2.0f) / (exp_of(limited + limited) + splat(1.0f));
}

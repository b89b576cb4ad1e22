#include "matrix.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace omserve {

namespace {

// A step walks through all weights: with pages of 4 KiB it would miss the TLB every 64 lines.
constexpr std::size_t kHugePage = 2u << 20;
// Matrices share slabs of huge pages, most being smaller than one.
constexpr std::size_t kSlab = 32u << 20;
constexpr std::size_t kLine = 64;

std::size_t round_up(std::size_t nbytes, std::size_t unit) {
  return (nbytes + unit - 1) / unit * unit;
}

// Memory that stands as long as any matrix in it. Returns NULL when memory is short.
std::shared_ptr<void> reserve(std::size_t nbytes) {
  static std::mutex mutex;
  static std::shared_ptr<void> slab;
  static std::size_t size = 0, used = 0;
  std::lock_guard<std::mutex> lock(mutex);
  nbytes = round_up(nbytes, kLine);
  if (slab == nullptr || used + nbytes > size) {
    size = round_up(std::max(nbytes, kSlab), kHugePage);
    void* bytes = std::aligned_alloc(kHugePage, size);
    if (bytes == nullptr) return nullptr;
#if defined(__linux__)
    madvise(bytes, size, MADV_HUGEPAGE);
#endif
    slab = std::shared_ptr<void>(bytes, std::free);
    used = 0;
  }
  // Shares the slab's count, but points into it.
  std::shared_ptr<void> part(slab, static_cast<char*>(slab.get()) + used);
  used += nbytes;
  return part;
}

// Where output `n` of a panel stands among the values of one input.
template <class T>
int64_t place_of(int64_t n, int64_t) {
  return n;
}
template <>
int64_t place_of<uint16_t>(int64_t n, int64_t width) {
  const int64_t half = width / 2;
  return n % half * 2 + n / half;
}

template <class T>
void copy_panels(const om_tensor& values, int width, T* out) {
  const T* in = static_cast<const T*>(values.data);
  const int64_t inputs = values.shape[0], outputs = values.shape[1];
  for (int64_t first = 0; first < outputs; first += width) {
    for (int64_t k = 0; k < inputs; ++k, out += width) {
      for (int64_t n = 0; n < width; ++n) {
        const bool is_inside = first + n < outputs;
        out[place_of<T>(n, width)] =
            is_inside ? in[k * values.strides[0] + (first + n) * values.strides[1]] : T{0};
      }
    }
  }
}

}  // namespace

std::size_t item_bytes(int32_t dtype) {
  switch (dtype) {
    case OM_INT64: return 8;
    case OM_FLOAT32:
    case OM_INT32: return 4;
    case OM_BFLOAT16: return 2;
    default: return 1;
  }
}

std::unique_ptr<Matrix> pack(const om_tensor& values, const float* scales, int panel_width) {
  auto matrix = std::make_unique<Matrix>();
  matrix->dtype = static_cast<om_dtype>(values.dtype);
  matrix->inputs = values.shape[0];
  matrix->outputs = values.shape[1];
  matrix->panel_width = panel_width;
  const int64_t padded = matrix->num_panels() * panel_width;
  matrix->panels = reserve(matrix->inputs * padded * item_bytes(values.dtype));
  if (!matrix->panels) return nullptr;
  void* out = matrix->panels.get();
  if (values.dtype == OM_FLOAT32) copy_panels(values, panel_width, static_cast<float*>(out));
  if (values.dtype == OM_BFLOAT16) copy_panels(values, panel_width, static_cast<uint16_t*>(out));
  if (values.dtype == OM_INT8) copy_panels(values, panel_width, static_cast<int8_t*>(out));
  if (scales != nullptr) {
    matrix->scales.assign(padded, 0.0f);
    std::memcpy(matrix->scales.data(), scales, matrix->outputs * sizeof(float));
  }
  return matrix;
}

}  // namespace omserve

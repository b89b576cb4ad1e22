// A constant matrix in the layout of the product kernels.
//
// Outputs are cut into panels as wide as two vector registers. Within a panel the values of one
// input lie side by side, so a product reads its weights as one ascending run of bytes, which is
// what memory delivers fastest. The last panel is filled up with zeros. Of bfloat16, values of the two
// registers stand in pairs: the first one's value in the lower half of 32 bits, the other's above.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "native.h"

namespace omserve {

struct Matrix {
  om_dtype dtype;
  int64_t inputs;
  int64_t outputs;
  int panel_width;
  // One for each output of all panels, padding included; empty means 1.
  std::vector<float> scales;
  std::shared_ptr<void> panels;

  int64_t num_panels() const { return (outputs + panel_width - 1) / panel_width; }
};

std::size_t item_bytes(int32_t dtype);

// Returns NULL when memory is short.
std::unique_ptr<Matrix> pack(const om_tensor& values, const float* scales, int panel_width);

}  // namespace omserve

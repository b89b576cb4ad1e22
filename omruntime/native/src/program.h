// A program: kernels over fixed tensors, in order.
#pragma once

#include <cstdint>
#include <vector>

#include "native.h"
#include "sampling.h"
#include "thread_pool.h"

namespace omserve {

// What one kernel works on.
struct Call {
  std::vector<om_tensor> tensors;
  std::vector<double> numbers;
};

// A kernel of one instruction set. `check` says why a call does not fit it, or NULL.
struct Kernel {
  const char* name;
  const char* (*check)(const Call& call);
  void (*run)(const Call& call, ThreadPool& pool);
};

// An instruction set's kernels and what packing must know of it.
struct KernelTable {
  const char* instruction_set;
  int panel_width;
  const Kernel* kernels;
  int num_kernels;
  SamplingKernels sampling;
};

// NULL where the compiler has no such instructions.
extern const KernelTable* const kAvx512Kernels;
extern const KernelTable* const kAvx2Kernels;
extern const KernelTable* const kBaselineKernels;

}  // namespace omserve

// Kernels for CPUs with AVX2.
#include "kernels/outside.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

#define OM_WIDTH 8
#define OM_SET avx2
#include "kernels/table.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace omserve {
const KernelTable* const kAvx2Kernels = &avx2::kTable;
}

#else

namespace omserve {
const KernelTable* const kAvx2Kernels = nullptr;
}

#endif

// Kernels for CPUs with AVX512.
#include "kernels/outside.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif

#define OM_WIDTH 16
#define OM_SET avx512
#include "kernels/table.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace omserve {
const KernelTable* const kAvx512Kernels = &avx512::kTable;
}

#else

namespace omserve {
const KernelTable* const kAvx512Kernels = nullptr;
}

#endif

// Kernels for every CPU: on x86-64 that is SSE2, on ARM it is NEON.
#include "kernels/outside.h"

#define OM_WIDTH 4
#define OM_SET baseline
#include "kernels/table.h"

namespace omserve {
const KernelTable* const kBaselineKernels = &baseline::kTable;
}

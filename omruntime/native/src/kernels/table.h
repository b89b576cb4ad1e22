// All kernels of one instruction set, from one source. The including file sets OM_WIDTH (floats in
// a vector), OM_SET (the namespace) and the compiler's target; it includes what is outside first.

namespace omserve {
namespace OM_SET {

#include "simd.h"

#include "simd_math.h"

#include "checks.h"

#include "rows.h"

#include "tile.h"

#include "attention.h"

#include "elementwise.h"

#include "choice.h"

#include "linear.h"

#include "norm.h"

#include "rotary.h"

#include "sampling.h"

#include "silu_mul.h"

constexpr Kernel kKernels[] = {
    {"attention", check_attention, attention},
    {"cast", check_cast, cast},
    {"gather", check_gather, gather},
    {"layer_norm", check_norm<true>, norm<true>},
    {"linear", check_linear, linear},
    {"rms_norm", check_norm<false>, norm<false>},
    {"rotary", check_rotary, rotary},
    {"silu_mul", check_silu_mul, silu_mul},
    // The choice of experts.
    {"equal", check_compare, compare<Equal>},
    {"greater", check_compare, compare<Greater>},
    {"softmax", check_softmax, softmax},
    {"sum", check_sum, sum},
    {"top_k", check_top_k, top_k},
    {"where", check_where, where},
    // One value for each of x, or of x and z.
    {"cos", check_unary, unary<Cos>},
    {"sin", check_unary, unary<Sin>},
    {"neg", check_unary, unary<Neg>},
    {"sigmoid", check_unary, unary<Sigmoid>},
    {"tanh", check_unary, unary<Tanh>},
    {"add", check_binary, binary<Add>},
    {"sub", check_binary, binary<Sub>},
    {"mul", check_binary, binary<Mul>},
    {"div", check_binary, binary<Div>},
    {"pow", check_binary, binary<Pow>},
};

#define OM_TEXT_OF(name) #name
#define OM_TEXT(name) OM_TEXT_OF(name)
constexpr KernelTable kTable{OM_TEXT(OM_SET), kPanel, kKernels,
                             static_cast<int>(sizeof(kKernels) / sizeof(Kernel)),
                             kSamplingKernels};

}  // namespace OM_SET
}  // namespace omserve

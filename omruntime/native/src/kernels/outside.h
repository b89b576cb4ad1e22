// What kernels need of the outside, included before an instruction set is switched on: an inline
// function of the standard library that was compiled for AVX-512 would be shared with all others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../matrix.h"
#include "../program.h"

// Vectors of OM_WIDTH floats. Included once in each instruction set's namespace, hence no guard.
//
// The compiler's own vector types: the same source becomes AVX-512, AVX2, SSE2 or NEON.

#define OM_INLINE inline __attribute__((always_inline))

typedef float F __attribute__((vector_size(4 * OM_WIDTH)));
typedef int32_t I __attribute__((vector_size(4 * OM_WIDTH)));
typedef uint32_t U __attribute__((vector_size(4 * OM_WIDTH)));
typedef uint16_t U16 __attribute__((vector_size(2 * OM_WIDTH)));
typedef int8_t I8 __attribute__((vector_size(OM_WIDTH)));
// The same in memory, where they lie at any address.
typedef float MemoryF __attribute__((vector_size(4 * OM_WIDTH), aligned(4), may_alias));
typedef uint32_t MemoryU __attribute__((vector_size(4 * OM_WIDTH), aligned(2), may_alias));
typedef uint16_t MemoryU16 __attribute__((vector_size(2 * OM_WIDTH), aligned(2), may_alias));
typedef int8_t MemoryI8 __attribute__((vector_size(OM_WIDTH), aligned(1), may_alias));

OM_INLINE F splat(float value) { return value - F{}; }

OM_INLINE F load(const float* p) { return *reinterpret_cast<const MemoryF*>(p); }

// Widening is spelled out where the compiler's own conversion goes through halves or single values.
#if OM_WIDTH == 16
OM_INLINE F load(const uint16_t* bfloat16) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bfloat16));
  return reinterpret_cast<F>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

OM_INLINE F load(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return reinterpret_cast<F>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}
#elif OM_WIDTH == 8
OM_INLINE F load(const uint16_t* bfloat16) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bfloat16));
  return reinterpret_cast<F>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

OM_INLINE F load(const int8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return reinterpret_cast<F>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
}
#else
OM_INLINE F load(const uint16_t* bfloat16) {
  const U16 bits = *reinterpret_cast<const MemoryU16*>(bfloat16);
  return reinterpret_cast<F>(__builtin_convertvector(bits, U) << 16);
}

OM_INLINE F load(const int8_t* p) {
  const I8 bytes = *reinterpret_cast<const MemoryI8*>(p);
  return __builtin_convertvector(__builtin_convertvector(bytes, I), F);
}
#endif

OM_INLINE void store(float* p, F value) { *reinterpret_cast<MemoryF*>(p) = value; }

/* The kernels for AVX2 and F16C. Built with the flags for them, so nothing here runs before red_kernel.c has
 * asked the processor. */
#include <immintrin.h>

/* The lanes are below 65536. Packing works on each half of a register, so the halves come together after. */
static inline __m128i pack(__m256i v)
{
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08));
}

#define RED_TABLE red_avx2
#define RED_NAME "avx2"
#define RED_VEC_BYTES 32
#define RED_WIDEN(half) _mm256_cvtepu16_epi32((__m128i)(half))
#define RED_NARROW(v) pack((__m256i)(v))
#define RED_F16_WIDEN(half) _mm256_cvtph_ps((__m128i)(half))
#define RED_F16_ROUND(v) _mm256_cvtps_ph((__m256)(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#include "reduce/red_simd.h"

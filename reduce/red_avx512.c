/* The kernels for AVX-512 F, BW, DQ and VL. Built with the flags for them, so nothing here runs before
 * red_kernel.c has asked the processor. */
#include <immintrin.h>

#define RED_TABLE red_avx512
#define RED_NAME "avx512"
#define RED_VEC_BYTES 64
#define RED_WIDEN(half) _mm512_cvtepu16_epi32((__m256i)(half))
#define RED_NARROW(v) _mm512_cvtepi32_epi16((__m512i)(v))
#define RED_F16_WIDEN(half) _mm512_cvtph_ps((__m256i)(half))
#define RED_F16_ROUND(v) _mm512_cvtps_ph((__m512)(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#include "reduce/red_simd.h"

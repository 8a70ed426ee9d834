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

static inline __attribute__((always_inline)) __m512i bf16_round(__m512i v)
{
    const __mmask16 odd = _mm512_test_epi32_mask(v, _mm512_set1_epi32(1 << 16));
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    const __m512i down = _mm512_add_epi32(v, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_mask_add_epi32(down, odd, v, _mm512_set1_epi32(0x8000));
    return _mm512_mask_or_epi32(rounded, nan, v, _mm512_set1_epi32(0x400000));
}
#define RED_BF16_ROUND(v) (vec) bf16_round((__m512i)(v))
#include "reduce/red_simd.h"

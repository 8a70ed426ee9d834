/* The kernels for any processor: 16-byte vectors, which the compiler maps to what there is. */
#define RED_TABLE red_portable
#define RED_NAME "portable"
#define RED_VEC_BYTES 16
#include "reduce/red_simd.h"

/*
 * The arithmetic of the design, one element at a time and as plainly as it can be said: reals in double,
 * rounded to the accumulator after each step; integers in 64 bits, cut to their width after each step. The
 * kernels are checked against it bit by bit, NaN against any NaN.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include "reduce/coll_types.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

union oracle_num {
    double real;
    uint64_t bits; /* sign-extended when the type is signed */
};

static inline bool oracle_is_real(enum coll_dtype dtype)
{
    return dtype <= COLL_BF16;
}

static inline bool oracle_is_signed(enum coll_dtype dtype)
{
    return dtype == COLL_I8 || dtype == COLL_I32 || dtype == COLL_I64;
}

/* ---- 16-bit reals: sign, exponent and `frac` bits of fraction ---- */

static inline double oracle_half_value(uint16_t code, int frac, int bias)
{
    const int exponent = (code & 0x7fff) >> frac;
    const int fraction = code & ((1 << frac) - 1);
    double value = ldexp(fraction + (exponent ? 1 << frac : 0), (exponent ? exponent : 1) - bias - frac);
    if (exponent == 2 * bias + 1) {
        value = fraction ? NAN : INFINITY;
    }
    return code & 0x8000 ? -value : value;
}

/* The code nearest to value, the even one of two. rint() rounds so; codes of positive numbers are ordered
 * as their values, with infinity after the largest. */
static inline uint16_t oracle_half_code(double value, int frac, int bias)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const int infinity = (2 * bias + 1) << frac;
    if (isnan(value)) {
        return (uint16_t)(infinity | 1 << (frac - 1));
    }
    if (isinf(value)) {
        return (uint16_t)(sign | infinity);
    }
    const int least = 1 - bias;
    const int exponent = value != 0 && ilogb(value) > least ? ilogb(value) : least;
    const double code = rint(ldexp(fabs(value), frac - exponent)) + ldexp(exponent - least, frac);
    return (uint16_t)(sign | (code < infinity ? (int)code : infinity));
}

/* ---- Elements ---- */

static inline uint64_t oracle_cut(enum coll_dtype dtype, uint64_t bits)
{
    const unsigned spare = 64 - 8 * (unsigned)coll_dtype_bytes(dtype);
    return oracle_is_signed(dtype) ? (uint64_t)((int64_t)(bits << spare) >> spare) : bits << spare >> spare;
}

static inline union oracle_num oracle_load(enum coll_dtype dtype, const void *array, size_t idx)
{
    const char *from = (const char *)array + idx * coll_dtype_bytes(dtype);
    uint64_t bits = 0;
    memcpy(&bits, from, coll_dtype_bytes(dtype));
    float single = 0;
    memcpy(&single, from, dtype == COLL_F32 ? sizeof single : 0);
    switch (dtype) {
    case COLL_F32:
        return (union oracle_num){.real = single};
    case COLL_F64:
        return (union oracle_num){.bits = bits};
    case COLL_F16:
        return (union oracle_num){.real = oracle_half_value((uint16_t)bits, 10, 15)};
    case COLL_BF16:
        return (union oracle_num){.real = oracle_half_value((uint16_t)bits, 7, 127)};
    default:
        return (union oracle_num){.bits = oracle_cut(dtype, bits)};
    }
}

static inline void oracle_store(enum coll_dtype dtype, void *array, size_t idx, union oracle_num num)
{
    uint64_t bits = num.bits;
    const float single = (float)num.real;
    if (dtype == COLL_F32) {
        memcpy(&bits, &single, sizeof single);
    } else if (dtype == COLL_F16) {
        bits = oracle_half_code(num.real, 10, 15);
    } else if (dtype == COLL_BF16) {
        bits = oracle_half_code(num.real, 7, 127);
    }
    memcpy((char *)array + idx * coll_dtype_bytes(dtype), &bits, coll_dtype_bytes(dtype));
}

/* ---- Operations ---- */

static inline double oracle_real_op(enum coll_op op, double a, double b)
{
    switch (op) {
    case COLL_PROD:
        return a * b;
    case COLL_MIN:
    case COLL_MAX:
        if (isnan(a) || isnan(b)) {
            return NAN;
        }
        if (a == b) {
            return (signbit(a) != 0) == (op == COLL_MIN) ? a : b;
        }
        return (a < b) == (op == COLL_MIN) ? a : b;
    default:
        return a + b;
    }
}

static inline uint64_t oracle_int_op(enum coll_dtype dtype, enum coll_op op, uint64_t a, uint64_t b)
{
    const bool less = oracle_is_signed(dtype) ? (int64_t)a < (int64_t)b : a < b;
    switch (op) {
    case COLL_PROD:
        return a * b;
    case COLL_MIN:
        return less ? a : b;
    case COLL_MAX:
        return less ? b : a;
    case COLL_BAND:
        return a & b;
    case COLL_BOR:
        return a | b;
    case COLL_BXOR:
        return a ^ b;
    default:
        return a + b;
    }
}

/* Double has more than twice the bits of f32, so rounding its result again gives what f32 alone gives. */
static inline union oracle_num oracle_op(enum coll_dtype dtype, enum coll_op op, union oracle_num a,
                                         union oracle_num b)
{
    if (!oracle_is_real(dtype)) {
        return (union oracle_num){.bits = oracle_cut(dtype, oracle_int_op(dtype, op, a.bits, b.bits))};
    }
    const double result = oracle_real_op(op, a.real, b.real);
    return (union oracle_num){.real = dtype == COLL_F64 ? result : (double)(float)result};
}

static inline union oracle_num oracle_divide(enum coll_dtype dtype, union oracle_num num, unsigned divisor)
{
    if (!oracle_is_real(dtype)) {
        return (union oracle_num){.bits = oracle_is_signed(dtype) ? (uint64_t)((int64_t)num.bits / divisor)
                                                                  : num.bits / divisor};
    }
    const double result = num.real / divisor;
    return (union oracle_num){.real = dtype == COLL_F64 ? result : (double)(float)result};
}

/* out[0, count) = the sources combined in order, divided, rounded to the element type. */
static inline void oracle_reduce(enum coll_dtype dtype, enum coll_op op, const void *const *src,
                                 unsigned src_count, size_t count, unsigned divisor, void *out)
{
    for (size_t i = 0; i < count; i++) {
        union oracle_num acc = oracle_load(dtype, src[0], i);
        for (unsigned s = 1; s < src_count; s++) {
            acc = oracle_op(dtype, op, acc, oracle_load(dtype, src[s], i));
        }
        oracle_store(dtype, out, i, oracle_divide(dtype, acc, divisor));
    }
}

/* The first element that differs, or count: bits must agree, except that one NaN is as good as another. */
static inline size_t oracle_mismatch(enum coll_dtype dtype, const void *want, const void *got, size_t count)
{
    const size_t bytes = coll_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        if (memcmp((const char *)want + i * bytes, (const char *)got + i * bytes, bytes) != 0 &&
            !(oracle_is_real(dtype) && isnan(oracle_load(dtype, want, i).real) &&
              isnan(oracle_load(dtype, got, i).real))) {
            return i;
        }
    }
    return count;
}

#endif

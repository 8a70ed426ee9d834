/*
 * The arithmetic of every kernel, written once over vectors of RED_VEC_BYTES and compiled once for each
 * instruction set: red_portable.c, red_avx2.c and red_avx512.c define
 *     RED_TABLE, RED_NAME              the table's symbol and its name
 *     RED_VEC_BYTES                    the width of a vector register
 *     RED_WIDEN, RED_NARROW            the instructions between 16 and 32 bits a lane, and
 *     RED_F16_WIDEN, RED_F16_ROUND     those for f16, where there are any
 *     RED_BF16_ROUND                   f32 to bf16 in the same lanes, where masks make it shorter
 * and include this file. The vectors are the compiler's own (vector_size), so lane arithmetic is plain C.
 *
 * From bottom to top: an element type is how to load, store and divide a vector of it; an operation is a
 * function of two vectors; a kernel is a sweep over memory of one of each. The types and operations are
 * constants of an always-inlined sweep, so nothing is called inside the loop.
 */
#ifndef RED_SIMD_H
#define RED_SIMD_H

#include "reduce/red_kernel.h"
#include "reduce/red_prefetch.h"

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES(bytes) __attribute__((vector_size(bytes)))

typedef int8_t i8_lanes LANES(RED_VEC_BYTES);
typedef uint8_t u8_lanes LANES(RED_VEC_BYTES);
typedef int32_t i32_lanes LANES(RED_VEC_BYTES);
typedef uint32_t u32_lanes LANES(RED_VEC_BYTES);
typedef int64_t i64_lanes LANES(RED_VEC_BYTES);
typedef uint64_t u64_lanes LANES(RED_VEC_BYTES);
typedef float f32_lanes LANES(RED_VEC_BYTES);
typedef double f64_lanes LANES(RED_VEC_BYTES);
typedef uint16_t half_lanes LANES(RED_VEC_BYTES / 2); /* as many lanes as the f32 vector they widen to */

typedef u32_lanes vec; /* a register whose lanes have no type yet; a cast gives them one, bits unchanged */

/* ---- Loads, stores, and the 16-bit types as they enter and leave the f32 accumulator ---- */

INLINE vec vec_load(const void *from)
{
    vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void vec_store(void *to, vec v)
{
    memcpy(to, &v, sizeof v);
}

/* Each lane of yes where the lane of mask is all ones, of no where it is all zeros. */
INLINE vec vec_select(vec mask, vec yes, vec no)
{
    return (mask & yes) | (~mask & no);
}

/* Magnitudes have no sign bit, so they are compared as signed numbers: every instruction set can do that. */

#ifndef RED_WIDEN
#define RED_WIDEN(half) __builtin_convertvector(half, u32_lanes)
#define RED_NARROW(v) __builtin_convertvector(v, half_lanes)
#endif

#ifndef RED_F16_WIDEN
/* Moving the bits of an f16 to the place of an f32's leaves the exponent 112 too small: one exact
 * multiplication corrects it, denormals included. Infinity and NaN need all exponent bits. */
INLINE vec f16_widen(half_lanes half)
{
    const vec bits = (vec)RED_WIDEN(half);
    const vec magnitude = (bits & 0x7fff) << 13;
    const vec scaled = (vec)((f32_lanes)magnitude * 0x1p112f);
    const vec special = (vec)((i32_lanes)magnitude >= 0x7c00 << 13) & 0x7f800000;
    return scaled | special | (bits & 0x8000) << 16;
}

/* To nearest even. Normal results: add half of what is cut off, or just less when the last kept bit is
 * even, and move the exponent; a carry may make it infinity's. Denormal ones: adding 0.5, whose last bit is
 * worth f16's smallest step, makes the processor round there. From 65536 on infinity; a NaN stays one. */
INLINE half_lanes f16_round(vec v)
{
    const vec magnitude = v & 0x7fffffff;
    const vec normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const vec denormal = (vec)((f32_lanes)magnitude + 0.5f) - 0x3f000000;
    vec half = vec_select((vec)((i32_lanes)magnitude < 0x38800000), denormal, normal);
    half = vec_select((vec)((i32_lanes)magnitude >= 0x47800000), (vec){} + 0x7c00, half);
    half = vec_select((vec)((i32_lanes)magnitude > 0x7f800000), 0x7e00 | (magnitude >> 13 & 0x3ff), half);
    return (half_lanes)RED_NARROW(half | (v >> 16 & 0x8000));
}
#define RED_F16_WIDEN f16_widen
#define RED_F16_ROUND f16_round
#endif

INLINE vec f16_load(const void *from)
{
    half_lanes half;
    memcpy(&half, from, sizeof half);
    return (vec)RED_F16_WIDEN(half);
}

INLINE void f16_store(void *to, vec v)
{
    const half_lanes half = (half_lanes)RED_F16_ROUND(v);
    memcpy(to, &half, sizeof half);
}

/* A bf16 is the upper half of an f32. */
INLINE vec bf16_load(const void *from)
{
    half_lanes half;
    memcpy(&half, from, sizeof half);
    return (vec)RED_WIDEN(half) << 16;
}

/* RED_BF16_ROUND: to nearest even, in the upper half of each lane; the lower one is undefined. By integers:
 * the processors' own bf16 conversion flushes denormals. */

#ifndef RED_BF16_ROUND
INLINE vec bf16_round(vec v)
{
    const vec rounded = v + 0x7fff + (v >> 16 & 1);
    return vec_select((vec)((f32_lanes)v != (f32_lanes)v), v | 0x400000, rounded);
}
#define RED_BF16_ROUND bf16_round
#endif

INLINE void bf16_store(void *to, vec v)
{
    const half_lanes narrow = (half_lanes)RED_NARROW(RED_BF16_ROUND(v) >> 16);
    memcpy(to, &narrow, sizeof narrow);
}

/* ---- Division, for avg ---- */

INLINE vec f32_divide(vec v, unsigned divisor)
{
    return (vec)((f32_lanes)v / (float)divisor);
}

INLINE vec f64_divide(vec v, unsigned divisor)
{
    return (vec)((f64_lanes)v / (double)divisor);
}

/* Integers are divided in a float type that has more bits than they: an exact quotient that is no integer is
 * further below the next one than the rounding reaches, so truncation gives the right value. 64 bits have no
 * such type. */
#define DIVIDE(name, element, via)                                    \
    INLINE vec name(vec v, unsigned divisor)                          \
    {                                                                 \
        element lane[RED_VEC_BYTES / sizeof(element)];                \
        memcpy(lane, &v, sizeof v);                                   \
        for (unsigned i = 0; i < RED_VEC_BYTES / sizeof *lane; i++) { \
            lane[i] = (element)((via)lane[i] / (via)divisor);         \
        }                                                             \
        return vec_load(lane);                                        \
    }

DIVIDE(i8_divide, int8_t, float)
DIVIDE(u8_divide, uint8_t, float)
DIVIDE(i32_divide, int32_t, double)
DIVIDE(u32_divide, uint32_t, double)
DIVIDE(i64_divide, int64_t, int64_t)
DIVIDE(u64_divide, uint64_t, uint64_t)

/* ---- Operations on two vectors ---- */

#define LANEWISE(name, lanes, result)             \
    INLINE vec name(vec va, vec vb)               \
    {                                             \
        const lanes a = (lanes)va, b = (lanes)vb; \
        return (vec)(result);                     \
    }

LANEWISE(bits_and, vec, (a & b))
LANEWISE(bits_or, vec, (a | b))
LANEWISE(bits_xor, vec, (a ^ b))

/* Sums and products wrap, so signed types use the unsigned ones. */
#define ADD_MUL(type)                           \
    LANEWISE(type##_add, type##_lanes, (a + b)) \
    LANEWISE(type##_mul, type##_lanes, (a * b))

ADD_MUL(f32)
ADD_MUL(f64)
ADD_MUL(u8)
ADD_MUL(u32)
ADD_MUL(u64)

#define INT_MIN_MAX(type)                                                \
    LANEWISE(type##_min, type##_lanes, vec_select((vec)(a < b), va, vb)) \
    LANEWISE(type##_max, type##_lanes, vec_select((vec)(a > b), va, vb))

INT_MIN_MAX(i8)
INT_MIN_MAX(u8)
INT_MIN_MAX(i32)
INT_MIN_MAX(u32)
INT_MIN_MAX(i64)
INT_MIN_MAX(u64)

/* A NaN in a is taken, one in b is what no comparison picks a over. Equal numbers differ at most in the sign
 * of zero: either one's is the smaller, both's the larger. */
#define FLOAT_MIN_MAX(type)                                                                       \
    LANEWISE(type##_min, type##_lanes,                                                            \
             vec_select((vec)(a == b), (va | vb), vec_select((vec)((a < b) | (a != a)), va, vb))) \
    LANEWISE(type##_max, type##_lanes,                                                            \
             vec_select((vec)(a == b), (va & vb), vec_select((vec)((a > b) | (a != a)), va, vb)))

FLOAT_MIN_MAX(f32)
FLOAT_MIN_MAX(f64)

/* ---- The sweep: four vectors at a time, so that the loops over sources and destinations cost little ---- */

struct quad {
    vec a, b, c, d;
};

struct elements {
    size_t bytes, acc_bytes; /* of one element, in memory and in the accumulator */
    vec (*load)(const void *from);
    void (*store)(void *to, vec v);
    vec (*divide)(vec v, unsigned divisor);
    /* The same by whole quads, whose lanes are in another order than memory: for where no partial sums are
     * kept. NULL when that would not be faster. */
    struct quad (*load_mixed)(const void *from);
    void (*store_mixed)(void *to, struct quad q);
};

/* What a partial sum is kept as. */
INLINE struct elements accumulators(const struct elements *el)
{
    return (struct elements){el->acc_bytes, el->acc_bytes, vec_load, vec_store, el->divide, NULL, NULL};
}

/* Without its mixed order. */
INLINE struct elements in_order(const struct elements *el)
{
    return (struct elements){el->bytes, el->acc_bytes, el->load, el->store, el->divide, NULL, NULL};
}

/* Two bf16 share a 32-bit lane: the even ones become one vector, the odd ones another, with a shift or a mask
 * and no moves between lanes. */
INLINE struct quad bf16_load_mixed(const void *from)
{
    const vec p = vec_load(from), q = vec_load((const char *)from + sizeof p);
    return (struct quad){p << 16, p & 0xffff0000, q << 16, q & 0xffff0000};
}

INLINE void bf16_store_mixed(void *to, struct quad q)
{
    vec_store(to, RED_BF16_ROUND(q.a) >> 16 | (RED_BF16_ROUND(q.b) & 0xffff0000));
    vec_store((char *)to + sizeof q.a, RED_BF16_ROUND(q.c) >> 16 | (RED_BF16_ROUND(q.d) & 0xffff0000));
}

INLINE size_t quad_elements(const struct elements *el)
{
    return sizeof(struct quad) / el->acc_bytes;
}

/* The n elements of array from element `at` on; the lanes of a quad that is not full are zero. */
INLINE struct quad quad_load(const struct elements *el, const void *array, size_t at, size_t n)
{
    const size_t step = RED_VEC_BYTES / el->acc_bytes * el->bytes;
    const char *from = (const char *)array + at * el->bytes;
    char padded[sizeof(struct quad)];
    if (n < quad_elements(el)) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, from, n * el->bytes);
        from = padded;
    }
    if (el->load_mixed) {
        return el->load_mixed(from);
    }
    return (struct quad){el->load(from), el->load(from + step), el->load(from + 2 * step),
                         el->load(from + 3 * step)};
}

INLINE void quad_prefetch(const struct elements *el, const void *array, size_t at)
{
    red_prefetch((const char *)array + at * el->bytes, quad_elements(el) * el->bytes);
}

INLINE void quad_store(const struct elements *el, void *array, size_t at, size_t n, struct quad q)
{
    const size_t step = RED_VEC_BYTES / el->acc_bytes * el->bytes;
    char *const place = (char *)array + at * el->bytes;
    char padded[sizeof(struct quad)];
    char *const to = n < quad_elements(el) ? padded : place;
    if (el->store_mixed) {
        el->store_mixed(to, q);
    } else {
        el->store(to, q.a);
        el->store(to + step, q.b);
        el->store(to + 2 * step, q.c);
        el->store(to + 3 * step, q.d);
    }
    if (to == padded) {
        memcpy(place, padded, n * el->bytes);
    }
}

/* Elements [at, at + n) of the step, n at most a quad. */
INLINE void sweep_quad(const struct red_step *step, const struct elements *el, vec (*op)(vec, vec),
                       bool divides, size_t at, size_t n)
{
    const struct elements acc_el = accumulators(el);
    unsigned next = 0;
    for (unsigned i = 0; i < step->src_count; i++) {
        quad_prefetch(el, step->src[i], step->first + at);
    }
    struct quad acc = step->acc_in ? quad_load(&acc_el, step->acc_in, at, n)
                                   : quad_load(el, step->src[next++], step->first + at, n);
    for (; next < step->src_count; next++) {
        const struct quad more = quad_load(el, step->src[next], step->first + at, n);
        acc = (struct quad){op(acc.a, more.a), op(acc.b, more.b), op(acc.c, more.c), op(acc.d, more.d)};
    }
    if (step->acc_out) {
        quad_store(&acc_el, step->acc_out, at, n, acc);
    }
    if (divides && step->divisor != 1) {
        acc = (struct quad){el->divide(acc.a, step->divisor), el->divide(acc.b, step->divisor),
                            el->divide(acc.c, step->divisor), el->divide(acc.d, step->divisor)};
    }
    for (unsigned i = 0; i < step->dst_count; i++) {
        quad_store(el, step->dst[i], step->first + at, n, acc);
    }
}

/* Two sources to one or two places, of which the pointers stay in registers: what came from another node and
 * one rank's buffer, the step of a ring with a rank a node. The first `count` elements, whole quads. */
INLINE void sweep_pair(const struct red_step *step, const struct elements *el, vec (*op)(vec, vec),
                       size_t count, bool twice)
{
    const size_t full = quad_elements(el), begin = step->first, end = begin + count;
    const void *const from_a = step->src[0], *const from_b = step->src[1];
    void *const to_a = step->dst[0], *const to_b = step->dst[twice];
    for (size_t at = begin; at < end; at += full) {
        quad_prefetch(el, from_a, at);
        quad_prefetch(el, from_b, at);
        const struct quad x = quad_load(el, from_a, at, full), y = quad_load(el, from_b, at, full);
        const struct quad q = {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};
        quad_store(el, to_a, at, full, q);
        if (twice) {
            quad_store(el, to_b, at, full, q);
        }
    }
}

/* Only sums are ever divided; the other kernels do without the code. */
INLINE void sweep_as(const struct red_step *step, const struct elements *el, vec (*op)(vec, vec),
                     bool divides)
{
    const size_t full = quad_elements(el);
    const size_t whole = step->count - step->count % full;
    const bool pair = step->src_count == 2 && !step->acc_in && !step->acc_out && step->divisor == 1;
    if (pair && step->dst_count == 1) {
        sweep_pair(step, el, op, whole, false);
    } else if (pair && step->dst_count == 2) {
        sweep_pair(step, el, op, whole, true);
    } else {
        for (size_t at = 0; at < whole; at += full) {
            sweep_quad(step, el, op, divides, at, full);
        }
    }
    if (whole < step->count) {
        sweep_quad(step, el, op, divides, whole, step->count - whole);
    }
}

INLINE void sweep(const struct red_step *step, const struct elements *el, vec (*op)(vec, vec), bool divides)
{
    const struct elements ordered = in_order(el);
    if (el->load_mixed && !step->acc_in && !step->acc_out) {
        sweep_as(step, el, op, divides);
    } else {
        sweep_as(step, &ordered, op, divides);
    }
}

/* ---- The table ---- */

static const struct elements f32 = {4, 4, vec_load, vec_store, f32_divide, NULL, NULL};
static const struct elements f64 = {8, 8, vec_load, vec_store, f64_divide, NULL, NULL};
static const struct elements f16 = {2, 4, f16_load, f16_store, f32_divide, NULL, NULL};
static const struct elements bf16 = {
    2, 4, bf16_load, bf16_store, f32_divide, bf16_load_mixed, bf16_store_mixed};
static const struct elements i8 = {1, 1, vec_load, vec_store, i8_divide, NULL, NULL};
static const struct elements u8 = {1, 1, vec_load, vec_store, u8_divide, NULL, NULL};
static const struct elements i32 = {4, 4, vec_load, vec_store, i32_divide, NULL, NULL};
static const struct elements u32 = {4, 4, vec_load, vec_store, u32_divide, NULL, NULL};
static const struct elements i64 = {8, 8, vec_load, vec_store, i64_divide, NULL, NULL};
static const struct elements u64 = {8, 8, vec_load, vec_store, u64_divide, NULL, NULL};

#define KERNEL(type, name, op, divides)                            \
    static void sweep_##type##_##name(const struct red_step *step) \
    {                                                              \
        sweep(step, &type, op, divides);                           \
    }

/* `arith` is the type whose sum and product serve, `order` the one whose comparison does. */
#define KERNELS(type, arith, order)        \
    KERNEL(type, sum, arith##_add, true)   \
    KERNEL(type, prod, arith##_mul, false) \
    KERNEL(type, min, order##_min, false)  \
    KERNEL(type, max, order##_max, false)

#define INT_KERNELS(type, arith)        \
    KERNELS(type, arith, type)          \
    KERNEL(type, band, bits_and, false) \
    KERNEL(type, bor, bits_or, false)   \
    KERNEL(type, bxor, bits_xor, false)

KERNELS(f32, f32, f32)
KERNELS(f64, f64, f64)
KERNELS(f16, f32, f32)
KERNELS(bf16, f32, f32)
INT_KERNELS(i8, u8)
INT_KERNELS(u8, u8)
INT_KERNELS(i32, u32)
INT_KERNELS(u32, u32)
INT_KERNELS(i64, u64)
INT_KERNELS(u64, u64)

#define ENTRY(type, op, name) [op] = sweep_##type##_##name
#define ROW(type)                                                                       \
    ENTRY(type, COLL_SUM, sum), ENTRY(type, COLL_AVG, sum), ENTRY(type, COLL_MIN, min), \
        ENTRY(type, COLL_MAX, max), ENTRY(type, COLL_PROD, prod)
#define INT_ROW(type) \
    ROW(type), ENTRY(type, COLL_BAND, band), ENTRY(type, COLL_BOR, bor), ENTRY(type, COLL_BXOR, bxor)

const struct red_table RED_TABLE = {
    .name = RED_NAME,
    .sweep =
        {
            [COLL_F32] = {ROW(f32)},
            [COLL_F64] = {ROW(f64)},
            [COLL_F16] = {ROW(f16)},
            [COLL_BF16] = {ROW(bf16)},
            [COLL_I8] = {INT_ROW(i8)},
            [COLL_U8] = {INT_ROW(u8)},
            [COLL_I32] = {INT_ROW(i32)},
            [COLL_U32] = {INT_ROW(u32)},
            [COLL_I64] = {INT_ROW(i64)},
            [COLL_U64] = {INT_ROW(u64)},
        },
};

#endif

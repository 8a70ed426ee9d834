/*
 * Every kernel of every table this machine can run, against the oracle.
 */
#include "reduce/red_kernel.h"
#include "tests/unit/oracle.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_SOURCES 64u
#define MAX_COUNT 4099u /* past a tile of the smallest type */
#define CANARY 0xa5

static const unsigned source_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 64};
/* Around every vector width, around a quad of vectors, around a tile. */
static const size_t counts[] = {0,   1,   2,   3,   4,   5,    7,    8,    9,    15,       16,
                                17,  31,  32,  33,  63,  64,   65,   127,  128,  129,      255,
                                256, 257, 511, 512, 513, 1023, 1024, 1025, 2049, MAX_COUNT};

#define EACH_TABLE(table) for (const struct red_table *const *table = red_tables(); *table; table++)
#define EACH_PAIR(dtype, op)                                    \
    for (unsigned dtype = 0; dtype < COLL_DTYPE_COUNT; dtype++) \
        for (unsigned op = 0; op < COLL_OP_COUNT; op++)         \
            if (coll_op_fits(op, dtype))
#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- Data ---- */

static uint64_t random_bits(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static const double special_reals[] = {0.0,
                                       -0.0,
                                       INFINITY,
                                       -INFINITY,
                                       NAN,
                                       1.0,
                                       -1.0,
                                       0x1p-149,
                                       -0x1p-149,
                                       0x1p-24,
                                       -0x1p-24,
                                       0x1p-1074,
                                       0x1.fffffep-127,
                                       65504.0,
                                       -65504.0,
                                       65519.0,
                                       0x1.fffffep127,
                                       -0x1.fffffep127,
                                       0x1.fffffffffffffp1023};

/* Tame elements show that sums are right; every fourth one has any bits or a special value. */
static void put_random(enum coll_dtype dtype, void *array, size_t idx)
{
    union oracle_num num = {.bits = random_bits()};
    if (oracle_is_real(dtype)) {
        if (idx % 4 != 0) {
            num.real = (double)(int64_t)num.bits * 0x1p-60;
        } else if (num.bits % 2) {
            num.real = special_reals[num.bits / 2 % LENGTH(special_reals)];
        } else {
            memcpy((char *)array + idx * coll_dtype_bytes(dtype), &num.bits, coll_dtype_bytes(dtype));
            return;
        }
    }
    oracle_store(dtype, array, idx, num);
}

/* Arrays whose first element is aligned to its size and to nothing more. */
struct sources {
    unsigned n;
    char *memory[MAX_SOURCES];
    const void *array[MAX_SOURCES];
};

static void sources_init(struct sources *sources, enum coll_dtype dtype, unsigned n)
{
    const size_t bytes = coll_dtype_bytes(dtype);
    sources->n = n;
    for (unsigned s = 0; s < sources->n; s++) {
        sources->memory[s] = malloc((MAX_COUNT + 8) * bytes);
        sources->array[s] = sources->memory[s] + (1 + s % 7) * bytes;
        for (size_t i = 0; i < MAX_COUNT; i++) {
            put_random(dtype, (void *)sources->array[s], i);
        }
    }
}

static void sources_fini(struct sources *sources)
{
    for (unsigned s = 0; s < sources->n; s++) {
        free(sources->memory[s]);
    }
}

static void expect_equal(const struct red_table *table, enum coll_dtype dtype, enum coll_op op,
                         unsigned src_count, size_t count, const void *want, const void *got)
{
    const size_t at = oracle_mismatch(dtype, want, got, count);
    if (at < count) {
        uint64_t w = 0, g = 0;
        memcpy(&w, (const char *)want + at * coll_dtype_bytes(dtype), coll_dtype_bytes(dtype));
        memcpy(&g, (const char *)got + at * coll_dtype_bytes(dtype), coll_dtype_bytes(dtype));
        cr_assert_fail("%s %s %s, %u sources: element %zu of %zu is %#llx, not %#llx", table->name,
                       coll_dtype_name(dtype), coll_op_name(op), src_count, at, count, (unsigned long long)g,
                       (unsigned long long)w);
    }
}

static unsigned divisor_of(enum coll_op op, unsigned src_count)
{
    return op == COLL_AVG ? src_count : 1;
}

/* ---- All kernels ---- */

/* One step into two destinations, one of them shifted, with canaries behind. */
static void check_step(const struct red_table *table, enum coll_dtype dtype, enum coll_op op,
                       const struct sources *sources, unsigned src_count, size_t count, const void *want)
{
    static char memory[2][(MAX_COUNT + 3) * 8];
    const size_t bytes = coll_dtype_bytes(dtype);
    memset(memory, CANARY, sizeof memory);
    void *dst[] = {memory[0], memory[1] + bytes};
    red_reduce(table, dtype, op,
               &(struct red_step){.dst = dst,
                                  .dst_count = 2,
                                  .src = sources->array,
                                  .src_count = src_count,
                                  .count = count,
                                  .divisor = divisor_of(op, src_count)});
    expect_equal(table, dtype, op, src_count, count, want, dst[0]);
    cr_assert_eq(memcmp(dst[0], dst[1], count * bytes), 0, "the destinations differ");
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_eq(((unsigned char *)dst[i])[count * bytes], CANARY, "%s %s wrote past its end",
                     table->name, coll_dtype_name(dtype));
    }
}

Test(kernel, every_table_gives_the_bits_of_the_oracle_for_every_type_operation_count_and_number_of_sources)
{
    static char want[MAX_COUNT * 8];
    struct sources sources;
    EACH_PAIR(dtype, op)
    {
        sources_init(&sources, dtype, MAX_SOURCES);
        for (unsigned s = 0; s < LENGTH(source_counts); s++) {
            const unsigned n = source_counts[s];
            oracle_reduce(dtype, op, sources.array, n, MAX_COUNT, divisor_of(op, n), want);
            EACH_TABLE(table)
            {
                for (unsigned c = 0; c < LENGTH(counts); c++) {
                    check_step(*table, dtype, op, &sources, n, counts[c], want);
                }
            }
        }
        sources_fini(&sources);
    }
}

/* All-reduce as the daemon does it: every buffer is a source and a destination. */
Test(kernel, sources_may_be_overwritten_by_the_result)
{
    static const unsigned overwritten[] = {2, 9, 64};
    static char want[MAX_COUNT * 8];
    struct sources sources;
    EACH_PAIR(dtype, op)
    {
        EACH_TABLE(table)
        {
            for (unsigned i = 0; i < LENGTH(overwritten); i++) {
                const unsigned n = overwritten[i];
                sources_init(&sources, dtype, n);
                oracle_reduce(dtype, op, sources.array, n, MAX_COUNT, divisor_of(op, n), want);
                red_reduce(*table, dtype, op,
                           &(struct red_step){.dst = (void *const *)sources.array,
                                              .dst_count = n,
                                              .src = sources.array,
                                              .src_count = n,
                                              .count = MAX_COUNT,
                                              .divisor = divisor_of(op, n)});
                expect_equal(*table, dtype, op, n, MAX_COUNT, want, sources.array[0]);
                for (unsigned s = 1; s < n; s++) {
                    cr_assert_eq(
                        memcmp(sources.array[0], sources.array[s], MAX_COUNT * coll_dtype_bytes(dtype)), 0);
                }
                sources_fini(&sources);
            }
        }
    }
}

/* What a ring does: a partial sum of the first sources comes in, in accumulator form, at its own place. */
Test(kernel, a_partial_sum_that_travels_loses_nothing)
{
    static char want[MAX_COUNT * 8], got[MAX_COUNT * 8], partial[MAX_COUNT * 8];
    const unsigned total = 13;
    const size_t first = 3, count = MAX_COUNT - first;
    struct sources sources;
    void *dst = got;
    EACH_PAIR(dtype, op)
    {
        sources_init(&sources, dtype, MAX_SOURCES);
        oracle_reduce(dtype, op, sources.array, total, MAX_COUNT, divisor_of(op, total), want);
        EACH_TABLE(table)
        {
            for (unsigned head = 1; head < total; head++) {
                red_reduce(*table, dtype, op,
                           &(struct red_step){.src = sources.array,
                                              .src_count = head,
                                              .first = first,
                                              .acc_out = partial,
                                              .count = count,
                                              .divisor = 1});
                red_reduce(*table, dtype, op,
                           &(struct red_step){.dst = &dst,
                                              .dst_count = 1,
                                              .src = sources.array + head,
                                              .src_count = total - head,
                                              .first = first,
                                              .acc_in = partial,
                                              .acc_out = partial,
                                              .count = count,
                                              .divisor = divisor_of(op, total)});
                const size_t skipped = first * coll_dtype_bytes(dtype);
                expect_equal(*table, dtype, op, total, count, want + skipped, got + skipped);
            }
        }
        sources_fini(&sources);
    }
}

Test(kernel, a_partial_sum_alone_becomes_the_result)
{
    EACH_TABLE(table)
    {
        const float partial[] = {4, -8, 0.5f};
        uint16_t result[3] = {0};
        void *dst = result;
        red_reduce(
            *table, COLL_BF16, COLL_AVG,
            &(struct red_step){.dst = &dst, .dst_count = 1, .acc_in = partial, .count = 3, .divisor = 2});
        cr_assert_eq(result[0], 0x4000);
        cr_assert_eq(result[1], 0xc080);
        cr_assert_eq(result[2], 0x3e80);
    }
}

/* A page that may not be touched follows every array. */
Test(kernel, nothing_is_read_or_written_past_the_end)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *end[3];
    for (unsigned i = 0; i < 3; i++) {
        char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(memory, MAP_FAILED);
        cr_assert_eq(mprotect(memory + page, page, PROT_NONE), 0);
        end[i] = memory + page;
    }
    EACH_PAIR(dtype, op)
    {
        EACH_TABLE(table)
        {
            for (size_t count = 1; count <= 300; count++) {
                const size_t bytes = count * coll_dtype_bytes(dtype);
                const void *src[] = {end[0] - bytes, end[1] - bytes};
                void *dst = end[2] - bytes;
                red_reduce(*table, dtype, op,
                           &(struct red_step){.dst = &dst,
                                              .dst_count = 1,
                                              .src = src,
                                              .src_count = 2,
                                              .count = count,
                                              .divisor = divisor_of(op, 2)});
            }
        }
    }
}

/* ---- The rules of the design, one by one ---- */

/* The result of one element from each source. */
static union oracle_num reduce_one(const struct red_table *table, enum coll_dtype dtype, enum coll_op op,
                                   const double *values, unsigned n, unsigned divisor)
{
    uint64_t elements[MAX_SOURCES], result = 0;
    const void *src[MAX_SOURCES];
    void *dst = &result;
    for (unsigned i = 0; i < n; i++) {
        oracle_store(dtype, &elements[i], 0,
                     oracle_is_real(dtype) ? (union oracle_num){.real = values[i]}
                                           : (union oracle_num){.bits = (uint64_t)(int64_t)values[i]});
        src[i] = &elements[i];
    }
    red_reduce(table, dtype, op,
               &(struct red_step){
                   .dst = &dst, .dst_count = 1, .src = src, .src_count = n, .count = 1, .divisor = divisor});
    return oracle_load(dtype, &result, 0);
}

Test(kernel, a_nan_of_any_rank_reaches_the_minimum_and_the_maximum)
{
    EACH_TABLE(table)
    {
        for (unsigned dtype = COLL_F32; dtype <= COLL_BF16; dtype++) {
            for (unsigned where = 0; where < 9; where++) {
                double values[9] = {1, -INFINITY, 3, INFINITY, 0, -0.0, 7, -8, 9};
                values[where] = where % 2 ? NAN : -NAN;
                cr_assert(isnan(reduce_one(*table, dtype, COLL_MIN, values, 9, 1).real));
                cr_assert(isnan(reduce_one(*table, dtype, COLL_MAX, values, 9, 1).real));
            }
        }
    }
}

Test(kernel, minus_zero_is_below_zero_whichever_comes_first)
{
    const double orders[2][2] = {{0.0, -0.0}, {-0.0, 0.0}};
    EACH_TABLE(table)
    {
        for (unsigned dtype = COLL_F32; dtype <= COLL_BF16; dtype++) {
            for (unsigned i = 0; i < 2; i++) {
                cr_assert(signbit(reduce_one(*table, dtype, COLL_MIN, orders[i], 2, 1).real));
                cr_assert(!signbit(reduce_one(*table, dtype, COLL_MAX, orders[i], 2, 1).real));
            }
        }
    }
}

Test(kernel, sixteen_bit_sums_are_rounded_once_not_at_every_step)
{
    double f16_values[MAX_SOURCES] = {2048}, bf16_values[MAX_SOURCES] = {256};
    for (unsigned i = 1; i < MAX_SOURCES; i++) {
        f16_values[i] = bf16_values[i] = 1; /* half a step: alone each would be rounded away */
    }
    EACH_TABLE(table)
    {
        cr_assert_eq(reduce_one(*table, COLL_F16, COLL_SUM, f16_values, 63, 1).real, 2048 + 62);
        cr_assert_eq(reduce_one(*table, COLL_BF16, COLL_SUM, bf16_values, 63, 1).real, 256 + 62);
    }
}

Test(kernel, integers_wrap_and_their_average_truncates_toward_zero)
{
    const double top[] = {INT32_MAX, 1}, minus_seven[] = {-3, -4}, bytes[] = {127, 1},
                 unsigned_bytes[] = {255, 2};
    EACH_TABLE(table)
    {
        cr_assert_eq((int64_t)reduce_one(*table, COLL_I32, COLL_SUM, top, 2, 1).bits, INT32_MIN);
        cr_assert_eq((int64_t)reduce_one(*table, COLL_I32, COLL_AVG, minus_seven, 2, 2).bits, -3);
        cr_assert_eq((int64_t)reduce_one(*table, COLL_I8, COLL_AVG, minus_seven, 2, 2).bits, -3);
        cr_assert_eq((int64_t)reduce_one(*table, COLL_I64, COLL_AVG, minus_seven, 2, 2).bits, -3);
        cr_assert_eq((int64_t)reduce_one(*table, COLL_I8, COLL_AVG, bytes, 2, 2).bits, -64);
        cr_assert_eq(reduce_one(*table, COLL_U8, COLL_AVG, unsigned_bytes, 2, 2).bits, 0);
    }
}

Test(kernel, every_byte_divides_as_c_does)
{
    uint8_t all[256], got[256];
    const void *src = all;
    void *dst = got;
    for (unsigned i = 0; i < 256; i++) {
        all[i] = (uint8_t)i;
    }
    struct red_step step = {.dst = &dst, .dst_count = 1, .src = &src, .src_count = 1, .count = 256};
    EACH_TABLE(table)
    {
        for (step.divisor = 1; step.divisor < 300; step.divisor++) {
            red_reduce(*table, COLL_U8, COLL_AVG, &step);
            for (unsigned i = 0; i < 256; i++) {
                cr_assert_eq(got[i], i / step.divisor);
            }
            red_reduce(*table, COLL_I8, COLL_AVG, &step);
            for (unsigned i = 0; i < 256; i++) {
                cr_assert_eq((int8_t)got[i], (int8_t)i / (int)step.divisor);
            }
        }
    }
}

Test(kernel, wide_integers_divide_as_c_does_next_to_every_multiple)
{
    static const unsigned divisors[] = {2, 3, 5, 7, 64, 641, 65535, 65537, 16777217, 2147483647};
    EACH_TABLE(table)
    {
        for (unsigned d = 0; d < LENGTH(divisors); d++) {
            uint32_t in[3000], got[3000];
            const void *src = in;
            void *dst = got;
            const uint32_t multiples = UINT32_MAX / divisors[d];
            for (unsigned i = 0; i < 3000; i++) {
                in[i] = (uint32_t)(random_bits() % (multiples + 1ull)) * divisors[d] + i % 3 - 1;
            }
            struct red_step step = {.dst = &dst,
                                    .dst_count = 1,
                                    .src = &src,
                                    .src_count = 1,
                                    .count = 3000,
                                    .divisor = divisors[d]};
            red_reduce(*table, COLL_U32, COLL_AVG, &step);
            for (unsigned i = 0; i < 3000; i++) {
                cr_assert_eq(got[i], in[i] / divisors[d]);
            }
            red_reduce(*table, COLL_I32, COLL_AVG, &step);
            for (unsigned i = 0; i < 3000; i++) {
                cr_assert_eq((int32_t)got[i], (int32_t)in[i] / (int32_t)divisors[d]);
            }
        }
    }
}

/* ---- Rounding to 16 bits ---- */

/* For every code: its value, the middle between it and the next, and the f32 just beside either. */
static void check_rounding(enum coll_dtype dtype, int frac, int bias)
{
    static float in[65536 * 5];
    static uint16_t want[65536 * 5], got[65536 * 5];
    size_t n = 0;
    for (unsigned code = 0; code < 65536; code++) {
        const double value = oracle_half_value((uint16_t)code, frac, bias);
        const double next = oracle_half_value((uint16_t)(code + 1), frac, bias);
        const float middle = (float)((value + next) / 2);
        const float points[] = {(float)value, middle, nextafterf(middle, INFINITY),
                                nextafterf(middle, -INFINITY), nextafterf((float)value, INFINITY)};
        for (unsigned i = 0; i < LENGTH(points); i++, n++) {
            in[n] = points[i];
            want[n] = oracle_half_code(points[i], frac, bias);
        }
    }
    void *dst = got;
    EACH_TABLE(table)
    {
        red_reduce(*table, dtype, COLL_SUM,
                   &(struct red_step){.dst = &dst, .dst_count = 1, .acc_in = in, .count = n, .divisor = 1});
        expect_equal(*table, dtype, COLL_SUM, 1, n, want, got);
    }
}

Test(kernel, f16_rounds_to_nearest_even_everywhere)
{
    check_rounding(COLL_F16, 10, 15);
}

Test(kernel, bf16_rounds_to_nearest_even_everywhere)
{
    check_rounding(COLL_BF16, 7, 127);
}

Test(kernel, every_sixteen_bit_value_comes_back_unchanged)
{
    static uint16_t all[65536], got[65536];
    const void *src = all;
    void *dst = got;
    for (unsigned i = 0; i < 65536; i++) {
        all[i] = (uint16_t)i;
    }
    EACH_TABLE(table)
    {
        for (unsigned dtype = COLL_F16; dtype <= COLL_BF16; dtype++) {
            red_reduce(
                *table, dtype, COLL_SUM,
                &(struct red_step){
                    .dst = &dst, .dst_count = 1, .src = &src, .src_count = 1, .count = 65536, .divisor = 1});
            expect_equal(*table, dtype, COLL_SUM, 1, 65536, all, got);
        }
    }
}

#ifdef __SSE2__
#include <xmmintrin.h>

/* A library may have set the thread to flush denormals and to round toward zero. */
Test(kernel, the_floating_point_mode_of_the_thread_does_not_matter_and_stays)
{
    const unsigned mode = 0x1f80 | 0x8040 | 0x6000;
    const float singles[2][2] = {{0x1p-149f, 1}, {0x1p-149f, 0x1.8p-24f}};
    const uint16_t halves[2][1] = {{0x0001}, {0x0001}};
    EACH_TABLE(table)
    {
        float single_sums[2] = {0};
        uint16_t half_sum[1] = {0};
        const void *single_src[] = {singles[0], singles[1]}, *half_src[] = {halves[0], halves[1]};
        void *single_dst = single_sums, *half_dst = half_sum;
        const struct red_step single_step = {
            .dst = &single_dst, .dst_count = 1, .src = single_src, .src_count = 2, .count = 2, .divisor = 1};
        const struct red_step half_step = {
            .dst = &half_dst, .dst_count = 1, .src = half_src, .src_count = 2, .count = 1, .divisor = 1};
        _mm_setcsr(mode);
        red_reduce(*table, COLL_F32, COLL_SUM, &single_step);
        red_reduce(*table, COLL_F16, COLL_SUM, &half_step);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(0x1f80);
        cr_assert_eq(after & ~0x3fu, mode);
        cr_assert_eq(single_sums[0], 0x1p-148f);
        cr_assert_eq(single_sums[1], 1 + 0x1p-23f);
        cr_assert_eq(half_sum[0], 0x0002);
    }
}
#endif

/* ---- Tables and copies ---- */

Test(kernel, tables_are_found_by_name_and_portable_is_always_the_last)
{
    const struct red_table *last = NULL;
    EACH_TABLE(table)
    {
        cr_assert_eq(red_table_find((*table)->name), *table);
        last = *table;
    }
    cr_assert_str_eq(last->name, "portable");
    cr_assert_eq(red_table_find("auto"), red_tables()[0]);
    cr_assert_null(red_table_find("mmx"));
    cr_assert_null(red_table_find(""));
}

Test(kernel, every_fitting_pair_has_a_kernel_and_no_other)
{
    EACH_TABLE(table)
    {
        for (unsigned dtype = 0; dtype < COLL_DTYPE_COUNT; dtype++) {
            for (unsigned op = 0; op < COLL_OP_COUNT; op++) {
                cr_assert_eq((*table)->sweep[dtype][op] != NULL, coll_op_fits(op, dtype));
            }
        }
    }
}

static void check_copies(unsigned stream_count)
{
    static unsigned char memory[3][40000];
    void *const all[] = {memory[0], memory[1], memory[2]};
    for (size_t bytes = 0; bytes < 39000; bytes += 1 + bytes / 3) {
        for (size_t i = 0; i < sizeof memory[1]; i++) {
            memory[0][i] = memory[2][i] = CANARY;
            memory[1][i] = (unsigned char)random_bits();
        }
        red_copy(all, 3, stream_count, memory[1], 5, bytes);
        for (unsigned m = 0; m < 3; m += 2) {
            cr_assert_eq(memcmp(memory[m] + 5, memory[1] + 5, bytes), 0);
            cr_assert_eq(memory[m][4], CANARY);
            cr_assert_eq(memory[m][5 + bytes], CANARY);
        }
    }
}

Test(kernel, a_copy_fills_the_range_of_all_others_and_nothing_beside_it)
{
    check_copies(0);
    check_copies(1); /* the first past the caches, the last not */
    check_copies(3);
}

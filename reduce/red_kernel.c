/*
 * Which table, how a step with many sources is cut, and in which floating point mode it runs.
 */
#include "reduce/red_kernel.h"

#include "ntbmem/ntbm_fence.h"
#include "reduce/red_prefetch.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

/* More streams at once than these, and the processor's prefetchers and cache sets run out: then sources and
 * destinations are taken in groups, a tile at a time, with the accumulators in the first-level cache.
 * Measured with f32 sums in place, memory-bound: 8 ranks in one sweep 117 GB/s, in groups of 4 82; 64 ranks
 * in one sweep 41, in groups of 8 75, of 4 72, of 2 61. Tiles from 2 to 16 KiB are within a tenth of each
 * other. */
#define GROUP 8u
#define TILE_BYTES 4096u /* of accumulators */
#define COPY_BYTES 16384u

/* Measured by copying to one and to two buffers on two cores: up to 8 MiB a buffer both kinds of store take
 * as long (within a cache of 2 MiB streaming takes twice as long), from 16 on streaming half as long to two.
 */
#define STREAM_BYTES (16u << 20)

/* ---- Floating point mode: nearest even, denormals kept, no traps ---- */

#ifdef __SSE2__
#include <xmmintrin.h>

#define FP_DEFAULT 0x1f80u
#define FP_STATUS 0x3fu /* sticky flags: no part of the mode */

typedef unsigned fp_mode;

static fp_mode fp_enter(void)
{
    const fp_mode was = _mm_getcsr();
    if ((was & ~FP_STATUS) != FP_DEFAULT) {
        _mm_setcsr(FP_DEFAULT);
    }
    return was;
}

static void fp_leave(fp_mode was)
{
    if ((was & ~FP_STATUS) != FP_DEFAULT) {
        _mm_setcsr(was);
    }
}
#else
#include <fenv.h>

typedef fenv_t fp_mode;

static fp_mode fp_enter(void)
{
    fp_mode was;
    fegetenv(&was);
    fesetenv(FE_DFL_ENV);
    return was;
}

static void fp_leave(fp_mode was)
{
    fesetenv(&was);
}
#endif

/* ---- Selection ---- */

static const struct red_table *tables[4];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

#ifdef __x86_64__
#include <cpuid.h>

/* Not every compiler lets __builtin_cpu_supports ask for this one. */
static bool cpu_has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static unsigned add_x86_tables(void)
{
    unsigned n = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        tables[n++] = &red_avx512;
    }
    if (__builtin_cpu_supports("avx2") && cpu_has_f16c()) {
        tables[n++] = &red_avx2;
    }
    return n;
}
#endif

static void find_tables(void)
{
    unsigned n = 0;
#ifdef __x86_64__
    n = add_x86_tables();
#endif
    tables[n] = &red_portable;
}

const struct red_table *const *red_tables(void)
{
    pthread_once(&tables_once, find_tables);
    return tables;
}

const struct red_table *red_table_find(const char *name)
{
    const struct red_table *const *table = red_tables();
    if (strcmp(name, "auto") == 0) {
        return *table;
    }
    while (*table && strcmp((*table)->name, name) != 0) {
        table++;
    }
    return *table;
}

/* ---- Steps ---- */

typedef void (*sweep_fn)(const struct red_step *step);

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* A step no longer than a tile. Each sweep takes the next sources, or, when there are none left, the next
 * destinations; between sweeps the sum is in acc. */
static void reduce_tile(sweep_fn sweep, const struct red_step *step)
{
    _Alignas(64) char acc[TILE_BYTES];
    struct red_step rest = *step;
    bool more;
    do {
        struct red_step part = rest;
        part.src_count = least(rest.src_count, GROUP);
        rest.src += part.src_count;
        rest.src_count -= part.src_count;
        part.dst_count = rest.src_count > 0 ? 0 : least(rest.dst_count, GROUP);
        rest.dst += part.dst_count;
        rest.dst_count -= part.dst_count;
        more = rest.src_count > 0 || rest.dst_count > 0;
        if (more) {
            part.acc_out = acc;
            rest.acc_in = acc;
        }
        if (part.dst_count == 0) {
            part.divisor = 1;
        }
        sweep(&part);
    } while (more);
}

static void reduce_tiles(sweep_fn sweep, size_t acc_bytes, const struct red_step *step)
{
    const size_t tile = TILE_BYTES / acc_bytes;
    for (size_t at = 0; at < step->count; at += tile) {
        struct red_step part = *step;
        part.first += at;
        part.count = step->count - at < tile ? step->count - at : tile;
        part.acc_in = step->acc_in ? (const char *)step->acc_in + at * acc_bytes : NULL;
        part.acc_out = step->acc_out ? (char *)step->acc_out + at * acc_bytes : NULL;
        reduce_tile(sweep, &part);
    }
}

/* Nothing to combine, and nothing to round: elements are kept as they are. */
static bool is_copy(enum coll_dtype dtype, const struct red_step *step)
{
    return step->src_count == 1 && !step->acc_in && !step->acc_out && step->divisor == 1 &&
           coll_dtype_acc(dtype) == dtype;
}

void red_reduce(const struct red_table *table, enum coll_dtype dtype, enum coll_op op,
                const struct red_step *step)
{
    const size_t bytes = coll_dtype_bytes(dtype);
    if (is_copy(dtype, step)) {
        red_copy(step->dst, step->dst_count, 0, step->src[0], step->first * bytes, step->count * bytes);
        return;
    }
    const sweep_fn sweep = table->sweep[dtype][op];
    const fp_mode was = fp_enter();
    if (step->src_count <= GROUP && step->dst_count <= GROUP) {
        sweep(step);
    } else {
        reduce_tiles(sweep, coll_dtype_acc_bytes(dtype), step);
    }
    fp_leave(was);
}

/* ---- Copies ---- */

typedef void (*copy_fn)(char *dst, const char *src, size_t bytes);

struct copiers {
    copy_fn cached, streamed;
};

/* Whole vectors in rising order, as write-combining buffers want them where dst is a PCI window. memcpy would
 * fall to single bytes there: that is what string instructions do on memory that is not cached. */
#define COPY_LINES(name, vector, put, target)                                                      \
    target static void name(char *dst, const char *src, size_t bytes)                              \
    {                                                                                              \
        const size_t odd = -(uintptr_t)dst % sizeof(vector), head = odd < bytes ? odd : bytes;     \
        size_t at = head;                                                                          \
        memcpy(dst, src, head);                                                                    \
        for (; bytes - at >= 4 * sizeof(vector); at += 4 * sizeof(vector)) {                       \
            red_prefetch(src + at, 4 * sizeof(vector));                                            \
            const vector##_unaligned *from = (const vector##_unaligned *)(src + at);               \
            vector *to = (vector *)(dst + at), a = from[0], b = from[1], c = from[2], d = from[3]; \
            put(to, a);                                                                            \
            put(to + 1, b);                                                                        \
            put(to + 2, c);                                                                        \
            put(to + 3, d);                                                                        \
            __asm__ volatile("" ::: "memory"); /* or the compiler makes it a memcpy again */       \
        }                                                                                          \
        memcpy(dst + at, src + at, bytes - at);                                                    \
    }

#define STORE(to, value) (*(to) = (value))

typedef long long lanes16 __attribute__((vector_size(16), may_alias));
typedef long long lanes16_unaligned __attribute__((vector_size(16), aligned(1), may_alias));

COPY_LINES(copy_lines, lanes16, STORE, )

#ifdef __x86_64__
#include <immintrin.h>

#define STREAM(to, value) _mm256_stream_si256((__m256i *)(to), (__m256i)(value))
#define AVX __attribute__((target("avx")))

typedef long long lanes32 __attribute__((vector_size(32), may_alias));
typedef long long lanes32_unaligned __attribute__((vector_size(32), aligned(1), may_alias));

COPY_LINES(copy_lines_avx, lanes32, STORE, AVX)
COPY_LINES(stream_lines_avx, lanes32, STREAM, AVX)
#endif

static struct copiers find_copiers(void)
{
#ifdef __x86_64__
    if (red_tables()[0] != &red_portable)
        return (struct copiers){copy_lines_avx, stream_lines_avx};
#endif
    return (struct copiers){copy_lines, copy_lines};
}

unsigned red_stream_count(uint64_t op_bytes, unsigned dst_count)
{
    return op_bytes < STREAM_BYTES ? 0 : dst_count;
}

/* The source is read from memory once, however many copies are made: a piece stays in the first-level cache.
 */
void red_copy(void *const *dst, unsigned dst_count, unsigned stream_count, const void *src, size_t offset,
              size_t bytes)
{
    const size_t end = offset + bytes;
    const struct copiers copy = find_copiers();
    for (size_t at = offset; at < end; at += COPY_BYTES) {
        const size_t n = end - at < COPY_BYTES ? end - at : COPY_BYTES;
        for (unsigned i = 0; i < dst_count; i++) {
            if (dst[i] != src) {
                (i < stream_count ? copy.streamed : copy.cached)((char *)dst[i] + at, (const char *)src + at,
                                                                 n);
            }
        }
    }
    if (stream_count > 0) {
        ntbm_fence_before_word(); /* the word that says it is done: streamed stores obey no release */
    }
}

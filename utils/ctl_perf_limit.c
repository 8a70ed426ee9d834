#include "utils/ctl_perf_limit.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "utils/ut_clock.h"
#include "utils/ut_order.h"

#define THREADS_FROM_BYTES (256u << 10)
#define AHEAD_LINES 32u

/* A cache line of floats; the compiler takes whatever vectors the function may use. */
typedef float line __attribute__((vector_size(64)));

struct pass {
    line **buffer;
    unsigned ranks, threads;
    uint64_t lines;
    pthread_barrier_t begin, end;
    bool over;
};

/* Every line of all buffers is read once and written once, and asked for before it is needed, as in the
 * daemon's kernels: a limit that could be beaten by a better loop would be none. */
static inline __attribute__((always_inline)) void add_lines(line *const *buffer, unsigned ranks,
                                                            uint64_t from, uint64_t to)
{
    for (uint64_t at = from; at < to; at++) {
        line sum = buffer[0][at];
        __builtin_prefetch(buffer[0] + at + AHEAD_LINES);
        for (unsigned r = 1; r < ranks; r++) {
            sum += buffer[r][at];
            __builtin_prefetch(buffer[r] + at + AHEAD_LINES);
        }
        for (unsigned r = 0; r < ranks; r++)
            buffer[r][at] = sum;
    }
}

#ifdef __x86_64__
__attribute__((target("avx512f"))) static void add_avx512(line *const *buffer, unsigned ranks, uint64_t from,
                                                          uint64_t to)
{
    add_lines(buffer, ranks, from, to);
}

__attribute__((target("avx2"))) static void add_avx2(line *const *buffer, unsigned ranks, uint64_t from,
                                                     uint64_t to)
{
    add_lines(buffer, ranks, from, to);
}
#endif

static void add(line *const *buffer, unsigned ranks, uint64_t from, uint64_t to)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) {
        add_avx512(buffer, ranks, from, to);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        add_avx2(buffer, ranks, from, to);
        return;
    }
#endif
    add_lines(buffer, ranks, from, to);
}

/* ---- threads: each has one stretch of all buffers ---- */

struct worker {
    struct pass *pass;
    unsigned number;
    pthread_t thread;
};

static void work(const struct pass *pass, unsigned number)
{
    add(pass->buffer, pass->ranks, pass->lines * number / pass->threads,
        pass->lines * (number + 1) / pass->threads);
}

static void *live(void *arg)
{
    const struct worker *worker = arg;
    struct pass *pass = worker->pass;
    while (pthread_barrier_wait(&pass->begin), !pass->over) {
        work(pass, worker->number);
        pthread_barrier_wait(&pass->end);
    }
    return NULL;
}

static void run_rounds(struct pass *pass, uint64_t *took, unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        const uint64_t start = ut_clock_ns();
        pthread_barrier_wait(&pass->begin);
        work(pass, 0);
        pthread_barrier_wait(&pass->end);
        took[i] = ut_clock_ns() - start;
    }
}

/* Starts as many workers as there may be; the calling thread is the first. */
static void run_threads(struct pass *pass, uint64_t *took, unsigned rounds)
{
    struct worker worker[CPU_SETSIZE];
    const unsigned wanted = pass->threads;
    pthread_barrier_init(&pass->begin, NULL, wanted);
    pthread_barrier_init(&pass->end, NULL, wanted);
    for (unsigned i = 1; i < wanted; i++) {
        worker[i] = (struct worker){.pass = pass, .number = i};
        if (pthread_create(&worker[i].thread, NULL, live, &worker[i]))
            abort();
    }
    run_rounds(pass, took, rounds);
    pass->over = true;
    pthread_barrier_wait(&pass->begin);
    for (unsigned i = 1; i < wanted; i++)
        pthread_join(worker[i].thread, NULL);
    pthread_barrier_destroy(&pass->begin);
    pthread_barrier_destroy(&pass->end);
}

static unsigned usable_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned)CPU_COUNT(&set);
}

/* Shared pages, as buffers have, all there; zeros stay zeros however often they are added. */
static bool map_buffers(line **buffer, unsigned ranks, uint64_t bytes)
{
    for (unsigned r = 0; r < ranks; r++) {
        buffer[r] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (buffer[r] == MAP_FAILED) {
            buffer[r] = NULL;
            return false;
        }
        memset(buffer[r], 0, bytes);
    }
    return true;
}

uint64_t ctl_perf_limit_ns(unsigned ranks, uint64_t bytes, unsigned rounds)
{
    const uint64_t whole = (bytes + sizeof(line) - 1) / sizeof(line) * sizeof(line);
    struct pass pass = {.buffer = calloc(ranks, sizeof *pass.buffer),
                        .ranks = ranks,
                        .threads = bytes < THREADS_FROM_BYTES ? 1 : usable_cores(),
                        .lines = whole / sizeof(line)};
    uint64_t *took = calloc(rounds, sizeof *took), median = 0;
    if (pass.buffer && took && map_buffers(pass.buffer, ranks, whole)) {
        run_threads(&pass, took, rounds);
        ut_order_sort(took, rounds);
        median = ut_order_permille(took, rounds, 500);
    }
    for (unsigned r = 0; pass.buffer && r < ranks; r++)
        if (pass.buffer[r])
            munmap(pass.buffer[r], whole);
    free(pass.buffer);
    free(took);
    return median;
}

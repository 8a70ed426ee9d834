/*
 * The limit that the daemon's large all-reduce is measured against: the same pass over memory, in one
 * process, with the daemon's workers, without files, requests or waiting.
 *
 *     bench_pass [MiB a rank] [block KiB] [ranks]...
 *
 * For each number of ranks, the median time of a sum of f32 with each table, and beside it what memory itself
 * takes: every buffer rewritten in place, one after the other, by the same workers. Both move the same bytes:
 * all buffers are read once and written once.
 */
#include "reduce/coll_exec.h"
#include "reduce/red_pool.h"
#include "utils/ut_clock.h"
#include "utils/ut_num.h"
#include "utils/ut_order.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_RANKS 64u
#define ROUNDS 11u

struct pass {
    struct red_work work;
    struct coll_exec exec;
    uint64_t block_bytes;
    sem_t done;
};

static void reduce_block(struct red_work *work, unsigned idx)
{
    const struct pass *pass = UT_CONTAINER(work, struct pass, work);
    if (coll_exec_block(&pass->exec, pass->block_bytes, idx) != 0) {
        abort();
    }
}

/* A cache line, changed with whatever vectors the processor has. */
typedef uint64_t line __attribute__((vector_size(64)));

static void rewrite_block(struct red_work *work, unsigned idx)
{
    const struct pass *pass = UT_CONTAINER(work, struct pass, work);
    const uint64_t lines = pass->exec.count * sizeof(float) / sizeof(line);
    const uint64_t length = pass->block_bytes / sizeof(line), begin = idx * length;
    const uint64_t end = lines - begin < length ? lines : begin + length;
    for (unsigned m = 0; m < pass->exec.member_count; m++) {
        line *buffer = pass->exec.base[m];
        for (uint64_t i = begin; i < end; i++) {
            buffer[i] ^= 1;
        }
    }
}

static void pass_done(struct red_work *work)
{
    sem_post(&UT_CONTAINER(work, struct pass, work)->done);
}

/* Median time of a pass in milliseconds. */
static double median_ms(struct red_pool *pool, struct pass *pass)
{
    uint64_t ns[ROUNDS];
    for (unsigned i = 0; i < ROUNDS; i++) {
        const uint64_t start = ut_clock_ns();
        red_pool_submit(pool, &pass->work);
        sem_wait(&pass->done);
        ns[i] = ut_clock_ns() - start;
    }
    ut_order_sort(ns, ROUNDS);
    return (double)ut_order_permille(ns, ROUNDS, 500) / (double)UT_NS_PER_MS;
}

static void report(const char *name, unsigned ranks, uint64_t bytes, double ms)
{
    printf("%2u ranks  %-9s %8.2f ms  %6.1f GB/s\n", ranks, name, ms, 2.0 * ranks * (double)bytes / ms / 1e6);
}

static void measure(struct red_pool *pool, void *const *base, unsigned ranks, uint64_t bytes,
                    uint64_t block_bytes)
{
    struct pass pass = {.work = {.block = rewrite_block, .finish = pass_done},
                        .exec = {.kind = COLL_ALLREDUCE,
                                 .dtype = COLL_F32,
                                 .op = COLL_MAX,
                                 .count = bytes / sizeof(float),
                                 .member_count = ranks,
                                 .base = base},
                        .block_bytes = block_bytes ? block_bytes : 512 << 10};
    sem_init(&pass.done, 0, 0);
    pass.work.block_count = coll_exec_block_count(&pass.exec, pass.block_bytes);
    report("rewrite", ranks, bytes, median_ms(pool, &pass));
    pass.exec.op = COLL_SUM;
    pass.work.block = reduce_block;
    pass.block_bytes = block_bytes;
    pass.work.block_count = coll_exec_block_count(&pass.exec, block_bytes);
    for (const struct red_table *const *table = red_tables(); *table; table++) {
        pass.exec.table = *table;
        report((*table)->name, ranks, bytes, median_ms(pool, &pass));
    }
}

/* Shared memory like a buffer's, every page present; numbers small enough to be added forever. */
static void *map_buffer(uint64_t bytes)
{
    const int fd = memfd_create("bench", MFD_CLOEXEC);
    void *map = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) {
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    }
    if (map == MAP_FAILED) {
        perror("bench_pass: memory");
        exit(1);
    }
    close(fd);
    memset(map, 0, bytes);
    return map;
}

/* The number in argv[idx], or value when there is none. */
static uint64_t argument(int argc, char **argv, int idx, uint64_t value)
{
    if (idx < argc && ut_num_u64(argv[idx], 1 << 20, &value) != 0) {
        fprintf(stderr, "bench_pass: %s: not a number\n", argv[idx]);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    static const unsigned usual[] = {2, 4};
    const uint64_t bytes = argument(argc, argv, 1, 256) << 20, block_bytes = argument(argc, argv, 2, 0) << 10;
    void *base[MAX_RANKS];
    unsigned mapped = 0;
    struct red_pool *pool;
    if (red_pool_create(0, -1, &pool) != 0) {
        fprintf(stderr, "bench_pass: no workers\n");
        return 1;
    }
    printf("one pass, f32 sum, %llu MiB a rank, %u workers\n", (unsigned long long)bytes >> 20,
           red_pool_threads(pool));
    for (int i = 0; i < (argc > 3 ? argc - 3 : 2); i++) {
        const unsigned ranks = argc > 3 ? (unsigned)argument(argc, argv, 3 + i, 0) : usual[i];
        if (ranks < 2 || ranks > MAX_RANKS) {
            fprintf(stderr, "bench_pass: 2 to %u ranks\n", MAX_RANKS);
            return 2;
        }
        for (; mapped < ranks; mapped++) {
            base[mapped] = map_buffer(bytes);
        }
        measure(pool, base, ranks, bytes, block_bytes);
    }
    red_pool_destroy(pool);
    return 0;
}

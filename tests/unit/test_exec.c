/*
 * Collectives in memory, block by block in any order, against what the layout of the design says.
 */
#include "reduce/coll_exec.h"
#include "reduce/red_pool.h"

#include "ntbmem/ntbm_guard.h"
#include "tests/unit/oracle.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_MEMBERS 64u
#define MAX_COUNT 3000u

static const unsigned member_counts[] = {2, 3, 4, 5, 8, 64};
static const uint64_t counts[] = {1, 2, 3, 5, 63, 64, 65, 1000, MAX_COUNT};
static const uint64_t block_sizes[] = {1, 4, 100, 1024, 0};

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- Parts ---- */

Test(exec, parts_cover_the_range_in_order_and_differ_by_at_most_one_element)
{
    for (uint64_t count = 0; count < 200; count++) {
        for (unsigned parts = 1; parts < 20; parts++) {
            cr_assert_eq(coll_part_begin(count, parts, 0), 0);
            cr_assert_eq(coll_part_begin(count, parts, parts), count);
            for (unsigned i = 0; i < parts; i++) {
                const uint64_t length =
                    coll_part_begin(count, parts, i + 1) - coll_part_begin(count, parts, i);
                cr_assert(length == count / parts || length == count / parts + 1);
            }
        }
    }
}

Test(exec, parts_of_the_largest_count_do_not_overflow)
{
    cr_assert_eq(coll_part_begin(UINT64_MAX, 3, 1), UINT64_MAX / 3);
    cr_assert_eq(coll_part_begin(UINT64_MAX, 3, 2), UINT64_MAX / 3 * 2);
    cr_assert_eq(coll_part_begin(UINT64_MAX, UINT32_MAX, UINT32_MAX), UINT64_MAX);
}

/* ---- Collectives of i32, whose sums are exact ---- */

static int32_t memory[MAX_MEMBERS][MAX_COUNT + 1];
static void *base[MAX_MEMBERS];

static int32_t input(unsigned member, uint64_t at)
{
    return (int32_t)(member * 1000003u + (uint32_t)at * 7919u);
}

static void fill(unsigned member_count)
{
    for (unsigned m = 0; m < member_count; m++) {
        base[m] = memory[m];
        for (uint64_t i = 0; i <= MAX_COUNT; i++) {
            memory[m][i] = input(m, i);
        }
    }
}

static struct coll_exec exec_of(enum coll_kind kind, unsigned member_count, uint64_t count)
{
    return (struct coll_exec){.kind = kind,
                              .dtype = COLL_I32,
                              .op = COLL_SUM,
                              .count = count,
                              .member_count = member_count,
                              .root_idx = member_count / 2,
                              .base = base,
                              .table = red_table_find("auto")};
}

/* All blocks, the last one first: order must not matter. */
static void run(const struct coll_exec *exec, uint64_t block_bytes)
{
    for (unsigned i = coll_exec_block_count(exec, block_bytes); i-- > 0;) {
        cr_assert_eq(coll_exec_block(exec, block_bytes, i), 0);
    }
}

static int32_t sum_of_inputs(unsigned member_count, uint64_t at)
{
    uint32_t sum = 0;
    for (unsigned m = 0; m < member_count; m++) {
        sum += (uint32_t)input(m, at);
    }
    return (int32_t)sum;
}

static unsigned part_of(const struct coll_exec *exec, uint64_t at)
{
    unsigned part = 0;
    while (coll_part_begin(exec->count, exec->member_count, part + 1) <= at) {
        part++;
    }
    return part;
}

/* What the design promises for element `at` of member m. */
static int32_t promised(const struct coll_exec *exec, unsigned m, uint64_t at)
{
    if (at >= exec->count) {
        return input(m, at);
    }
    switch (exec->kind) {
    case COLL_ALLREDUCE:
        return sum_of_inputs(exec->member_count, at);
    case COLL_REDUCE_SCATTER:
        return part_of(exec, at) == m ? sum_of_inputs(exec->member_count, at) : input(m, at);
    case COLL_ALLGATHER:
        return input(part_of(exec, at), at);
    default:
        return input(exec->root_idx, at);
    }
}

static void check_kind(enum coll_kind kind)
{
    for (unsigned m = 0; m < LENGTH(member_counts); m++) {
        for (unsigned c = 0; c < LENGTH(counts); c++) {
            for (unsigned b = 0; b < LENGTH(block_sizes); b++) {
                const struct coll_exec exec = exec_of(kind, member_counts[m], counts[c]);
                fill(exec.member_count);
                run(&exec, block_sizes[b]);
                for (unsigned i = 0; i < exec.member_count; i++) {
                    for (uint64_t at = 0; at <= exec.count; at++) {
                        cr_assert_eq(memory[i][at], promised(&exec, i, at),
                                     "member %u of %u, element %u of %u, blocks of %u bytes", i,
                                     exec.member_count, (unsigned)at, (unsigned)exec.count,
                                     (unsigned)block_sizes[b]);
                    }
                }
            }
        }
    }
}

Test(exec, allreduce_gives_every_member_the_sum)
{
    check_kind(COLL_ALLREDUCE);
}

Test(exec, reduce_scatter_changes_a_members_own_part_only)
{
    check_kind(COLL_REDUCE_SCATTER);
}

Test(exec, allgather_collects_each_members_part)
{
    check_kind(COLL_ALLGATHER);
}

Test(exec, broadcast_copies_the_root_to_the_others)
{
    check_kind(COLL_BROADCAST);
}

Test(exec, average_divides_by_the_number_of_members)
{
    struct coll_exec exec = exec_of(COLL_ALLREDUCE, 5, MAX_COUNT);
    exec.op = COLL_AVG;
    fill(5);
    run(&exec, 100);
    for (uint64_t at = 0; at < MAX_COUNT; at++) {
        cr_assert_eq(memory[4][at], sum_of_inputs(5, at) / 5);
    }
}

/* ---- Blocks ---- */

Test(exec, nothing_to_move_means_no_blocks)
{
    for (unsigned kind = 0; kind < COLL_KIND_COUNT; kind++) {
        const struct coll_exec alone = exec_of(kind, 1, 10), empty = exec_of(kind, 4, 0);
        cr_assert_eq(coll_exec_block_count(&alone, 0), 0);
        cr_assert_eq(coll_exec_block_count(&empty, 0), 0);
    }
    const struct coll_exec barrier = exec_of(COLL_BARRIER, 4, 10);
    cr_assert_eq(coll_exec_block_count(&barrier, 0), 0);
}

Test(exec, a_count_too_large_for_the_block_size_gets_larger_blocks)
{
    const struct coll_exec exec = exec_of(COLL_ALLREDUCE, 2, UINT64_C(1) << 60);
    const unsigned blocks = coll_exec_block_count(&exec, 4);
    cr_assert_gt(blocks, UINT32_MAX / 2);
}

Test(exec, the_cut_into_blocks_does_not_change_a_bit)
{
    static float single[4][MAX_COUNT], want[MAX_COUNT];
    void *const members[] = {single[0], single[1], single[2], single[3]};
    struct coll_exec exec = exec_of(COLL_ALLREDUCE, 4, MAX_COUNT);
    exec.dtype = COLL_F32;
    exec.base = members;
    for (unsigned b = 0; b < LENGTH(block_sizes); b++) {
        for (unsigned m = 0; m < 4; m++) {
            for (unsigned i = 0; i < MAX_COUNT; i++) {
                single[m][i] = (float)input(m, i) * 0x1p-20f;
            }
        }
        oracle_reduce(COLL_F32, COLL_SUM, (const void *const *)members, 4, MAX_COUNT, 1, want);
        run(&exec, block_sizes[b]);
        for (unsigned m = 0; m < 4; m++) {
            cr_assert_eq(oracle_mismatch(COLL_F32, want, single[m], MAX_COUNT), MAX_COUNT);
        }
    }
}

/* ---- On workers, and with memory that goes ---- */

struct job {
    struct red_work work;
    struct coll_exec exec;
    atomic_int err;
};

static void job_block(struct red_work *work, unsigned idx)
{
    struct job *job = UT_CONTAINER(work, struct job, work);
    const int err = coll_exec_block(&job->exec, 64, idx);
    if (err) {
        atomic_store(&job->err, err);
    }
}

static void job_finish(struct red_work *work)
{
}

static int run_on_workers(const struct coll_exec *exec)
{
    struct job job = {.work = {.block = job_block, .finish = job_finish}, .exec = *exec};
    struct red_pool *pool;
    job.work.block_count = coll_exec_block_count(exec, 64);
    cr_assert_eq(red_pool_create(0, -1, &pool), 0);
    red_pool_submit(pool, &job.work);
    red_pool_destroy(pool);
    return atomic_load(&job.err);
}

Test(exec, workers_may_take_the_blocks_of_one_operation_at_once)
{
    const struct coll_exec exec = exec_of(COLL_REDUCE_SCATTER, 8, MAX_COUNT);
    fill(8);
    cr_assert_eq(run_on_workers(&exec), 0);
    for (unsigned m = 0; m < 8; m++) {
        for (uint64_t at = 0; at < MAX_COUNT; at++) {
            cr_assert_eq(memory[m][at], promised(&exec, m, at));
        }
    }
}

Test(exec, memory_taken_away_fails_the_operation_with_efault_and_not_the_next_one)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    cr_assert_eq(ntbm_guard_init(), 0);
    const int fd = memfd_create("buffer", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, (off_t)(2 * page)), 0);
    void *lost = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(lost, MAP_FAILED);
    for (unsigned kind = 0; kind < COLL_BARRIER; kind++) {
        const struct coll_exec exec = exec_of(kind, 3, 2 * page / sizeof(int32_t));
        fill(3);
        base[2] = lost;
        cr_assert_eq(ftruncate(fd, (off_t)page), 0);
        cr_assert_eq(run_on_workers(&exec), -EFAULT);
        cr_assert_eq(ftruncate(fd, (off_t)(2 * page)), 0);
        cr_assert_eq(run_on_workers(&exec), 0);
    }
    munmap(lost, 2 * page);
    close(fd);
}

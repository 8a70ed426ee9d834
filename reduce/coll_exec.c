/*
 * A block is cut by parts where the collective has parts, and each piece becomes one step of the kernels or
 * one copy, whose offset says where it lies: no arrays of pointers are built.
 */
#include "reduce/coll_exec.h"

#include "ntbmem/ntbm_guard.h"

#include <assert.h>
#include <limits.h>

/* Long enough that streams run and the queue is no cost, short enough to share a megabyte. Measured with 256
 * MiB a rank and two workers: 16 KiB take twice the time, 64 KiB 1.3 times, 256 KiB 1.1 times, 1 MiB the
 * same. */
#define BLOCK_BYTES_DEFAULT (512u << 10)

uint64_t coll_part_begin(uint64_t count, unsigned parts, unsigned idx)
{
    return (uint64_t)((unsigned __int128)count * idx / parts);
}

/* Elements of a block; enough that the number of blocks fits its type. */
static uint64_t block_elements(const struct coll_exec *exec, uint64_t block_bytes)
{
    const uint64_t wanted = (block_bytes ? block_bytes : BLOCK_BYTES_DEFAULT) / coll_dtype_bytes(exec->dtype);
    const uint64_t least = exec->count / UINT_MAX + 1;
    return wanted > least ? wanted : least;
}

unsigned coll_exec_block_count(const struct coll_exec *exec, uint64_t block_bytes)
{
    if (exec->kind == COLL_BARRIER || exec->member_count == 1) {
        return 0;
    }
    const uint64_t elements = block_elements(exec, block_bytes);
    return (unsigned)(exec->count / elements + (exec->count % elements != 0));
}

/* ---- One block: elements [begin, end) of the operation ---- */

struct block {
    const struct coll_exec *exec;
    uint64_t begin, end;
};

/* The piece of the block that lies in member idx's part; empty when begin >= end. */
static struct block in_part(const struct block *block, unsigned idx)
{
    const struct coll_exec *exec = block->exec;
    const uint64_t begin = coll_part_begin(exec->count, exec->member_count, idx);
    const uint64_t end = coll_part_begin(exec->count, exec->member_count, idx + 1);
    return (struct block){exec, begin > block->begin ? begin : block->begin,
                          end < block->end ? end : block->end};
}

static void reduce_to(const struct block *block, void *const *dst, unsigned dst_count)
{
    const struct coll_exec *exec = block->exec;
    if (block->begin < block->end) {
        red_reduce(exec->table, exec->dtype, exec->op,
                   &(struct red_step){.dst = dst,
                                      .dst_count = dst_count,
                                      .src = (const void *const *)exec->base,
                                      .src_count = exec->member_count,
                                      .first = block->begin,
                                      .count = block->end - block->begin,
                                      .divisor = exec->op == COLL_AVG ? exec->member_count : 1});
    }
}

static void copy_from(const struct block *block, unsigned member_idx)
{
    const struct coll_exec *exec = block->exec;
    const size_t size = coll_dtype_bytes(exec->dtype);
    if (block->begin < block->end) {
        red_copy(exec->base, exec->member_count, red_stream_count(exec->count * size, exec->member_count),
                 exec->base[member_idx], block->begin * size, (block->end - block->begin) * size);
    }
}

static void reduce_scatter(const struct block *block)
{
    for (unsigned i = 0; i < block->exec->member_count; i++) {
        const struct block piece = in_part(block, i);
        reduce_to(&piece, &block->exec->base[i], 1);
    }
}

static void allgather(const struct block *block)
{
    for (unsigned i = 0; i < block->exec->member_count; i++) {
        const struct block piece = in_part(block, i);
        copy_from(&piece, i);
    }
}

/* Runs inside a guard: it may be left at any access. */
static void run_block(void *arg)
{
    const struct block *block = arg;
    const struct coll_exec *exec = block->exec;
    switch (exec->kind) {
    case COLL_ALLREDUCE:
        reduce_to(block, exec->base, exec->member_count);
        break;
    case COLL_REDUCE_SCATTER:
        reduce_scatter(block);
        break;
    case COLL_ALLGATHER:
        allgather(block);
        break;
    case COLL_BROADCAST:
        copy_from(block, exec->root_idx);
        break;
    default:
        assert(!"a barrier has no blocks");
    }
}

int coll_exec_block(const struct coll_exec *exec, uint64_t block_bytes, unsigned idx)
{
    const uint64_t elements = block_elements(exec, block_bytes);
    const uint64_t begin = idx * elements;
    assert(begin < exec->count);
    const uint64_t end = exec->count - begin < elements ? exec->count : begin + elements;
    struct block block = {exec, begin, end};
    return ntbm_guard_run(run_block, &block);
}

/*
 * One collective over memory inside this node: which ranges move where, cut into blocks that workers take in
 * any order. A block is a range of the operation's elements: one pass reads it from all members and writes
 * the result to all who get it. Pure arithmetic: no jobs, no requests, no threads of its own.
 */
#ifndef COLL_EXEC_H
#define COLL_EXEC_H

#include "reduce/coll_types.h"
#include "reduce/red_kernel.h"

#include <stdint.h>

/* First element of part `idx` of `count` elements cut among `parts` members: floor(idx * count / parts),
 * exact for any count (128-bit inside). idx may equal parts: then it is count. */
uint64_t coll_part_begin(uint64_t count, unsigned parts, unsigned idx);

struct coll_exec {
    enum coll_kind kind;
    enum coll_dtype dtype;
    enum coll_op op;
    uint64_t count;        /* elements */
    unsigned member_count; /* >= 1 */
    unsigned root_idx;     /* broadcast: index of the root in base */
    void *const *base;     /* [member_count]: first element of each member's range, in rank order */
    const struct red_table *table;
};

/* Into how many blocks the operation is cut when blocks hold about block_bytes of each member's range
 * (0: a default chosen by measurement). 0 when there is nothing to move: barrier, count 0, one member
 * alone, whose range is its own result already. */
unsigned coll_exec_block_count(const struct coll_exec *exec, uint64_t block_bytes);

/* Carries out block idx < block_count, with the same block_bytes. 0, or -EFAULT when a member's memory was
 * taken away (ntbm_guard.h): then some of the block may have been written. Any thread; blocks of one
 * operation may run at the same time. */
int coll_exec_block(const struct coll_exec *exec, uint64_t block_bytes, unsigned idx);

#endif

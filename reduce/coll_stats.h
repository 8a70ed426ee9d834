/*
 * What a job has done, counted as it happens: the source of its `stats`, of the node's `metrics`, and of the
 * trace. Fixed memory, no locks: it belongs to the loop thread like the job itself.
 */
#ifndef COLL_STATS_H
#define COLL_STATS_H

#include "reduce/coll_cmd.h"
#include "utils/ut_hist.h"

#define COLL_TRACE_OPS 256u

/* Where the time of an operation between nodes went on this node, nanoseconds. All 0 for one inside a node.
 */
struct coll_phases {
    uint64_t ring_ns;  /* on the ring, from its first step to its last node's DONE */
    uint64_t local_ns; /* of that, adding up this node's ranks */
    uint64_t copy_ns;  /* of that, copying results to them */
    unsigned node_count;
};

/* One operation that is over. Times are CLOCK_MONOTONIC nanoseconds. */
struct coll_done {
    struct coll_cmd cmd;
    uint64_t seq;
    int result;         /* 0 or -errno */
    unsigned last_rank; /* who came last */
    uint64_t t_first;   /* the first rank asked */
    uint64_t t_last;    /* the last rank asked; 0 when it never came to that */
    uint64_t t_start;   /* data began to move; 0 likewise */
    uint64_t t_end;
    struct coll_phases phases;
};

/* How one rank arrives. */
struct coll_late {
    uint64_t arrived_last; /* operations in which this rank came last */
    uint64_t late_sum_ns;  /* its distance from the first rank, summed */
    uint64_t late_max_ns;
};

struct coll_stats {
    uint64_t ops[COLL_KIND_COUNT]; /* succeeded */
    uint64_t bytes;                /* of one rank's ranges, succeeded */
    uint64_t failed, timeouts, mismatches, lost, canceled, refused;
    uint64_t run_ns;                              /* time in which data moved, summed over operations */
    uint64_t wait_ns, local_ns, ring_ns, copy_ns; /* phases, summed: for ranks, adding, on the way, copying */
    uint64_t ring_bus_bytes; /* what each node sent at least: bytes times the busbw factor for nodes */
    uint64_t bus_bytes;      /* bytes times the busbw factor of nccl-tests, for the mean busbw */
    struct ut_hist latency;  /* write to answer, each rank's request that succeeded */
    struct ut_hist wait;     /* first rank to last rank */
    struct ut_hist work;     /* last rank to end: what the fabric itself took */
    uint64_t trace_count;    /* operations ever put in the trace */
    struct coll_done trace[COLL_TRACE_OPS];
};

/* Counts an operation that is over, among member_count ranks. */
void coll_stats_op(struct coll_stats *stats, const struct coll_done *done, unsigned member_count);

/* The factor by which nccl-tests multiplies algbw to get busbw: 2(n-1)/n for allreduce, (n-1)/n for
 * reduce_scatter and allgather, 1 for broadcast. */
double coll_stats_bus_factor(enum coll_kind kind, unsigned member_count);

#endif

/*
 * One rank of a measurement: a process that uses the mounted files as a training script does.
 */
#ifndef CTL_PERF_RANK_H
#define CTL_PERF_RANK_H

#include "utils/ctl_perf_data.h"
#include "utils/ctl_perf_step.h"

#define CTL_PERF_QUEUE_MAX 64u
#define CTL_PERF_RANKS_MAX 1024u

/* What all processes of a measurement share, in shared memory. The first part is written before they start,
 * the second by the parent while all wait for it, the third by the ranks. */
struct ctl_perf_plan {
    struct ctl_perf_work work;
    bool rw;            /* pwrite the input and pread the result instead of mapping the buffer */
    bool bind;          /* rank r runs on the r-th CPU that this program may use, modulo their number */
    unsigned queue;     /* operations in flight; 1: blocking writes */
    uint64_t bytes_max; /* of all operations in flight together */
    struct ctl_perf_failure failure;
    struct ctl_perf_step all, ranks; /* the parent and the ranks; the ranks only */

    uint64_t bytes; /* of one operation */
    unsigned iterations, warm_ups;
    bool over; /* nothing more comes */

    _Atomic uint64_t wrong;    /* elements */
    _Atomic unsigned finished; /* iterations of rank 0 */
};

/* What a rank's process is given. took_ns: the duration of each iteration, of one operation. */
struct ctl_perf_rank {
    struct ctl_perf_plan *plan;
    unsigned number;
    const char *job; /* its directory */
    uint64_t *took_ns;
};

/* Joins, takes part until the plan is over, leaves. Does not return. */
_Noreturn void ctl_perf_rank_live(const struct ctl_perf_rank *rank);

#endif

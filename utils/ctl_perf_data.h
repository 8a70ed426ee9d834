/*
 * What the ranks of a measurement store in their buffers, and what must be there afterwards.
 *
 * Values repeat every CTL_PERF_PERIOD elements, a prime, so that data that land at a wrong place of a power
 * of two do not look right; and they are chosen so that every result is exact in every type: small whole
 * numbers, or halves. So filling is copying one period and checking is comparing with it, bit by bit.
 */
#ifndef CTL_PERF_DATA_H
#define CTL_PERF_DATA_H

#include <stdint.h>

#include "utils/ut_err.h"

#define CTL_PERF_PERIOD 1021u
#define CTL_PERF_ELEMENT_MAX 8u

enum ctl_perf_kind {
    CTL_PERF_ALLREDUCE,
    CTL_PERF_REDUCE_SCATTER,
    CTL_PERF_ALLGATHER,
    CTL_PERF_BROADCAST,
    CTL_PERF_BARRIER
};

struct ctl_perf_type; /* of an element */
struct ctl_perf_op;

/* What is measured. */
struct ctl_perf_work {
    enum ctl_perf_kind kind;
    const char *collective; /* the name of the trigger */
    const struct ctl_perf_type *type;
    const struct ctl_perf_op *op;
    const char *dtype, *op_name;
    unsigned element_bytes, world;
};

/* Looks the three names up. 0, or -EINVAL with what would be right in err: no such name, an operation that
 * the type does not have, or too many ranks for exact results. */
int ctl_perf_work_find(const char *collective, const char *dtype, const char *op, unsigned world,
                       struct ctl_perf_work *out, struct ut_err *err);

/* One period of what a rank stores, and of what its range holds after the collective. */
struct ctl_perf_pattern {
    unsigned char stored[CTL_PERF_PERIOD * CTL_PERF_ELEMENT_MAX];
    unsigned char result[CTL_PERF_PERIOD * CTL_PERF_ELEMENT_MAX];
};

/* Computes both for one rank. */
void ctl_perf_pattern_make(const struct ctl_perf_work *work, unsigned rank, struct ctl_perf_pattern *out);

/* Stores the pattern in count elements. */
void ctl_perf_fill(const struct ctl_perf_work *work, const struct ctl_perf_pattern *pattern, void *buffer,
                   uint64_t count);

/* How many of count elements are not what the collective should have left at this rank; all are looked at. */
uint64_t ctl_perf_count_wrong(const struct ctl_perf_work *work, unsigned rank, const void *buffer,
                              uint64_t count);

/* Bytes that cross each rank's link for a byte of the range in the best algorithm, as the field counts "bus
 * bandwidth". */
double ctl_perf_bus_factor(const struct ctl_perf_work *work);

#endif

/*
 * A latency histogram: log-linear buckets (32 to a power of two, so every percentile is right within 3.2 %),
 * fixed memory, no allocation, no locks. It belongs to one thread.
 */
#ifndef UT_HIST_H
#define UT_HIST_H

#include <stdint.h>

#define UT_HIST_SUB 32u
#define UT_HIST_BUCKETS (UT_HIST_SUB * 40u) /* up to 2^44 ns, five hours; longer ones count in the last */

struct ut_hist {
    uint64_t count, sum_ns, min_ns, max_ns; /* min_ns is 0 while count is 0 */
    uint64_t bucket[UT_HIST_BUCKETS];
};

/* Counts one duration in nanoseconds. */
void ut_hist_add(struct ut_hist *hist, uint64_t ns);

/* The smallest duration (nanoseconds, rounded up to its bucket's end, never above the maximum) that at
 * least permille tenths of a percent of all stay within: 500 is the median, 999 the p99.9. 0 when empty. */
uint64_t ut_hist_permille(const struct ut_hist *hist, unsigned permille);

/* How many durations are at least from_ns and below to_ns. Exact where both are edges of buckets: a power of
 * two from 32 on, and any 32nd of the way from one to the next; others count as the edge below them. */
uint64_t ut_hist_between(const struct ut_hist *hist, uint64_t from_ns, uint64_t to_ns);

#endif

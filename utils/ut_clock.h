/*
 * The one clock of the product: CLOCK_MONOTONIC in nanoseconds. Logic never calls it; time is handed in, so
 * that tests run in virtual time.
 */
#ifndef UT_CLOCK_H
#define UT_CLOCK_H

#include <stdint.h>
#include <time.h>

#define UT_NS_PER_US UINT64_C(1000)
#define UT_NS_PER_MS UINT64_C(1000000)
#define UT_NS_PER_S UINT64_C(1000000000)

static inline uint64_t ut_clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * UT_NS_PER_S + (uint64_t)ts.tv_nsec;
}

#endif

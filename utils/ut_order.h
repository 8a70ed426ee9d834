/*
 * Order statistics of measured times. Header only: programs that are compiled alone use it as well.
 */
#ifndef UT_ORDER_H
#define UT_ORDER_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static inline int ut_order_by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts count values in place, smallest first. */
static inline void ut_order_sort(uint64_t *values, size_t count)
{
    qsort(values, count, sizeof *values, ut_order_by_value);
}

/* The value that so many thousandths of the sorted ones do not exceed; 500 is the median. count >= 1. */
static inline uint64_t ut_order_permille(const uint64_t *sorted, size_t count, unsigned permille)
{
    return sorted[(count - 1) * permille / 1000];
}

#endif

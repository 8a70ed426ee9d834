#include "utils/ut_hist.h"

static unsigned bucket_of(uint64_t ns)
{
    if (ns < UT_HIST_SUB)
        return (unsigned)ns;
    unsigned exponent = 63u - (unsigned)__builtin_clzll(ns); /* >= 5 */
    unsigned idx = (exponent - 4) * UT_HIST_SUB + (unsigned)((ns >> (exponent - 5)) & (UT_HIST_SUB - 1));
    return idx < UT_HIST_BUCKETS ? idx : UT_HIST_BUCKETS - 1;
}

/* The largest duration that falls into the bucket. */
static uint64_t bucket_end(unsigned idx)
{
    if (idx < UT_HIST_SUB)
        return idx;
    unsigned shift = idx / UT_HIST_SUB - 1;
    uint64_t first = (uint64_t)(UT_HIST_SUB + idx % UT_HIST_SUB) << shift;
    return first + ((uint64_t)1 << shift) - 1;
}

void ut_hist_add(struct ut_hist *hist, uint64_t ns)
{
    if (!hist->count || ns < hist->min_ns)
        hist->min_ns = ns;
    if (ns > hist->max_ns)
        hist->max_ns = ns;
    hist->count++;
    hist->sum_ns += ns;
    hist->bucket[bucket_of(ns)]++;
}

uint64_t ut_hist_permille(const struct ut_hist *hist, unsigned permille)
{
    uint64_t rank = (hist->count * permille + 999) / 1000, seen = 0;
    if (!hist->count)
        return 0;
    for (unsigned i = 0; i < UT_HIST_BUCKETS; i++) {
        seen += hist->bucket[i];
        if (seen >= rank && seen) {
            uint64_t end = bucket_end(i);
            return end < hist->max_ns && i + 1 < UT_HIST_BUCKETS ? end : hist->max_ns;
        }
    }
    return hist->max_ns;
}

uint64_t ut_hist_between(const struct ut_hist *hist, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t count = 0;
    for (unsigned i = bucket_of(from_ns); i < bucket_of(to_ns); i++)
        count += hist->bucket[i];
    return count;
}

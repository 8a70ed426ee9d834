/* Histograms of durations: percentiles within a bucket's width, counts between edges exact. */
#include "utils/ut_hist.h"

#include <criterion/criterion.h>

static struct ut_hist hist;

static void add(uint64_t ns, unsigned times)
{
    while (times--)
        ut_hist_add(&hist, ns);
}

Test(hist, an_empty_one_has_no_durations)
{
    cr_assert_eq(ut_hist_permille(&hist, 999), 0);
    cr_assert_eq(ut_hist_between(&hist, 0, UINT64_MAX), 0);
}

Test(hist, percentiles_are_right_within_a_thirtysecond_and_never_above_the_maximum)
{
    for (uint64_t ns = 1; ns <= 100000; ns++)
        ut_hist_add(&hist, ns);
    for (unsigned permille = 1; permille < 1000; permille++) {
        uint64_t exact = 100 * permille, said = ut_hist_permille(&hist, permille);
        cr_assert(said >= exact && said <= exact + exact / 32 + 1, "%u: %lu", permille, (unsigned long)said);
    }
    cr_assert_eq(ut_hist_permille(&hist, 1000), 100000);
}

Test(hist, durations_between_edges_are_counted_exactly)
{
    add(16383, 1);
    add(16384, 2);
    add(24575, 4);
    add(24576, 8);
    add(32767, 16);
    add(32768, 32);
    cr_assert_eq(ut_hist_between(&hist, 0, 16384), 1);
    cr_assert_eq(ut_hist_between(&hist, 16384, 24576), 2 + 4);
    cr_assert_eq(ut_hist_between(&hist, 24576, 32768), 8 + 16);
    cr_assert_eq(ut_hist_between(&hist, 32768, 65536), 32);
    cr_assert_eq(ut_hist_between(&hist, 65536, 32768), 0);
}

Test(hist, a_bucket_counts_beyond_32_bits)
{
    add(1000000, 1);
    for (unsigned i = 0; i < UT_HIST_BUCKETS; i++)
        hist.bucket[i] *= UINT32_MAX;
    hist.count = UINT32_MAX;
    add(1000000, 2);
    cr_assert_eq(ut_hist_between(&hist, 0, UINT64_C(1) << 30), UINT64_C(0x100000001));
    cr_assert_eq(ut_hist_permille(&hist, 500), 1000000);
}

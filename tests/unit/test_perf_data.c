/* The data of fabricctl perf: a wrong result must not look right. That right ones do is seen on real mounts.
 */
#include "utils/ctl_perf_data.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#define COUNT 10000u

static struct ctl_perf_work find(const char *collective, const char *dtype, const char *op, unsigned world)
{
    struct ctl_perf_work work;
    struct ut_err err = {""};
    cr_assert_eq(ctl_perf_work_find(collective, dtype, op, world, &work, &err), 0, "%s", err.text);
    return work;
}

/* What a correct sum of two ranks leaves. */
static void sum_of_two(float *out)
{
    struct ctl_perf_work work = find("allreduce", "f32", "sum", 2);
    static float buffer[2][COUNT];
    for (unsigned rank = 0; rank < 2; rank++) {
        struct ctl_perf_pattern pattern;
        ctl_perf_pattern_make(&work, rank, &pattern);
        ctl_perf_fill(&work, &pattern, buffer[rank], COUNT);
    }
    for (unsigned i = 0; i < COUNT; i++)
        out[i] = buffer[0][i] + buffer[1][i];
}

static uint64_t wrong(const float *sum)
{
    struct ctl_perf_work work = find("allreduce", "f32", "sum", 2);
    return ctl_perf_count_wrong(&work, 0, sum, COUNT);
}

Test(perf_data, every_wrong_element_is_counted)
{
    static float sum[COUNT];
    sum_of_two(sum);
    cr_assert_eq(wrong(sum), 0);
    sum[0] += 1;
    sum[5000] = -sum[5000];
    memset(&sum[COUNT - 1], 0xff, sizeof *sum);
    cr_assert_eq(wrong(sum), 3);
}

Test(perf_data, what_a_rank_stored_is_no_sum)
{
    static float sum[COUNT];
    struct ctl_perf_work work = find("allreduce", "f32", "sum", 2);
    struct ctl_perf_pattern pattern;
    ctl_perf_pattern_make(&work, 0, &pattern);
    ctl_perf_fill(&work, &pattern, sum, COUNT);
    cr_assert_eq(wrong(sum), COUNT);
}

Test(perf_data, data_at_the_wrong_place_are_noticed)
{
    static float sum[COUNT], moved[COUNT];
    sum_of_two(sum);
    for (unsigned distance = 1; distance < COUNT; distance *= 2) {
        memcpy(moved, sum + distance, (COUNT - distance) * sizeof *sum);
        memcpy(moved + COUNT - distance, sum + COUNT - distance, distance * sizeof *sum);
        cr_assert_gt(wrong(moved), 0, "moved by %u", distance);
    }
}

Test(perf_data, a_scattered_result_leaves_the_other_parts_as_they_were)
{
    static float sum[COUNT], mine[COUNT];
    struct ctl_perf_work work = find("reduce_scatter", "f32", "sum", 2);
    struct ctl_perf_pattern pattern;
    sum_of_two(sum);
    ctl_perf_pattern_make(&work, 1, &pattern);
    ctl_perf_fill(&work, &pattern, mine, COUNT);
    memcpy(mine + COUNT / 2, sum + COUNT / 2, COUNT / 2 * sizeof *sum);
    cr_assert_eq(ctl_perf_count_wrong(&work, 1, mine, COUNT), 0);
    cr_assert_eq(ctl_perf_count_wrong(&work, 1, sum, COUNT), COUNT / 2);
}

Test(perf_data, gathered_parts_are_each_ranks_own)
{
    static int32_t buffer[COUNT], other[COUNT];
    struct ctl_perf_work work = find("allgather", "i32", "sum", 2);
    struct ctl_perf_pattern pattern;
    ctl_perf_pattern_make(&work, 0, &pattern);
    ctl_perf_fill(&work, &pattern, buffer, COUNT);
    ctl_perf_pattern_make(&work, 1, &pattern);
    ctl_perf_fill(&work, &pattern, other, COUNT);
    cr_assert_gt(ctl_perf_count_wrong(&work, 0, buffer, COUNT), 0);
    memcpy(buffer + COUNT / 2, other + COUNT / 2, COUNT / 2 * sizeof *other);
    cr_assert_eq(ctl_perf_count_wrong(&work, 0, buffer, COUNT), 0);
}

Test(perf_data, what_cannot_be_exact_is_refused)
{
    struct ctl_perf_work work;
    struct ut_err err;
    cr_assert_eq(ctl_perf_work_find("allreduce", "bf16", "sum", 85, &work, &err), 0);
    cr_assert_eq(ctl_perf_work_find("allreduce", "bf16", "sum", 86, &work, &err), -EINVAL);
    cr_assert_eq(ctl_perf_work_find("allreduce", "f32", "bor", 2, &work, &err), -EINVAL);
    cr_assert_eq(ctl_perf_work_find("gather", "f32", "sum", 2, &work, &err), -EINVAL);
}

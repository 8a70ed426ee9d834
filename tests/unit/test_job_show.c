/* The texts of a job: members, status, stats, trace. */
#include "tests/unit/job_fixture.h"

#include <ctype.h>
#include <stdlib.h>

static void make_two(void)
{
    make_job(2);
}

static struct ut_text text;

static void end_all(void)
{
    ut_text_fini(&text);
    end_job();
}

TestSuite(job_show, .init = make_two, .fini = end_all);

Test(job_show, members_have_one_line_each)
{
    assert_aligned(2);
    promise(0);
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    coll_job_show_members(fix.job, &text);
    cr_assert_str_eq(text.bytes, "rank=0 node=0 pid=1000 state=present last=1\n"
                                 "rank=1 node=- pid=- state=absent last=0\n");
}

Test(job_show, members_show_who_is_lost_or_dropped)
{
    lose(0);
    cr_assert_eq(drop("drop=1"), 0);
    coll_job_show_members(fix.job, &text);
    assert_says(text.bytes, "rank=0 node=0 pid=1000 state=lost last=0\n");
    assert_says(text.bytes, "rank=1 node=0 pid=1001 state=dropped last=0\n");
}

Test(job_show, a_result_line_has_the_form_of_the_interface)
{
    struct coll_cmd cmd = {.kind = COLL_ALLREDUCE, .dtype = COLL_F32, .op = COLL_SUM, .count = 1024};
    struct coll_why ok = {0}, late = {.result = -ETIMEDOUT, .missing = "1,3"};
    char line[256];
    size_t len = coll_show_result(&cmd, 12, &ok, 83999, line, sizeof(line));
    cr_assert_str_eq(line, "seq=12 op=sum dtype=f32 count=1024 result=ok time_us=83\n");
    cr_assert_eq(len, strlen(line));
    snprintf(cmd.tag, sizeof(cmd.tag), "layer1");
    coll_show_result(&cmd, 13, &late, 30 * S, line, sizeof(line));
    cr_assert_str_eq(line, "seq=13 tag=layer1 op=sum dtype=f32 count=1024 result=ETIMEDOUT missing=1,3 "
                           "time_us=30000000\n");
}

/* A command, number and failure that take the most room. */
static const struct coll_cmd longest_cmd = {.kind = COLL_REDUCE_SCATTER,
                                            .dtype = COLL_BF16,
                                            .op = COLL_PROD,
                                            .offset = UINT64_MAX,
                                            .count = UINT64_MAX,
                                            .tag = "abcdefghijklmnopqrstuvwxyz012345"};

Test(job_show, the_longest_result_line_fits_256_bytes)
{
    struct coll_why why = {.result = -ECONNABORTED};
    char line[256];
    memset(why.missing, '1', sizeof(why.missing) - 1);
    size_t len = coll_show_result(&longest_cmd, UINT64_MAX, &why, UINT64_MAX, line, sizeof(line));
    cr_assert(len == strlen(line) && line[len - 1] == '\n');
}

Test(job_show, status_keeps_the_last_sixteen_lines)
{
    for (unsigned i = 0; i < 20; i++)
        assert_aligned(2);
    coll_rank_show_status(fix.rank[0], &text);
    unsigned lines = 0;
    for (const char *c = text.bytes; *c; c++)
        lines += *c == '\n';
    cr_assert_eq(lines, 16u);
    cr_assert(strstr(text.bytes, "seq=5 ") == text.bytes);
    assert_says(text.bytes,
                "seq=20 op=barrier dtype=f32 count=0 result=ok time_us=0 collective=barrier offset=0\n");
}

Test(job_show, status_tells_refusals_and_broken_buffers_in_a_sentence)
{
    struct coll_why why = {.result = -EINVAL, .err = {"\"x\" is not key=value"}};
    struct reply a, b;
    coll_rank_note(fix.rank[0], NULL, &why);
    fix.hold = true;
    allreduce(0, "offset=64 count=8", a);
    allreduce(1, "offset=64 count=8", b);
    fix.running[0]->moved = true;
    finish(-EFAULT);
    coll_rank_show_status(fix.rank[0], &text);
    cr_assert_str_eq(text.bytes,
                     "refused result=EINVAL why=\"'x' is not key=value\"\n"
                     "seq=1 op=sum dtype=f32 count=8 result=EFAULT time_us=0 collective=allreduce "
                     "offset=64 buffer=undefined why=\"memory was taken away\"\n");
}

static double figure(const char *name)
{
    char line[64];
    double value;
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(text.bytes, line);
    cr_assert(at, "no %s", name);
    cr_assert_eq(sscanf(at + strlen(line), "%lf", &value), 1);
    return value;
}

Test(job_show, stats_count_what_was_done_and_what_failed)
{
    struct reply a, b;
    fix.hold = true;
    allreduce(0, "count=250", a);
    pass(10 * MS);
    allreduce(1, "count=250", b);
    pass(1 * UT_NS_PER_US);
    finish(0);
    fix.hold = false;
    barrier(0, a);
    allreduce(1, "", b);
    barrier(0, a);
    pass(30 * S);
    barrier(1, b);
    coll_job_show_stats(fix.job, &text);
    cr_assert(figure("allreduce_ops") == 1 && figure("barrier_ops") == 0 && figure("bytes") == 1000);
    cr_assert(figure("failed_ops") == 2 && figure("mismatch_ops") == 1 && figure("timeout_ops") == 1);
    cr_assert(figure("algbw_gbps") == 1.0 && figure("busbw_gbps") == 1.0, "two ranks: the factor is 1");
    cr_assert(figure("rank1_arrived_last") == 1 && figure("rank1_late_max_us") == 10000);
    cr_assert(figure("rank0_arrived_last") == 0 && figure("rank0_late_sum_us") == 0);
    assert_says(text.bytes, "last_failure seq=3 result=ETIMEDOUT missing=1 why=\"rank 1 (node 0");
}

Test(job_show, stats_name_who_is_waited_for)
{
    struct reply a;
    barrier(1, a);
    coll_job_show_stats(fix.job, &text);
    assert_says(text.bytes, "ranks_waiting 1\n");
    assert_says(text.bytes, "ranks_missing 0\n");
}

Test(job_show, quotes_in_the_last_failure_do_not_end_its_sentence)
{
    coll_job_fail_all(fix.job, -EIO, "nothing waits, so nothing fails", fix.now);
    struct reply a;
    barrier(0, a);
    coll_job_fail_all(fix.job, -EIO, "the \"link\" is down", fix.now);
    coll_job_show_stats(fix.job, &text);
    assert_says(text.bytes, "why=\"the 'link' is down\"\n");
}

/* ---- JSON ---- */

static const char *json_value(const char *at);

static const char *blanks(const char *at)
{
    while (isspace((unsigned char)*at))
        at++;
    return at;
}

static const char *json_string(const char *at)
{
    cr_assert_eq(*at, '"');
    for (at++; *at != '"'; at++)
        cr_assert((unsigned char)*at >= ' ' && *at != '\\');
    return at + 1;
}

/* What stands between two brackets: values, or names and values. */
static const char *json_group(const char *at, char end)
{
    bool named = end == '}';
    at = blanks(at + 1);
    if (*at == end)
        return at + 1;
    for (;; at++) {
        at = blanks(at);
        if (named) {
            at = blanks(json_string(at));
            cr_assert_eq(*at++, ':');
        }
        at = blanks(json_value(at));
        if (*at == end)
            return at + 1;
        cr_assert_eq(*at, ',', "at %.60s", at);
    }
}

static const char *json_value(const char *at)
{
    at = blanks(at);
    if (*at == '{')
        return json_group(at, '}');
    if (*at == '[')
        return json_group(at, ']');
    if (*at == '"')
        return json_string(at);
    char *end;
    strtod(at, &end);
    cr_assert_neq(end, at, "no value at %.60s", at);
    return end;
}

static void assert_trace_is_whole(unsigned events)
{
    unsigned found = 0;
    ut_text_fini(&text);
    coll_job_show_trace(fix.job, &text);
    cr_assert_eq(text.len, coll_job_trace_bytes(fix.job));
    cr_assert_eq(*blanks(json_value(text.bytes)), '\0');
    for (const char *at = text.bytes; (at = strstr(at, "\"ph\":\"X\"")); at++)
        found++;
    cr_assert_eq(found, events);
}

Test(job_show, the_trace_is_json_of_the_stated_length_however_many_operations)
{
    assert_trace_is_whole(0);
    for (unsigned i = 1; i <= COLL_TRACE_OPS + 10; i++) {
        assert_aligned(2);
        if (i < 4 || i > COLL_TRACE_OPS - 2)
            assert_trace_is_whole(2 * (i < COLL_TRACE_OPS ? i : COLL_TRACE_OPS));
    }
}

Test(job_show, the_trace_has_failures_with_their_result)
{
    struct reply a;
    barrier(0, a);
    pass(30 * S);
    assert_trace_is_whole(2);
    assert_says(text.bytes, "\"result\":\"ETIMEDOUT\"");
}

Test(job_show, the_longest_event_fits_its_line)
{
    struct coll_done *done = &fix.job->stats.trace[fix.job->stats.trace_count++];
    *done = (struct coll_done){.cmd = longest_cmd,
                               .seq = UINT64_MAX,
                               .result = -EPROTONOSUPPORT,
                               .last_rank = UINT32_MAX,
                               .t_first = UINT64_MAX / 4,
                               .t_last = UINT64_MAX / 2,
                               .t_end = UINT64_MAX};
    assert_trace_is_whole(2);
    assert_says(text.bytes, "\"tag\":\"abcdefghijklmnopqrstuvwxyz012345\"");
}

/* The job machine: order, waiting, disagreement, timeouts, losses, signals, going on without. */
#include "reduce/coll_remote.h"
#include "tests/unit/job_fixture.h"

/* ---- order ---- */

static void make_two(void)
{
    make_job(2);
}

static void make_three(void)
{
    make_job(3);
}

TestSuite(order, .init = make_two, .fini = end_job);

Test(order, an_operation_runs_when_the_last_member_asks)
{
    struct reply a, b;
    allreduce(0, "count=8", a);
    cr_assert(!a.answered && fix.runs == 0);
    allreduce(1, "count=8", b);
    cr_assert(a.answered && b.answered && fix.runs == 1);
    cr_assert(a.result == 0 && b.result == 0 && a.seq == 1 && b.seq == 1);
}

Test(order, all_five_triggers_of_a_rank_count_one_sequence)
{
    static const enum coll_kind kinds[] = {COLL_BARRIER, COLL_ALLREDUCE, COLL_BROADCAST, COLL_ALLGATHER,
                                           COLL_REDUCE_SCATTER};
    for (unsigned i = 0; i < 5; i++) {
        struct reply a, b;
        write_to(0, kinds[i], "", a);
        write_to(1, kinds[i], "", b);
        cr_assert(a.result == 0 && b.result == 0 && a.seq == i + 1 && b.seq == i + 1);
    }
}

Test(order, requests_made_ahead_meet_in_the_order_they_were_made)
{
    struct reply ahead[4], behind;
    for (unsigned i = 0; i < 4; i++)
        allreduce(0, i % 2 ? "count=8" : "count=4", ahead[i]);
    for (unsigned i = 0; i < 4; i++) {
        allreduce(1, i % 2 ? "count=8" : "count=4", behind);
        cr_assert(behind.result == 0 && ahead[i].result == 0 && behind.seq == ahead[i].seq);
        cr_assert(i == 3 || !ahead[i + 1].answered);
    }
}

Test(order, each_tag_has_a_sequence_of_its_own)
{
    struct reply a1, a2, b1, b2;
    allreduce(0, "count=4 tag=x", a1);
    allreduce(0, "count=8 tag=y", a2);
    allreduce(1, "count=8 tag=y", b2);
    cr_assert(a2.result == 0 && b2.result == 0 && !a1.answered);
    allreduce(1, "count=4 tag=x", b1);
    cr_assert(a1.result == 0 && b1.result == 0 && a1.seq == 1 && a2.seq == 1);
}

Test(order, one_rank_alone_is_a_job)
{
    struct reply a;
    end_job();
    make_job(1);
    allreduce(0, "", a);
    cr_assert(a.result == 0 && a.seq == 1);
}

Test(order, joining_needs_a_world_and_a_free_rank_below_it)
{
    struct coll_job *job;
    struct coll_rank *rank;
    cr_assert_eq(coll_job_create("other", &fix_host, 1 << 20, fix.now, &job), 0);
    cr_assert_eq(coll_rank_join(job, 0, 0, 1, fix.now, &rank), -EAGAIN);
    cr_assert_eq(coll_job_configure(job, "world=2", 7, fix.now, NULL), 0);
    cr_assert_eq(coll_rank_join(job, 2, 0, 1, fix.now, &rank), -EINVAL);
    cr_assert_eq(coll_rank_join(job, 1, 0, 1, fix.now, &rank), 0);
    cr_assert_eq(coll_rank_join(job, 1, 0, 1, fix.now, &rank), -EEXIST);
    coll_job_destroy(job, -ENODEV, fix.now);
}

Test(order, a_rank_that_joins_late_starts_at_the_operation_that_gathers)
{
    struct reply a, b;
    assert_aligned(2);
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    barrier(0, a);
    cr_assert_eq(join(1), 0);
    barrier(1, b);
    cr_assert(a.result == 0 && b.result == 0 && a.seq == 2 && b.seq == 2);
}

Test(order, a_rank_that_joins_does_not_come_to_failures_before_it)
{
    struct reply a;
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    barrier(0, a);
    pass(30 * S);
    cr_assert_eq(a.result, -ETIMEDOUT);
    cr_assert_eq(join(1), 0);
    assert_aligned(2);
}

Test(order, the_configuration_is_frozen_while_ranks_are_in_the_job)
{
    cr_assert_eq(configure("world=2\ndtype=f32\ntimeout=30"), 0);
    cr_assert_eq(configure("world=3"), -EBUSY);
    cr_assert_eq(coll_rank_leave(fix.rank[0], fix.now), 0);
    cr_assert_eq(configure("dtype=f64"), -EBUSY);
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    cr_assert_eq(configure("world=3\ndtype=f64"), 0);
    for (unsigned r = 0; r < 3; r++)
        cr_assert_eq(join(r), 0);
    assert_aligned(3);
}

Test(order, an_operation_that_still_runs_keeps_the_configuration_frozen)
{
    struct reply a, b;
    fix.hold = true;
    barrier(0, a);
    barrier(1, b);
    cr_assert_eq(drop("drop=1"), 0);
    cr_assert_eq(configure("world=3"), -EBUSY);
    finish(0);
    cr_assert(a.result == 0 && b.result == 0);
}

Test(order, leaving_is_refused_while_a_request_waits_or_runs)
{
    struct reply a, b;
    fix.hold = true;
    barrier(0, a);
    cr_assert_eq(coll_rank_leave(fix.rank[0], fix.now), -EBUSY);
    cr_assert(coll_job_is_busy(fix.job));
    barrier(1, b);
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), -EBUSY);
    finish(0);
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    cr_assert(!coll_job_is_busy(fix.job));
}

Test(order, the_end_of_a_job_answers_all_who_wait)
{
    struct reply a, b;
    barrier(0, a);
    allreduce(1, "tag=x", b);
    coll_job_fail_all(fix.job, -ESHUTDOWN, "the daemon stops", fix.now);
    cr_assert(a.result == -ESHUTDOWN && b.result == -ESHUTDOWN);
    cr_assert_str_eq(a.why.err.text, "the daemon stops");
}

Test(order, tags_at_which_all_stand_level_make_room_for_new_ones)
{
    char line[32];
    for (unsigned i = 0; i < 2 * COLL_TAGS_MAX; i++) {
        struct reply a, b;
        snprintf(line, sizeof(line), "tag=t%u", i);
        allreduce(0, line, a);
        allreduce(1, line, b);
        cr_assert(a.result == 0 && b.result == 0);
    }
}

Test(order, more_tags_in_use_at_once_than_the_limit_are_refused)
{
    static struct reply waiting[COLL_TAGS_MAX];
    struct reply more;
    char line[32];
    for (unsigned i = 0; i < COLL_TAGS_MAX; i++) {
        snprintf(line, sizeof(line), "tag=t%u", i);
        allreduce(0, line, waiting[i]);
        cr_assert(!waiting[i].refused);
    }
    allreduce(0, "tag=more", more);
    cr_assert(more.refused && more.result == -ENOSPC);
    allreduce(1, "tag=t0", more);
    cr_assert(more.result == 0 && waiting[0].result == 0);
    allreduce(0, "tag=more", more);
    cr_assert(!more.refused);
}

/* ---- overlap ---- */

TestSuite(overlap, .init = make_two, .fini = end_job);

Test(overlap, operations_on_disjoint_ranges_run_together)
{
    struct reply a[2], b[2];
    fix.hold = true;
    allreduce(0, "offset=0 count=8", a[0]);
    allreduce(1, "offset=0 count=8", b[0]);
    allreduce(0, "offset=32 count=8", a[1]);
    allreduce(1, "offset=32 count=8", b[1]);
    cr_assert_eq(fix.running_count, 2u);
}

Test(overlap, operations_on_the_same_bytes_run_in_turn)
{
    struct reply a[3], b[3];
    fix.hold = true;
    for (unsigned i = 0; i < 3; i++) {
        allreduce(0, "offset=0 count=8", a[i]);
        allreduce(1, "offset=0 count=8", b[i]);
    }
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(fix.running_count, 1u);
        cr_assert_eq(fix.running[0]->seq, i + 1);
        finish(0);
    }
    cr_assert_eq(a[2].result, 0);
}

Test(overlap, one_rank_whose_ranges_touch_is_enough_to_wait)
{
    struct reply a[2], b[2];
    fix.hold = true;
    allreduce(0, "offset=0 count=8", a[0]);
    allreduce(1, "offset=0 count=8", b[0]);
    allreduce(0, "offset=1024 count=8", a[1]);
    allreduce(1, "offset=28 count=8", b[1]);
    cr_assert_eq(fix.running_count, 1u);
    finish(0);
    cr_assert_eq(fix.running_count, 1u);
}

Test(overlap, the_same_bytes_on_different_ranks_do_not_touch)
{
    struct reply a[2], b[2];
    fix.hold = true;
    allreduce(0, "offset=0 count=8", a[0]);
    allreduce(1, "offset=64 count=8", b[0]);
    allreduce(0, "offset=64 count=8", a[1]);
    allreduce(1, "offset=0 count=8", b[1]);
    cr_assert_eq(fix.running_count, 2u);
}

Test(overlap, an_operation_does_not_overtake_one_that_waits_for_its_bytes)
{
    struct reply a[4], b[4];
    static const char *const lines[] = {"offset=0 count=8", "offset=0 count=16", "offset=32 count=8",
                                        "offset=1024 count=8"};
    fix.hold = true;
    for (unsigned i = 0; i < 4; i++) {
        allreduce(0, lines[i], a[i]);
        allreduce(1, lines[i], b[i]);
    }
    cr_assert_eq(fix.running_count, 2u);
    cr_assert(fix.running[0]->seq == 1 && fix.running[1]->seq == 4, "the third waits for the second");
    finish(0);
    finish(0);
    cr_assert(fix.running_count == 1 && fix.running[0]->seq == 2);
    finish(0);
    cr_assert(fix.running_count == 1 && fix.running[0]->seq == 3);
}

Test(overlap, a_write_that_waits_for_its_bytes_is_answered_before_the_kernel_loses_patience)
{
    struct reply a[3], b[3];
    fix.hold = true;
    fix.job->wait_limit_ns = 5 * S;
    for (unsigned i = 0; i < 3; i++) {
        allreduce(0, "offset=0 count=8", a[i]);
        allreduce(1, "offset=0 count=8", b[i]);
    }
    b[1].ask->t_parked = fix.now + S; /* the others are queued */
    pass(6 * S - 1);
    cr_assert(!a[1].answered && !b[1].answered);
    pass(1);
    cr_assert(a[1].result == -ETIMEDOUT && b[1].result == -ETIMEDOUT);
    assert_says(b[1].why.err.text, "the kernel's FUSE request timeout");
    pass(1000 * S);
    finish(0);
    finish(0);
    cr_assert(a[0].result == 0 && a[2].result == 0);
}

Test(overlap, an_operation_without_bytes_waits_for_none)
{
    struct reply a[3], b[3];
    fix.hold = true;
    allreduce(0, "", a[0]);
    allreduce(1, "", b[0]);
    allreduce(0, "offset=64 count=0", a[1]);
    allreduce(1, "offset=64 count=0", b[1]);
    barrier(0, a[2]);
    barrier(1, b[2]);
    cr_assert_eq(fix.running_count, 3u);
}

Test(overlap, a_request_whose_operation_has_started_cannot_be_withdrawn)
{
    struct reply a[2], b[2];
    fix.hold = true;
    for (unsigned i = 0; i < 2; i++) {
        allreduce(0, "", a[i]);
        allreduce(1, "", b[i]);
    }
    cr_assert(!interrupt(&a[0], false) && !interrupt(&a[1], true), "it runs, or is about to");
    finish(0);
    finish(-EFAULT);
    cr_assert(a[0].result == 0 && a[1].result == -EFAULT && b[1].result == -EFAULT);
    cr_assert_str_eq(a[1].why.err.text, "memory was taken away");
    fix.hold = false;
    assert_aligned(2);
}

Test(overlap, a_failure_says_whether_the_buffer_was_touched)
{
    struct reply a[2], b[2];
    fix.hold = true;
    for (unsigned i = 0; i < 2; i++) {
        allreduce(0, "", a[i]);
        allreduce(1, "", b[i]);
        fix.running[0]->moved = i;
        finish(-EFAULT);
    }
    cr_assert(!a[0].why.undefined && a[1].why.undefined && b[1].why.undefined);
}

Test(overlap, bytes_in_use_are_those_of_requests_that_wait_or_run)
{
    struct reply a, b;
    cr_assert(!coll_rank_is_using(fix.rank[0], 0));
    allreduce(0, "offset=64 count=16", a);
    cr_assert(coll_rank_is_using(fix.rank[0], 127) && !coll_rank_is_using(fix.rank[0], 128));
    cr_assert(interrupt(&a, false));
    cr_assert(!coll_rank_is_using(fix.rank[0], 0));
    fix.hold = true;
    allreduce(0, "offset=64 count=16", a);
    allreduce(1, "count=16", b);
    cr_assert(coll_rank_is_using(fix.rank[0], 0) && coll_rank_is_using(fix.rank[1], 63));
    finish(0);
    cr_assert(!coll_rank_is_using(fix.rank[0], 0));
}

/* ---- timeouts ---- */

TestSuite(timeout, .init = make_three, .fini = end_job);

Test(timeout, comes_when_the_time_is_over_and_not_before)
{
    struct reply a, b;
    barrier(0, a);
    pass(10 * S);
    barrier(1, b);
    pass(20 * S - 1);
    cr_assert(!a.answered && !b.answered);
    pass(1);
    cr_assert(a.result == -ETIMEDOUT && b.result == -ETIMEDOUT, "the clock started at the first rank");
    cr_assert_eq(a.time_ns, 30 * S);
    cr_assert_str_eq(a.why.missing, "2");
}

Test(timeout, a_late_rank_gets_the_same_error_at_once_and_the_next_operation_works)
{
    struct reply a[3], late[3];
    for (unsigned i = 0; i < 3; i++) {
        barrier(0, a[i]);
        barrier(1, late[i]);
    }
    pass(30 * S);
    for (unsigned i = 0; i < 3; i++) {
        barrier(2, late[i]);
        cr_assert(late[i].result == -ETIMEDOUT && late[i].seq == i + 1);
        cr_assert_str_eq(late[i].why.err.text, a[i].why.err.text);
    }
    assert_aligned(3);
}

Test(timeout, names_the_missing_with_node_process_and_last_operation)
{
    struct reply a;
    assert_aligned(3);
    cr_assert_eq(coll_rank_leave(fix.rank[2], fix.now), 0);
    allreduce(0, "count=4", a);
    pass(30 * S);
    cr_assert_str_eq(a.why.missing, "1,2");
    cr_assert_str_eq(a.why.err.text,
                     "rank 1 (node 0, pid 1001, last operation 1), rank 2 (has left) did not come within "
                     "30.000 s");
    assert_says(fix.event,
                "operation 2 (allreduce f32 sum count=4) failed with ETIMEDOUT missing=1,2: rank 1");
}

Test(timeout, a_list_too_long_for_its_line_says_that_there_are_more)
{
    struct reply a;
    end_job();
    make_job(COLL_WORLD_MAX);
    barrier(1023, a);
    pass(30 * S);
    assert_says(a.why.missing, "0,1,2,3,");
    cr_assert_str_eq(a.why.missing + strlen(a.why.missing) - 4, ",...");
    assert_says(a.why.err.text, "rank 0 (node 0, pid 1000, last operation 0), rank 1 (");
    assert_says(a.why.err.text, " more did not come within 30.000 s");
}

Test(timeout, is_cut_by_what_the_kernel_lets_a_request_wait)
{
    struct reply a;
    fix.job->wait_limit_ns = 5 * S;
    barrier(0, a);
    pass(5 * S);
    cr_assert_eq(a.result, -ETIMEDOUT);
    assert_says(a.why.err.text, "within 5.000 s (the kernel's FUSE request timeout)");
}

Test(timeout, is_not_lengthened_by_a_larger_limit_of_the_kernel)
{
    struct reply a;
    fix.job->wait_limit_ns = 60 * S;
    barrier(0, a);
    pass(30 * S);
    cr_assert_eq(a.result, -ETIMEDOUT);
    cr_assert(!strstr(a.why.err.text, "kernel"));
}

Test(timeout, an_operation_that_runs_has_none)
{
    struct reply a, b, c;
    fix.hold = true;
    barrier(0, a);
    barrier(1, b);
    barrier(2, c);
    pass(1000 * S);
    cr_assert(!a.answered);
    finish(0);
    cr_assert_eq(a.result, 0);
}

Test(timeout, failures_are_kept_for_ranks_that_are_far_behind)
{
    static struct reply a[1000], b[1000], late;
    for (unsigned i = 0; i < 1000; i++) {
        barrier(0, a[i]);
        allreduce(1, "", b[i]);
        cr_assert_eq(b[i].result, -EPROTO);
    }
    for (unsigned i = 0; i < 1000; i++) {
        barrier(2, late);
        cr_assert(late.result == -EPROTO && late.seq == i + 1);
    }
    assert_aligned(3);
}

Test(timeout, failures_without_end_cost_bounded_memory_and_numbers_stay_aligned)
{
    struct reply a, b, late;
    for (unsigned i = 0; i < 3000; i++) {
        barrier(0, a);
        allreduce(1, "", b);
    }
    cr_assert(fix.job->failed_count <= 1024);
    for (unsigned i = 0; i < 3000; i++) {
        barrier(2, late);
        cr_assert_eq(late.result, i < 3000 - 1024 ? -ESTALE : -EPROTO);
    }
    assert_aligned(3);
}

Test(timeout, failures_behind_one_that_gathers_are_bounded_too)
{
    struct reply first[3], a, b;
    barrier(0, first[0]);
    barrier(1, first[1]);
    for (unsigned i = 0; i < 3000; i++) {
        barrier(0, a);
        allreduce(1, "", b);
    }
    cr_assert(fix.job->failed_count <= 1024);
    barrier(2, first[2]);
    cr_assert(first[0].result == 0 && first[1].result == 0 && first[2].result == 0);
    for (unsigned i = 0; i < 3000; i++)
        barrier(2, a);
    cr_assert_eq(a.result, -EPROTO);
    assert_aligned(3);
}

/* ---- another node ---- */

TestSuite(elsewhere, .init = make_two, .fini = end_job);

/* Rank 1 is on node 1. */
static void move_rank_away(void)
{
    struct coll_remote there = {.number = 1, .state = COLL_JOINED, .incarnation = 7, .pid = PID(1)};
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    coll_remote_ranks(fix.job, 1, &there, 1, fix.now);
    cr_assert_eq(fix.job->ranks[1].state, COLL_JOINED);
}

static unsigned count_operations(void)
{
    unsigned count = 0;
    UT_LIST_EACH(&fix.job->tags, struct coll_tag, link, tag)
    {
        UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
        {
            count++;
        }
    }
    return count;
}

Test(elsewhere, numbers_that_run_ahead_for_ever_cost_bounded_memory)
{
    struct coll_remote_ask asked = {.number = 1, .pid = PID(1), .cmd = {.kind = COLL_BARRIER}};
    struct coll_why why = {.result = -EIO}, over;
    move_rank_away();
    for (unsigned i = 0; i < 32; i++) {
        asked.seq += 4000;
        coll_remote_ask(fix.job, 1, &asked, fix.now, &over);
        coll_remote_fail(fix.job, 1, &asked.cmd, asked.seq + 2000, &why, fix.now);
    }
    for (unsigned i = 0; i < 3 * COLL_DEPTH_MAX; i++) {
        snprintf(asked.cmd.tag, sizeof(asked.cmd.tag), "t%u", i % 200);
        asked.seq = 1 + i / 200;
        coll_remote_ask(fix.job, 1, &asked, fix.now, &over);
    }
    cr_assert_lt(count_operations(), 5 * COLL_DEPTH_MAX);
}

/* ---- disagreement ---- */

TestSuite(disagreement, .init = make_three, .fini = end_job);

static const struct {
    enum coll_kind kind_a, kind_b;
    const char *a, *b;
    bool agree;
} pairs[] = {
    {COLL_ALLREDUCE, COLL_ALLREDUCE, "count=8", "count=9", false},
    {COLL_ALLREDUCE, COLL_ALLREDUCE, "count=8", "count=0", false},
    {COLL_ALLREDUCE, COLL_ALLREDUCE, "count=8 dtype=f32", "count=8 dtype=i32", false},
    {COLL_ALLREDUCE, COLL_ALLREDUCE, "count=8 op=sum", "count=8 op=avg", false},
    {COLL_ALLREDUCE, COLL_REDUCE_SCATTER, "count=8", "count=8", false},
    {COLL_ALLREDUCE, COLL_BARRIER, "count=0", "", false},
    {COLL_REDUCE_SCATTER, COLL_REDUCE_SCATTER, "count=8 op=min", "count=8 op=max", false},
    {COLL_BROADCAST, COLL_BROADCAST, "count=8 root=0", "count=8 root=1", false},
    {COLL_BROADCAST, COLL_BROADCAST, "count=8 op=min", "count=8 op=max", true},
    {COLL_ALLGATHER, COLL_ALLGATHER, "count=8 op=min", "count=8 op=max", true},
    {COLL_ALLGATHER, COLL_ALLGATHER, "count=8 dtype=u32", "count=8 dtype=f32", false},
    {COLL_BARRIER, COLL_BARRIER, "dtype=u32", "op=max", true},
    {COLL_ALLREDUCE, COLL_ALLREDUCE, "count=8 offset=64", "count=8 offset=0", true},
};

Test(disagreement, is_eproto_for_all_and_what_does_not_matter_is_none)
{
    for (unsigned i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        struct reply a, b, c;
        write_to(0, pairs[i].kind_a, pairs[i].a, a);
        write_to(1, pairs[i].kind_b, pairs[i].b, b);
        write_to(2, pairs[i].kind_a, pairs[i].a, c);
        int expected = pairs[i].agree ? 0 : -EPROTO;
        cr_assert(a.result == expected && b.result == expected && c.result == expected, "pair %u", i);
        assert_aligned(3);
    }
}

Test(disagreement, fails_as_soon_as_it_shows_and_says_who_asked_what)
{
    struct reply a, b, c;
    struct ut_text status = {0};
    allreduce(0, "count=8", a);
    allreduce(1, "count=9 op=max", b);
    cr_assert(a.answered && b.answered, "before the third has come");
    cr_assert_str_eq(b.why.err.text,
                     "rank 0 asked allreduce f32 sum count=8, rank 1 asked allreduce f32 max count=9");
    write_to(2, COLL_BARRIER, "", c);
    cr_assert_str_eq(c.why.err.text, a.why.err.text);
    coll_rank_show_status(fix.rank[2], &status);
    assert_says(status.bytes, "result=EPROTO");
    assert_says(status.bytes, "rank 1 asked allreduce f32 max count=9");
    ut_text_fini(&status);
}

Test(disagreement, with_an_interrupted_request_is_judged_when_it_comes_again)
{
    struct reply a, b, c;
    allreduce(0, "count=8", a);
    cr_assert(interrupt(&a, false));
    allreduce(1, "count=9", b);
    cr_assert(!b.answered);
    allreduce(0, "count=9", a);
    allreduce(2, "count=9", c);
    cr_assert(a.result == 0 && b.result == 0 && c.result == 0, "it asked for something else instead");
}

/* ---- lost ranks ---- */

TestSuite(lost, .init = make_three, .fini = end_job);

Test(lost, a_lost_rank_fails_what_waits_for_it_at_once)
{
    struct reply a, b;
    promise(2);
    allreduce(0, "", a);
    allreduce(1, "tag=x", b);
    coll_rank_lost(fix.rank[2], PID(2), 1, fix.now);
    cr_assert(a.result == -ECONNRESET && b.result == -ECONNRESET);
    cr_assert_str_eq(a.why.missing, "2");
    assert_says(a.why.err.text, "rank 2 on node 0 is lost: its process 1002 ended (last operation 0)");
}

Test(lost, later_requests_are_refused_without_a_number_until_it_opens_again)
{
    struct reply a;
    lose(2);
    for (unsigned i = 0; i < 5; i++) {
        barrier(i % 3, a);
        cr_assert(a.refused && a.result == -ECONNRESET);
        cr_assert_str_eq(a.why.missing, "2");
    }
    promise(2);
    assert_aligned(3);
}

Test(lost, who_has_not_come_to_the_failure_gets_it_even_after_the_rank_is_back)
{
    struct reply a[2], b;
    promise(2);
    barrier(0, a[0]);
    barrier(0, a[1]);
    coll_rank_lost(fix.rank[2], PID(2), 1, fix.now);
    barrier(1, b);
    cr_assert(!b.refused && b.result == -ECONNRESET && b.seq == 1);
    promise(2);
    barrier(1, b);
    cr_assert(b.result == -ECONNRESET && b.seq == 2);
    assert_aligned(3);
}

Test(lost, closing_while_alive_only_ends_the_promise)
{
    struct reply a;
    promise(2);
    barrier(0, a);
    coll_rank_release(fix.rank[2], fix.now);
    cr_assert(!a.answered && fix.rank[2]->state == COLL_JOINED);
    pass(30 * S);
    cr_assert_eq(a.result, -ETIMEDOUT);
}

Test(lost, a_rank_is_lost_with_the_first_of_its_processes)
{
    promise(2);
    promise(2);
    coll_rank_lost(fix.rank[2], 7, 1, fix.now);
    cr_assert(fix.rank[2]->state == COLL_LOST && fix.job->participants == 1);
    coll_rank_release(fix.rank[2], fix.now);
    cr_assert(fix.rank[2]->state == COLL_LOST && fix.job->participants == 0);
    unsigned events = fix.events;
    promise(2);
    cr_assert(fix.rank[2]->state == COLL_PRESENT && fix.events == events + 1);
}

Test(lost, promises_that_ended_with_the_rank_take_none_from_its_successor)
{
    promise(2);
    cr_assert_eq(coll_rank_leave(fix.rank[2], fix.now), 0);
    cr_assert_eq(join(2), 0);
    coll_rank_lost(fix.rank[2], PID(2), 1, fix.now);
    coll_rank_release(fix.rank[2], fix.now);
    coll_job_check(fix.job);
    cr_assert(fix.job->participants == 0 && fix.rank[2]->state == COLL_JOINED);
}

Test(lost, an_operation_that_runs_goes_on_and_one_that_is_about_to_fails)
{
    struct reply a[2], b[2], c[2];
    fix.hold = true;
    promise(2);
    for (unsigned i = 0; i < 2; i++) {
        allreduce(0, "", a[i]);
        allreduce(1, "", b[i]);
        allreduce(2, "", c[i]);
    }
    coll_rank_lost(fix.rank[2], PID(2), 1, fix.now);
    cr_assert(!a[0].answered && a[1].result == -ECONNRESET && c[1].result == -ECONNRESET);
    finish(0);
    cr_assert(a[0].result == 0 && c[0].result == 0);
    fix.hold = false;
    promise(2);
    assert_aligned(3);
}

Test(lost, an_interrupted_request_of_the_lost_rank_leaves_nothing_behind)
{
    struct reply c;
    promise(2);
    barrier(2, c);
    cr_assert(interrupt(&c, true));
    coll_rank_lost(fix.rank[2], PID(2), 1, fix.now);
    cr_assert_eq(fix.job->stats.failed, 0u);
    promise(2);
    assert_aligned(3);
}

Test(lost, an_interrupted_request_of_another_rank_finds_the_failure)
{
    struct reply a, b;
    promise(2);
    barrier(0, a);
    barrier(1, b);
    cr_assert(interrupt(&b, false));
    coll_rank_lost(fix.rank[2], PID(2), 1, fix.now);
    promise(2);
    barrier(1, b);
    cr_assert(b.result == -ECONNRESET && b.seq == 1);
    assert_aligned(3);
}

/* ---- signals ---- */

TestSuite(signals, .init = make_two, .fini = end_job);

Test(signals, the_same_request_again_resumes_the_operation_with_number_and_clock)
{
    struct reply a, b;
    barrier(0, a);
    barrier(0, b);
    cr_assert(interrupt(&a, false));
    pass(1 * S);
    barrier(0, a);
    cr_assert_eq(a.seq, 1u);
    pass(29 * S - 1);
    cr_assert(!a.answered);
    pass(1);
    cr_assert(a.result == -ETIMEDOUT && a.time_ns == 30 * S);
}

Test(signals, an_interrupted_request_uses_no_number)
{
    struct reply a;
    for (unsigned i = 0; i < 10; i++) {
        allreduce(0, i % 2 ? "count=1" : "count=2", a);
        cr_assert_eq(a.seq, 1u);
        cr_assert(interrupt(&a, false));
        if (i % 3 == 0)
            pass(3 * S);
    }
    assert_aligned(2);
}

Test(signals, others_wait_two_seconds_for_it_to_come_again)
{
    struct reply a, b;
    end_job();
    make_job(3);
    barrier(0, a);
    barrier(1, b);
    cr_assert(interrupt(&b, false));
    pass(2 * S - 1);
    cr_assert(!a.answered);
    pass(1);
    cr_assert_eq(a.result, -ECANCELED);
    cr_assert_str_eq(a.why.missing, "1");
    cr_assert_str_eq(a.why.err.text,
                     "rank 1 withdrew: process 1001 on node 0 was interrupted by a signal and did not "
                     "ask again");
    struct reply c;
    barrier(1, b);
    barrier(2, c);
    cr_assert(b.result == -ECANCELED && c.result == -ECANCELED, "both come late to it");
    assert_aligned(3);
}

Test(signals, a_request_alone_that_does_not_come_again_was_never_made)
{
    struct reply a;
    barrier(0, a);
    cr_assert(interrupt(&a, false));
    pass(2 * S);
    cr_assert_eq(fix.job->stats.failed, 0u);
    assert_aligned(2);
}

Test(signals, a_rank_that_comes_while_the_other_is_interrupted_waits_for_it)
{
    struct reply a, b;
    barrier(0, a);
    cr_assert(interrupt(&a, false));
    barrier(1, b);
    cr_assert(!b.answered);
    barrier(0, a);
    cr_assert(a.result == 0 && b.result == 0 && fix.runs == 1);
}

Test(signals, the_time_of_a_wait_that_was_interrupted_can_be_over_when_it_comes_again)
{
    struct reply a;
    barrier(0, a);
    pass(29 * S);
    cr_assert(interrupt(&a, false));
    pass(1500 * MS);
    barrier(0, a);
    pass(0);
    cr_assert_eq(a.result, -ETIMEDOUT);
}

Test(signals, a_dying_process_without_promise_cancels_at_once)
{
    struct reply a, b;
    end_job();
    make_job(3);
    barrier(0, a);
    barrier(1, b);
    cr_assert(interrupt(&b, true));
    cr_assert_eq(a.result, -ECANCELED);
    cr_assert_str_eq(a.why.err.text, "rank 1 withdrew: its process 1001 on node 0 was killed");
}

Test(signals, a_dying_process_alone_leaves_nothing)
{
    struct reply a;
    barrier(0, a);
    cr_assert(interrupt(&a, true));
    cr_assert(fix.job->withdrawn == 0 && fix.job->stats.failed == 0);
    assert_aligned(2);
}

Test(signals, a_dying_process_that_promised_is_found_lost_and_named_so)
{
    struct reply a, b;
    end_job();
    make_job(3);
    promise(1);
    barrier(0, a);
    barrier(1, b);
    cr_assert(interrupt(&b, true));
    cr_assert(!a.answered);
    coll_rank_lost(fix.rank[1], PID(1), 1, fix.now);
    cr_assert_eq(a.result, -ECONNRESET);
}

Test(signals, threads_that_are_interrupted_together_find_their_own_numbers)
{
    struct reply a[4], b[4];
    static const char *const lines[] = {"offset=0 count=4", "offset=16 count=4", "offset=32 count=4",
                                        "offset=48 count=4"};
    static const unsigned orders[] = {2, 0, 3, 1};
    for (unsigned i = 0; i < 4; i++)
        allreduce(0, lines[i], a[i]);
    for (unsigned i = 0; i < 4; i++)
        cr_assert(interrupt(&a[i], false));
    for (unsigned i = 0; i < 4; i++) {
        allreduce(0, lines[orders[i]], a[orders[i]]);
        cr_assert_eq(a[orders[i]].seq, orders[i] + 1);
    }
    for (unsigned i = 0; i < 4; i++) {
        allreduce(1, lines[i], b[i]);
        cr_assert(a[i].result == 0 && b[i].result == 0);
    }
}

Test(signals, threads_frozen_for_long_were_never_in_the_operations_they_waited_for_alone)
{
    struct reply a[3];
    for (unsigned i = 0; i < 3; i++)
        allreduce(0, i == 0 ? "count=1" : i == 1 ? "count=2" : "count=3", a[i]);
    for (unsigned i = 0; i < 3; i++) {
        pass(1 * MS);
        cr_assert(interrupt(&a[i], false));
    }
    pass(60 * S);
    cr_assert_eq(fix.job->stats.failed, 0u);
    assert_aligned(2);
}

Test(signals, threads_frozen_while_others_wait_come_to_the_failures_one_by_one)
{
    struct reply a[3], b[3];
    for (unsigned i = 0; i < 2; i++)
        allreduce(0, i ? "count=2" : "count=1", a[i]);
    barrier(0, a[2]);
    for (unsigned i = 0; i < 3; i++) {
        pass(1 * MS);
        cr_assert(interrupt(&a[i], false));
    }
    allreduce(1, "count=1", b[0]);
    allreduce(1, "count=2", b[1]);
    pass(60 * S);
    cr_assert(b[0].result == -ECANCELED && b[1].result == -ECANCELED);
    for (unsigned i = 0; i < 2; i++) {
        allreduce(0, i ? "count=2" : "count=1", a[i]);
        cr_assert(a[i].result == -ECANCELED && a[i].seq == i + 1);
    }
    assert_aligned(2);
}

Test(signals, a_request_whose_operation_failed_meanwhile_finds_that_failure_and_no_new_number)
{
    struct reply a[2], b;
    allreduce(0, "count=1", a[0]);
    allreduce(0, "count=2", a[1]);
    cr_assert(interrupt(&a[0], false));
    cr_assert(interrupt(&a[1], false));
    coll_job_fail_all(fix.job, -ENOLINK, "the link is down", fix.now);
    allreduce(0, "count=2", a[1]);
    allreduce(0, "count=1", a[0]);
    cr_assert(a[1].result == -ENOLINK && a[1].seq == 2);
    cr_assert(a[0].result == -ENOLINK && a[0].seq == 1);
    allreduce(1, "count=1", b);
    allreduce(1, "count=2", b);
    cr_assert(b.result == -ENOLINK && b.seq == 2);
    assert_aligned(2);
}

Test(signals, a_number_behind_which_the_rank_has_asked_for_more_fails_for_all)
{
    struct reply a[2], b[2];
    allreduce(0, "count=1", a[0]);
    allreduce(0, "count=2", a[1]);
    cr_assert(interrupt(&a[0], false));
    pass(2 * S);
    allreduce(1, "count=1", b[0]);
    allreduce(1, "count=2", b[1]);
    cr_assert(b[0].result == -ECANCELED && b[1].result == 0 && a[1].result == 0);
    assert_aligned(2);
}

Test(signals, leaving_forgets_interrupted_requests)
{
    struct reply a;
    barrier(0, a);
    cr_assert(interrupt(&a, false));
    cr_assert_eq(coll_rank_leave(fix.rank[0], fix.now), 0);
    cr_assert_eq(fix.job->withdrawn, 0u);
    cr_assert_eq(join(0), 0);
    assert_aligned(2);
}

/* ---- going on without ---- */

TestSuite(going_on, .init = make_three, .fini = end_job);

Test(going_on, operations_need_only_the_members_that_are_left)
{
    struct reply a, b;
    lose(1);
    cr_assert_eq(drop("drop=lost\n"), 0);
    allreduce(0, "", a);
    allreduce(2, "", b);
    cr_assert(a.result == 0 && b.result == 0);
    cr_assert_eq(coll_job_member_count(fix.job), 2u);
}

Test(going_on, what_waited_for_the_dropped_rank_only_runs)
{
    struct reply a, b;
    struct coll_ask *members[3];
    fix.hold = true;
    allreduce(0, "", a);
    allreduce(2, "", b);
    cr_assert_eq(drop("drop=1"), 0);
    cr_assert_eq(fix.running_count, 1u);
    coll_op_members(fix.running[0], members);
    cr_assert(fix.running[0]->member_count == 2 && members[0]->rank->number == 0 &&
              members[1]->rank->number == 2);
    finish(0);
    cr_assert(a.result == 0 && b.result == 0);
}

Test(going_on, a_dropped_rank_gets_estale_for_what_it_asked_and_asks)
{
    struct reply a, b;
    barrier(1, a);
    barrier(0, b);
    cr_assert_eq(drop("drop=1"), 0);
    cr_assert(a.result == -ESTALE && !b.answered);
    barrier(1, a);
    cr_assert(a.refused && a.result == -ESTALE);
    cr_assert_eq(coll_rank_promise(fix.rank[1], 1, fix.now), -ESTALE);
}

Test(going_on, it_takes_part_again_after_joining_at_a_number_that_all_agree_on)
{
    struct reply a, b, c;
    cr_assert_eq(drop("drop=1"), 0);
    for (unsigned i = 0; i < 3; i++) {
        barrier(0, a);
        barrier(2, c);
    }
    cr_assert_eq(c.seq, 3u);
    barrier(0, a);
    uint64_t epoch = fix.job->epoch;
    cr_assert_eq(join(1), 0);
    cr_assert_eq(fix.job->epoch, epoch + 1);
    barrier(2, c);
    cr_assert(!a.answered, "it needs the rank that is back");
    barrier(1, b);
    cr_assert(a.result == 0 && b.result == 0 && b.seq == 4);
    assert_aligned(3);
}

Test(going_on, the_operation_that_runs_is_answered_with_its_result)
{
    struct reply a, b, c;
    fix.hold = true;
    allreduce(0, "", a);
    allreduce(1, "", b);
    allreduce(2, "", c);
    cr_assert_eq(drop("drop=1"), 0);
    cr_assert(!b.answered);
    cr_assert_eq(join(1), -EBUSY);
    finish(0);
    cr_assert(a.result == 0 && b.result == 0);
    cr_assert_eq(join(1), 0);
    fix.hold = false;
    assert_aligned(3);
}

Test(going_on, the_operation_that_is_about_to_run_does_without_the_rank)
{
    struct reply a[2], b[2], c[2];
    fix.hold = true;
    for (unsigned i = 0; i < 2; i++) {
        allreduce(0, "", a[i]);
        allreduce(1, "", b[i]);
        allreduce(2, "", c[i]);
    }
    cr_assert_eq(drop("drop=1"), 0);
    cr_assert_eq(b[1].result, -ESTALE);
    finish(0);
    cr_assert(fix.running_count == 1 && fix.running[0]->member_count == 2);
    finish(0);
    cr_assert(a[1].result == 0 && c[1].result == 0);
}

Test(going_on, a_broadcast_that_is_about_to_run_fails_with_its_root)
{
    struct reply a[2], b[2], c[2];
    fix.hold = true;
    for (unsigned i = 0; i < 2; i++) {
        write_to(0, COLL_BROADCAST, "root=1", a[i]);
        write_to(1, COLL_BROADCAST, "root=1", b[i]);
        write_to(2, COLL_BROADCAST, "root=1", c[i]);
    }
    cr_assert_eq(drop("drop=1"), 0);
    cr_assert(a[1].result == -ESTALE && b[1].result == -ESTALE && c[1].result == -ESTALE);
    finish(0);
    cr_assert_eq(fix.running_count, 0u);
    cr_assert_eq(a[0].result, 0);
}

Test(going_on, a_broadcast_of_a_dropped_root_fails_when_all_others_have_come)
{
    struct reply a, c;
    cr_assert_eq(drop("drop=1"), 0);
    write_to(0, COLL_BROADCAST, "root=1", a);
    write_to(2, COLL_BROADCAST, "root=1", c);
    cr_assert(a.result == -ESTALE && c.result == -ESTALE);
    assert_says(a.why.err.text, "rank 1, the root, takes no part in it");
    barrier(0, a);
    barrier(2, c);
    cr_assert_eq(c.result, 0);
}

Test(going_on, what_waits_for_the_bytes_of_a_dropped_rank_starts)
{
    struct reply a[2], b[2], c[2];
    fix.hold = true;
    for (unsigned i = 0; i < 2; i++) {
        allreduce(0, i ? "offset=64 count=4" : "offset=0 count=4", a[i]);
        allreduce(1, "offset=0 count=4", b[i]);
        allreduce(2, i ? "offset=64 count=4" : "offset=0 count=4", c[i]);
    }
    cr_assert_eq(fix.running_count, 1u);
    cr_assert_eq(drop("drop=1"), 0);
    cr_assert_eq(fix.running_count, 2u, "only the dropped rank's ranges touched");
}

Test(going_on, an_absent_rank_can_be_dropped)
{
    struct reply a, b;
    cr_assert_eq(coll_rank_leave(fix.rank[2], fix.now), 0);
    barrier(0, a);
    barrier(1, b);
    cr_assert_eq(drop("drop=2"), 0);
    cr_assert(a.result == 0 && b.result == 0);
    cr_assert_eq(join(2), 0);
    assert_aligned(3);
}

Test(going_on, a_lost_rank_that_was_dropped_holds_nobody_up)
{
    struct reply a;
    lose(1);
    lose(2);
    uint64_t epoch = fix.job->epoch;
    cr_assert_eq(drop("drop=lost"), 0);
    cr_assert(fix.job->lost == 0 && fix.job->epoch == epoch + 1);
    barrier(0, a);
    cr_assert_eq(a.result, 0);
}

Test(going_on, ranks_on_a_suspect_node_can_be_dropped_and_are_shown)
{
    struct reply a, b;
    struct ut_text members = {0};
    cr_assert_eq(coll_rank_leave(fix.rank[2], fix.now), 0);
    coll_remote_ranks(fix.job, 7, &(struct coll_remote){2, COLL_JOINED, 1, PID(2), 0}, 1, fix.now);
    cr_assert_eq(drop("drop=suspect"), -ENOENT, "no node is suspect");
    fix.suspect = 7 + 1;
    coll_job_show_members(fix.job, &members);
    assert_says(members.bytes, "rank=2 node=7 pid=1002 state=joined last=0 suspect=yes\n");
    assert_says(members.bytes, "rank=1 node=0 pid=1001 state=joined last=0\n");
    ut_text_fini(&members);
    barrier(0, a);
    barrier(1, b);
    cr_assert_eq(drop("drop=suspect\n"), 0);
    cr_assert(a.result == 0 && b.result == 0, "they went on without it");
    cr_assert_eq(fix.rank[2]->state, COLL_DROPPED);
    cr_assert_eq(drop("drop=suspect"), -ENOENT, "who is dropped is not dropped again");
    fix.suspect = 0 + 1;
    cr_assert_eq(drop("drop=suspect"), -EINVAL, "a job keeps at least one rank");
}

/* Ranks 1 and 2 of another node ask for the whole buffer. */
static void others_ask(uint64_t seq)
{
    for (unsigned r = 1; r < 3; r++) {
        struct coll_remote_ask asked = {.number = r, .seq = seq, .pid = PID(r)};
        struct coll_why why;
        asked.cmd = (struct coll_cmd){
            .kind = COLL_ALLREDUCE, .dtype = COLL_F32, .op = COLL_SUM, .count = BUFFER_BYTES / 4};
        cr_assert_eq(coll_remote_ask(fix.job, 7, &asked, fix.now, &why), 0);
    }
}

Test(going_on, what_waits_to_start_is_the_others_affair_when_the_last_rank_here_was_dropped)
{
    const struct coll_remote there[] = {{1, COLL_JOINED, 1, PID(1), 0}, {2, COLL_JOINED, 1, PID(2), 0}};
    struct reply a, b;
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    cr_assert_eq(coll_rank_leave(fix.rank[2], fix.now), 0);
    coll_remote_ranks(fix.job, 7, there, 2, fix.now);
    fix.hold = true;
    allreduce(0, "", a);
    others_ask(1);
    allreduce(0, "", b);
    others_ask(2); /* the same memory: it waits for the first to end */
    cr_assert_eq(fix.runs, 1);
    cr_assert_eq(drop("drop=0"), 0);
    cr_assert(b.result == -ESTALE && !a.answered);
    finish(0);
    cr_assert_eq(a.result, 0);
    cr_assert_eq(fix.runs, 1, "nobody here has memory for the second");
    cr_assert_not(coll_job_is_busy(fix.job));
}

Test(going_on, a_job_keeps_one_rank)
{
    cr_assert_eq(drop("drop=0"), 0);
    cr_assert_eq(drop("drop=1"), 0);
    cr_assert_eq(drop("drop=2"), -EINVAL);
    cr_assert_eq(drop("drop=0"), -ENOENT);
}

Test(going_on, other_words_drop_nobody)
{
    static const char *const bad[] = {
        "",
        "drop",
        "drop=",
        "drop=3",
        "drop=-1",
        "drop=1 ",
        "drop=all",
        "lost",
        "drop=1\n\n",
        "drop=0x1",
        "drop=1,2",
        " drop=1",
        "drop=4294967297",
        "drop=00000000000000000000000000000000000000000000000000000000000000001"};
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(drop(bad[i]), -EINVAL, "%s", bad[i]);
    cr_assert_eq(coll_job_drop(fix.job, "drop=1\0\n", 8, fix.now, NULL), -EINVAL);
    cr_assert_eq(drop("drop=lost"), -ENOENT);
    cr_assert_eq(coll_job_member_count(fix.job), 3u);
}

/* ---- lingering ---- */

TestSuite(lingering, .init = make_two, .fini = end_job);

Test(lingering, a_job_in_which_nobody_takes_part_is_over_after_its_time)
{
    cr_assert(!coll_job_is_over(fix.job, fix.now + 3600 * S - 1));
    cr_assert(coll_job_is_over(fix.job, fix.now + 3600 * S));
    cr_assert_eq(fix.wake, fix.now + 3600 * S, "and the host is told when");
}

Test(lingering, is_told_to_the_host_for_a_job_that_nobody_joins)
{
    struct coll_job *job;
    fix.wake = UINT64_MAX;
    cr_assert_eq(coll_job_create("other", &fix_host, 1 << 20, fix.now, &job), 0);
    cr_assert_eq(fix.wake, fix.now + 3600 * S);
    cr_assert(coll_job_is_over(job, fix.wake));
    coll_job_destroy(job, -ENODEV, fix.now);
}

Test(lingering, counts_from_the_last_sign_of_life)
{
    promise(0);
    cr_assert(!coll_job_is_over(fix.job, fix.now + 36000 * S));
    pass(10000 * S);
    coll_rank_release(fix.rank[0], fix.now);
    cr_assert(!coll_job_is_over(fix.job, fix.now + 3599 * S));
    pass(1000 * S);
    assert_aligned(2);
    cr_assert(!coll_job_is_over(fix.job, fix.now + 3599 * S));
}

Test(lingering, does_not_end_a_job_in_which_somebody_waits_nor_wake_the_loop_for_it)
{
    struct reply a;
    cr_assert_eq(coll_rank_leave(fix.rank[0], fix.now), 0);
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    cr_assert_eq(configure("linger=1"), 0);
    cr_assert_eq(join(0), 0);
    barrier(0, a);
    pass(5 * S);
    cr_assert(!coll_job_is_over(fix.job, fix.now));
    cr_assert_eq(fix.wake, fix.now + 25 * S);
    pass(25 * S);
    cr_assert_eq(a.result, -ETIMEDOUT);
    cr_assert_eq(fix.wake, fix.now + 1 * S);
    cr_assert(coll_job_is_over(fix.job, fix.now + 1 * S));
}

Test(lingering, never_means_never)
{
    cr_assert_eq(coll_rank_leave(fix.rank[0], fix.now), 0);
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    cr_assert_eq(configure("linger=never"), 0);
    cr_assert(!coll_job_is_over(fix.job, UINT64_MAX / 2));
}

Test(lingering, waits_for_ranks_of_other_nodes_without_waking_the_loop)
{
    struct coll_remote there = {.number = 1, .state = COLL_PRESENT, .incarnation = 7, .pid = PID(1)};
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    coll_remote_ranks(fix.job, 1, &there, 1, fix.now);
    pass(3600 * S - 1);
    fix.now += 2;
    fix.wake = UINT64_MAX;
    coll_job_tick(fix.job, fix.now);
    cr_assert_gt(fix.wake, fix.now, "there is nothing to do");
    cr_assert(!coll_job_is_over(fix.job, fix.now));
    there.state = COLL_JOINED;
    coll_remote_ranks(fix.job, 1, &there, 1, fix.now);
    cr_assert_eq(fix.wake, fix.now + 3600 * S, "counted from when the last of them has gone");
    cr_assert(!coll_job_is_over(fix.job, fix.now + 3600 * S - 1));
    cr_assert(coll_job_is_over(fix.job, fix.now + 3600 * S));
}

Test(lingering, counts_from_when_the_node_of_the_last_participant_went_down)
{
    struct coll_remote there = {.number = 1, .state = COLL_PRESENT, .incarnation = 7, .pid = PID(1)};
    cr_assert_eq(coll_rank_leave(fix.rank[1], fix.now), 0);
    coll_remote_ranks(fix.job, 1, &there, 1, fix.now);
    fix.now += 10000 * S;
    fix.wake = UINT64_MAX;
    coll_remote_node_lost(fix.job, 1, -EHOSTDOWN, "it is silent", fix.now);
    cr_assert_eq(fix.wake, fix.now + 3600 * S);
    cr_assert(!coll_job_is_over(fix.job, fix.now + 3600 * S - 1));
}

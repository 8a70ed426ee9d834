/*
 * The invariants of coll_job.h, numbered as there.
 */
#include "reduce/coll_internal.h"

#include <assert.h>

static void check_request(const struct coll_operation *op, unsigned r)
{
    const struct coll_ask *ask = op->ask[r];
    const struct coll_rank *rank = &op->job->ranks[r];
    assert(ask->op == op && ask->rank == rank);
    if (coll_rank_is_counting(rank) && op->state != COLL_RUNNING)
        assert(op->tag->rank_next[r] > op->seq); /* 1 */
    if (ask->withdrawn)
        assert(op->state == COLL_GATHER || op->state == COLL_FAILED); /* 7 */
    else
        assert(op->state != COLL_FAILED && coll_cmd_agree(&op->cmd, &ask->cmd)); /* 3 */
}

static unsigned count_excused(const struct coll_operation *op)
{
    unsigned excused = 0;
    for (unsigned r = 0; r < op->job->config.world; r++)
        excused +=
            coll_rank_is_counting(&op->job->ranks[r]) && !op->ask[r] && op->tag->rank_next[r] > op->seq;
    return excused;
}

static void check_operation(const struct coll_operation *op)
{
    unsigned asked = 0, requests = 0;
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (!op->ask[r])
            continue;
        requests++;
        asked += !op->ask[r]->withdrawn;
        check_request(op, r);
    }
    assert(asked == op->asked && requests == op->requests);
    bool active = op->state == COLL_READY || op->state == COLL_RUNNING;
    assert(active == !ut_list_empty(&op->active));
    if (active || op->state == COLL_AGREE)
        assert(op->asked && op->asked == op->member_count && op->seq <= op->tag->done_top); /* 2, 3, 6 */
    assert(op->state == COLL_GATHER || op->state == COLL_AGREE || ut_list_empty(&op->turn));
    if (active) {
        assert(op->blockers == coll_op_count_blockers(op)); /* 4 */
    }
    assert(op->state != COLL_RUNNING || !op->blockers); /* 4 */
    assert(op->state != COLL_READY || op->blockers || op->job->advancing);
    if (op->state == COLL_GATHER) {
        assert(op->excused == count_excused(op));
        assert(!op->asked || op->asked + op->excused < coll_job_member_count(op->job));
    }
}

static unsigned check_tag(const struct coll_job *job, const struct coll_tag *tag, unsigned *withdrawn,
                          unsigned *agreeing)
{
    uint64_t last = 0;
    unsigned failed = 0;
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        assert(op->job == job && op->tag == tag);
        assert(op->seq > last && op->seq <= tag->top); /* 2 */
        last = op->seq;
        failed += op->state == COLL_FAILED;
        *agreeing += op->state == COLL_AGREE;
        *withdrawn += op->requests - op->asked;
        check_operation(op);
    }
    assert(tag->done_top <= tag->top); /* 2 */
    for (unsigned r = 0; r < job->config.world; r++) {
        if (coll_rank_is_counting(&job->ranks[r]))
            assert(tag->rank_next[r] <= tag->top + 1); /* 1 */
    }
    return failed;
}

static void check_ranks(const struct coll_job *job)
{
    unsigned joined = 0, lost = 0, dropped = 0, promises = 0;
    for (unsigned r = 0; job->ranks && r < job->config.world; r++) {
        const struct coll_rank *rank = &job->ranks[r];
        bool local = coll_rank_is_local(rank);
        joined += local && rank->state != COLL_ABSENT && rank->state != COLL_DROPPED;
        lost += rank->state == COLL_LOST;
        dropped += rank->state == COLL_DROPPED;
        promises += rank->promises;
        assert(rank->state != COLL_PRESENT || rank->promises || !local);
        assert(rank->state == COLL_PRESENT || rank->state == COLL_LOST || !rank->promises);
    }
    assert(joined == job->joined && lost == job->lost && dropped == job->dropped);
    assert(promises == job->participants);
}

void coll_job_check(const struct coll_job *job)
{
    unsigned tags = 0, failed = 0, withdrawn = 0, agreeing = 0;
    check_ranks(job);
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        tags++;
        failed += check_tag(job, tag, &withdrawn, &agreeing);
    }
    assert(tags == job->tag_count && failed == job->failed_count && withdrawn == job->withdrawn);
    assert(failed <= COLL_FAILED_MAX && agreeing == job->agreeing);
}

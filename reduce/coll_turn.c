/*
 * Turns: the one order in which all nodes start operations that may be in each other's way.
 *
 * Operations of one tag become complete in the order of their numbers on every node. Those of two tags may
 * not: one node hears of the last request for this one first, another for that one; and where they share
 * memory, each node would start another one and wait for the other node to start it, too.
 *
 * So a request says whether its rank had others under way, in a job of several tags (`crosses`). An operation
 * for which no request says so is asked for before any other by every rank, or after it is over; so it is
 * complete before it everywhere, and needs no more. For the others the owner, the lowest node that takes
 * part, gives the order: it tells each operation's turn when that is complete there (host.turn). Every node
 * makes them ready in the order in which their turns came, and no sooner than they are complete.
 */
#include "reduce/coll_internal.h"
#include "reduce/coll_remote.h"

#include <errno.h>

static unsigned owner_of(const struct coll_operation *op)
{
    unsigned owner = op->job->node;
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (op->ask[r] && op->ask[r]->rank->node < owner)
            owner = op->ask[r]->rank->node;
    }
    return owner;
}

bool coll_op_needs_turn(const struct coll_operation *op)
{
    bool crosses = false, elsewhere = false;
    for (unsigned r = 0; op->job->host->turn && r < op->job->config.world; r++) {
        const struct coll_ask *ask = op->ask[r];
        crosses = crosses || (ask && ask->crosses);
        elsewhere = elsewhere || (ask && !coll_rank_is_local(ask->rank));
    }
    return crosses && elsewhere;
}

static void take_turn(struct coll_operation *op)
{
    if (ut_list_empty(&op->turn))
        ut_list_append(&op->job->turns, &op->turn);
}

/* Those that are complete here and whose order is ours to give. */
static void give_turns(struct coll_job *job)
{
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
        {
            if (op->state != COLL_AGREE || !ut_list_empty(&op->turn) || owner_of(op) != job->node)
                continue;
            job->host->turn(job->host->ctx, op);
            take_turn(op);
        }
    }
}

void coll_job_take_turns(struct coll_job *job)
{
    if (job->agreeing)
        give_turns(job);
    while (!ut_list_empty(&job->turns)) {
        struct coll_operation *op = UT_CONTAINER(job->turns.next, struct coll_operation, turn);
        if (op->state != COLL_AGREE)
            return; /* not complete yet */
        coll_op_make_ready(op);
    }
}

void coll_job_hear_turn(struct coll_job *job, unsigned node, const char *name, uint64_t seq, uint64_t now)
{
    int rc;
    struct coll_tag *tag = job->ranks ? coll_tag_get(job, name, &rc) : NULL;
    struct coll_operation *op = tag ? coll_tag_find(tag, seq) : NULL;
    if (!op || (op->state != COLL_GATHER && op->state != COLL_AGREE))
        return; /* it has failed here; or none of its requests crosses, as we have heard them */
    if (owner_of(op) != node)
        return;
    take_turn(op);
    coll_job_advance(job, now);
}

void coll_op_repeat_turn(const struct coll_operation *op)
{
    const struct coll_host *host = op->job->host;
    bool begun = op->state == COLL_READY || op->state == COLL_RUNNING;
    if (host->turn && begun && owner_of(op) == op->job->node)
        host->turn(host->ctx, op);
}

bool coll_op_is_turn_late(const struct coll_operation *op, uint64_t now)
{
    return op->state == COLL_AGREE && coll_op_deadline(op) <= now;
}

void coll_op_fail_turn(struct coll_operation *op, uint64_t now)
{
    struct coll_why why = {.result = -ETIMEDOUT};
    ut_err_set(&why.err, 0, "node %u has not said when it starts", owner_of(op));
    coll_op_fail(op, &why, now);
}

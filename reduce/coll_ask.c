/*
 * Requests: how a rank asks for the operation of its next number, is interrupted, and comes again.
 */
#include "reduce/coll_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory: requests are kept for reuse ---- */

struct coll_ask *coll_ask_create(struct coll_operation *op, struct coll_rank *rank)
{
    struct coll_job *job = op->job;
    struct coll_ask *ask = job->free_asks;
    if (ask)
        job->free_asks = ask->next_free;
    else
        ask = malloc(sizeof(*ask));
    if (!ask)
        return NULL;
    *ask = (struct coll_ask){.op = op, .rank = rank};
    op->ask[rank->number] = ask;
    op->requests++;
    return ask;
}

void coll_ask_free(struct coll_ask *ask)
{
    struct coll_operation *op = ask->op;
    struct coll_job *job = op->job;
    op->ask[ask->rank->number] = NULL;
    op->requests--;
    job->withdrawn -= ask->withdrawn;
    ask->next_free = job->free_asks;
    job->free_asks = ask;
}

/* ---- answering ---- */

static void note(struct coll_rank *rank, uint64_t seq, const struct coll_cmd *cmd, const struct coll_why *why,
                 uint64_t time_ns)
{
    if (!rank->status)
        return;
    struct coll_status *line = &rank->status[rank->status_count++ % COLL_STATUS_LINES];
    line->seq = seq;
    line->parsed = cmd != NULL;
    if (cmd)
        line->cmd = *cmd;
    line->why = *why;
    line->time_ns = time_ns;
}

void coll_rank_note(struct coll_rank *rank, const struct coll_cmd *cmd, const struct coll_why *why)
{
    rank->job->stats.refused++;
    note(rank, 0, cmd, why, 0);
}

/* A rank that another node may have taken over while its last operation ran. It may have said so before,
 * which had to wait: the host looks at that again. */
static void offer_free(const struct coll_rank *rank)
{
    const struct coll_host *host = rank->job->host;
    if (host->changed && !coll_rank_is_held(rank) && !rank->asking)
        host->changed(host->ctx, rank->job);
}

void coll_ask_answer(struct coll_ask *ask, const struct coll_why *why, uint64_t now)
{
    struct coll_rank *rank = ask->rank;
    struct coll_job *job = rank->job;
    rank->asking--;
    if (ask->op->state == COLL_RUNNING)
        offer_free(rank);
    if (!why->result)
        rank->last_seq = ask->op->seq;
    if (!coll_rank_is_local(rank)) {
        coll_ask_free(ask); /* its own node answers it */
        return;
    }
    note(rank, ask->op->seq, &ask->cmd, why, now - ask->t_arrive);
    if (!why->result) {
        ut_hist_add(&job->stats.latency, now - ask->t_arrive);
    }
    job->host->answer(job->host->ctx, ask, why, now);
    coll_ask_free(ask);
}

/* ---- arriving ---- */

static int refuse(struct coll_why *why, int rc, const char *text)
{
    *why = (struct coll_why){.result = rc};
    return ut_err_set(&why->err, rc, "%s", text);
}

static void say_out_of_reach(const struct coll_rank *rank, struct coll_why *why)
{
    char what[96], host[COLL_HOST_BYTES];
    if (rank->lost_rc == -ENOLINK)
        snprintf(what, sizeof(what), "the " COLL_LINK " is down",
                 COLL_LINK_ENDS(rank->job->node, rank->node));
    else
        snprintf(what, sizeof(what), "its node %u is down", rank->node);
    ut_err_set(&why->err, 0,
               "rank %u is out of reach: %s (%spid %d, last operation %" PRIu64
               "); drop=lost in members goes on without",
               rank->number, what, coll_rank_host(rank, host), (int)rank->pid, rank->last_seq);
}

int coll_job_refuse_lost(const struct coll_job *job, struct coll_why *why)
{
    char host[COLL_HOST_BYTES];
    *why = (struct coll_why){.result = -ECONNRESET};
    for (unsigned r = 0; r < job->config.world; r++) {
        const struct coll_rank *rank = &job->ranks[r];
        if (rank->state != COLL_LOST)
            continue;
        why->result = rank->lost_rc;
        snprintf(why->missing, sizeof(why->missing), "%u", r);
        if (rank->lost_rc != -ECONNRESET) {
            say_out_of_reach(rank, why);
            break;
        }
        ut_err_set(&why->err, 0,
                   "rank %u on node %u is lost: its process %d ended (%slast operation %" PRIu64
                   "); it comes back by opening a trigger read-write, or goes by drop=%u in members",
                   r, rank->node, (int)rank->pid, coll_rank_host(rank, host), rank->last_seq, r);
        break;
    }
    return why->result;
}

static void fail_mismatch(struct coll_operation *op, const struct coll_ask *late, uint64_t now)
{
    struct coll_why why = {.result = -EPROTO};
    char first_asks[96], late_asks[96];
    unsigned first = 0;
    while (!op->ask[first] || op->ask[first] == late || op->ask[first]->withdrawn)
        first++; /* there is one: late disagrees with somebody */
    coll_cmd_describe(&op->cmd, first_asks, sizeof(first_asks));
    coll_cmd_describe(&late->cmd, late_asks, sizeof(late_asks));
    ut_err_set(&why.err, 0, "rank %u asked %s, rank %u asked %s", first, first_asks, late->rank->number,
               late_asks);
    coll_op_fail(op, &why, now);
}

/* The memory of an operation that is over is still there, and nothing else can have taken it: the host does
 * not ask while it is called. */
struct coll_ask *coll_ask_arrive(struct coll_ask *ask, uint64_t now)
{
    struct coll_operation *op = ask->op;
    struct coll_job *job = op->job;
    unsigned r = ask->rank->number;
    ask->rank->asking++;
    if (!op->asked) {
        op->cmd = ask->cmd;
        job->host->wake(job->host->ctx, coll_op_deadline(op));
    }
    if (job->withdrawn)
        job->host->wake(job->host->ctx, now); /* what hung on this one, or waited for nobody, may be over */
    op->asked++;
    op->last_rank = r;
    if (!coll_cmd_agree(&op->cmd, &ask->cmd))
        fail_mismatch(op, ask, now);
    else
        coll_op_check_complete(op, now);
    return op->ask[r] == ask ? ask : NULL;
}

/* Other nodes hear of the request before the data that it may set going. */
static struct coll_ask *tell_and_arrive(struct coll_ask *ask, uint64_t now)
{
    const struct coll_host *host = ask->rank->job->host;
    if (host->asked)
        host->asked(host->ctx, ask);
    return coll_ask_arrive(ask, now);
}

/* A rank comes to a number that has failed before it came. */
static void answer_late(struct coll_ask *ask, uint64_t now)
{
    struct coll_tag *tag = ask->op->tag;
    ask->rank->asking++;
    coll_ask_answer(ask, &ask->op->why, now);
    coll_tag_forget_passed(tag);
}

/* True when the rank has asked for nothing in the tag since. */
static bool is_last(const struct coll_ask *ask)
{
    return ask->op->seq + 1 == ask->op->tag->rank_next[ask->rank->number];
}

static void fill_in(struct coll_ask *ask, const struct coll_cmd *cmd, pid_t pid, void *waiter)
{
    ask->crosses = ask->rank->asking && ask->rank->job->tag_count > 1;
    ask->cmd = *cmd;
    ask->pid = pid;
    ask->waiter = waiter;
    ask->t_parked = 0;
}

/* Takes the rank's next number and joins its operation, or gets the failure that waits there. */
static int ask_next(struct coll_rank *rank, struct coll_tag *tag, const struct coll_cmd *cmd, pid_t pid,
                    void *waiter, uint64_t now, struct coll_ask **out, struct coll_why *why)
{
    uint64_t *next = &tag->rank_next[rank->number];
    struct coll_operation *op = *next <= tag->top ? coll_tag_find(tag, *next) : NULL;
    bool is_late = op && op->state == COLL_FAILED;
    if (*next <= tag->top && !op) {
        (*next)++;
        return refuse(why, -ESTALE, "this operation failed so long ago that its result is no longer kept");
    }
    if (rank->job->lost && !is_late)
        return coll_job_refuse_lost(rank->job, why);
    if (now < rank->job->cut_until && !is_late) {
        *why = rank->job->cut;
        return why->result;
    }
    if (!op)
        op = coll_op_create(tag, now);
    else if (!op->requests)
        op->t_first = now;
    struct coll_ask *ask = op ? coll_ask_create(op, rank) : NULL;
    if (!ask)
        return refuse(why, -ENOMEM, "the daemon has no memory for the request");
    (*next)++;
    fill_in(ask, cmd, pid, waiter);
    ask->t_arrive = now;
    if (is_late)
        answer_late(ask, now);
    else
        *out = tell_and_arrive(ask, now);
    return 0;
}

/* An interrupted request comes again, or something else in its place. */
static void ask_again(struct coll_ask *ask, const struct coll_cmd *cmd, pid_t pid, void *waiter, uint64_t now,
                      struct coll_ask **out)
{
    ask->withdrawn = false;
    ask->rank->job->withdrawn--;
    fill_in(ask, cmd, pid, waiter);
    if (ask->op->state == COLL_FAILED)
        answer_late(ask, now);
    else
        *out = tell_and_arrive(ask, now);
}

/* The interrupted request that cmd resumes: the first one for the very same; or else the rank's last one, in
 * whose place cmd comes, since nothing has used the number. */
static struct coll_ask *find_withdrawn(const struct coll_rank *rank, const struct coll_tag *tag,
                                       const struct coll_cmd *cmd)
{
    struct coll_ask *last = NULL;
    if (!rank->job->withdrawn)
        return NULL;
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        struct coll_ask *ask = op->ask[rank->number];
        if (!ask || !ask->withdrawn)
            continue;
        if (coll_cmd_same(&ask->cmd, cmd))
            return ask;
        if (is_last(ask))
            last = ask;
    }
    return last;
}

int coll_rank_ask(struct coll_rank *rank, const struct coll_cmd *cmd, pid_t pid, void *waiter, uint64_t now,
                  struct coll_ask **out, struct coll_why *why)
{
    int rc = 0;
    *out = NULL;
    bool takes_part = coll_rank_is_counting(rank) || rank->state == COLL_LOST;
    if (!takes_part || !coll_rank_is_local(rank)) /* another node's by now: there its requests are answered */
        return refuse(
            why, -ESTALE,
            "this rank takes no part in the job: it left or was dropped; mkdir its directory to join again");
    if (rank->state == COLL_LOST)
        return coll_job_refuse_lost(rank->job, why);
    if (rank->job->conflict.result) {
        *why = rank->job->conflict;
        return why->result;
    }
    struct coll_tag *tag = coll_tag_get(rank->job, cmd->tag, &rc);
    if (!tag)
        return refuse(why, rc,
                      rc == -ENOSPC   ? "too many tags are in use at once"
                      : rc == -EEXIST ? "another tag of the job has the same number: give it another name"
                                      : "the daemon has no memory for the tag");
    struct coll_ask *again = find_withdrawn(rank, tag, cmd);
    if (!again)
        return ask_next(rank, tag, cmd, pid, waiter, now, out, why);
    ask_again(again, cmd, pid, waiter, now, out);
    return 0;
}

/* ---- interrupted requests ---- */

static void say_canceled(const struct coll_ask *ask, bool dying, struct coll_why *why)
{
    *why = (struct coll_why){.result = -ECANCELED};
    snprintf(why->missing, sizeof(why->missing), "%u", ask->rank->number);
    ut_err_set(&why->err, 0,
               dying ? "rank %u withdrew: its process %d on node %u was killed"
                     : "rank %u withdrew: process %d on node %u was interrupted by a signal and "
                       "did not ask again",
               ask->rank->number, (int)ask->pid, ask->rank->node);
}

/* The operation that nobody asks for any more is as if never begun, unless others have come after it. */
static void unmake(struct coll_operation *op)
{
    struct coll_tag *tag = op->tag;
    if (op->state != COLL_GATHER || op->requests || op->seq != tag->top)
        return;
    tag->top = op->seq - 1;
    coll_op_free(op);
}

bool coll_ask_hangs_on_later(const struct coll_ask *ask)
{
    const struct coll_tag *tag = ask->op->tag;
    unsigned r = ask->rank->number;
    uint64_t seq = ask->op->seq, end = tag->rank_next[r];
    if (seq + 1 == end)
        return false;
    for (const struct ut_list *node = ask->op->link.next; node != &tag->ops; node = node->next) {
        const struct coll_operation *op = UT_CONTAINER(node, struct coll_operation, link);
        if (op->seq != ++seq || !op->ask[r] || !op->ask[r]->withdrawn)
            return false;
        if (seq + 1 == end)
            return true;
    }
    return false;
}

void coll_ask_give_up(struct coll_ask *ask, bool dying, uint64_t now)
{
    struct coll_operation *op = ask->op;
    struct coll_tag *tag = op->tag;
    struct coll_why why;
    bool last = is_last(ask), fails = op->state == COLL_GATHER && (op->asked || !last);
    if (fails)
        say_canceled(ask, dying, &why);
    if (last)
        tag->rank_next[ask->rank->number] = op->seq;
    if (last || !coll_ask_hangs_on_later(ask))
        coll_ask_free(ask);
    if (fails)
        coll_op_fail(op, &why, now);
    else
        unmake(op);
    coll_tag_forget_passed(tag);
}

bool coll_ask_interrupt(struct coll_ask *ask, bool dying, uint64_t now)
{
    struct coll_operation *op = ask->op;
    struct coll_job *job = op->job;
    if (op->state != COLL_GATHER)
        return false;
    ask->withdrawn = true;
    ask->waiter = NULL;
    ask->t_parked = 0;
    ask->withdrawn_until = now + COLL_WITHDRAWN_NS;
    ask->rank->asking--;
    op->asked--;
    job->withdrawn++;
    /* A process that promised to take part is found lost when it has ended, and named so. Where nobody waits
     * and the rank has asked for more, time shows what becomes of that. */
    dying = dying && ask->rank->state != COLL_PRESENT;
    if (job->host->withdrew && !job->hearing)
        job->host->withdrew(job->host->ctx, ask, dying);
    if (dying && (op->asked || is_last(ask)))
        coll_ask_give_up(ask, true, now);
    else
        job->host->wake(job->host->ctx, ask->withdrawn_until);
    return true;
}

bool coll_rank_is_using(const struct coll_rank *rank, uint64_t from)
{
    UT_LIST_EACH(&rank->job->tags, struct coll_tag, link, tag)
    {
        UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
        {
            const struct coll_ask *ask = op->ask[rank->number];
            uint64_t bytes = ask && !ask->withdrawn ? coll_cmd_bytes(&ask->cmd) : 0;
            if (bytes && ask->cmd.offset + bytes > from)
                return true;
        }
    }
    return false;
}

/* ---- ranks that go ---- */

void coll_rank_forget_withdrawn(struct coll_rank *rank)
{
    UT_LIST_EACH(&rank->job->tags, struct coll_tag, link, tag)
    {
        UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
        {
            struct coll_ask *ask = op->ask[rank->number];
            if (ask && ask->withdrawn)
                coll_ask_free(ask);
        }
    }
}

static bool is_about_to_start(const struct coll_operation *op)
{
    return op->state == COLL_AGREE || op->state == COLL_READY;
}

static void take_back_from(struct coll_operation *op, struct coll_rank *rank, const struct coll_why *why,
                           uint64_t now)
{
    struct coll_ask *ask = op->ask[rank->number];
    if (!ask || op->state == COLL_RUNNING)
        return;
    op->asked--;
    if (is_about_to_start(op))
        op->member_count--;
    coll_ask_answer(ask, why, now);
}

/* An operation that cannot start without the rank that went. */
static struct coll_operation *find_crippled(const struct coll_tag *tag)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if (is_about_to_start(op) &&
            (!op->asked || (op->cmd.kind == COLL_BROADCAST && !op->ask[op->cmd.root])))
            return op;
    }
    return NULL;
}

void coll_rank_take_back(struct coll_rank *rank, const struct coll_why *why, uint64_t now)
{
    struct coll_job *job = rank->job;
    coll_rank_forget_withdrawn(rank);
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
        {
            take_back_from(op, rank, why, now);
        }
    }
    UT_LIST_EACH(&job->active, struct coll_operation, active, op)
    {
        op->blockers = coll_op_count_blockers(op);
    }
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        for (struct coll_operation *op; (op = find_crippled(tag));)
            coll_op_fail(op, why, now);
        UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
        {
            if (is_about_to_start(op) && !coll_op_has_local(op))
                coll_op_pass_by(op);
        }
    }
}

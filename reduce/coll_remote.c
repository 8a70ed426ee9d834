#include "reduce/coll_remote.h"

#include "reduce/coll_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define GAP_MAX 8192u /* numbers of a job that other nodes have passed over without a word */
#define ASKING_MAX (2 * COLL_DEPTH_MAX) /* requests of a rank at once; more is no queue but a flood */
#define NUMBER_MAX (UINT64_MAX / 2)     /* no job counts so far: whoever says so lies */

/* ---- who is in ---- */

static void set_conflict(struct coll_job *job, const struct coll_rank *rank, unsigned node)
{
    if (job->conflict.result)
        return; /* one is enough to refuse everything */
    job->conflict = (struct coll_why){.result = -EEXIST};
    job->taken_twice = rank->number;
    ut_err_set(&job->conflict.err, 0, "rank %u is taken twice: by node %u (pid %d) and by node %u",
               rank->number, rank->node, (int)rank->pid, node);
}

static bool is_taken_elsewhere(const struct coll_rank *rank, unsigned node)
{
    return rank->node != node && coll_rank_is_held(rank);
}

static void fail_lost(struct coll_rank *rank, int rc, const char *how, uint64_t now)
{
    struct coll_job *job = rank->job;
    struct coll_why why = {.result = rc};
    char host[COLL_HOST_BYTES];
    job->lost++;
    rank->state = COLL_LOST;
    rank->lost_rc = rc;
    coll_rank_say(rank, "warn", how);
    snprintf(why.missing, sizeof(why.missing), "%u", rank->number);
    coll_rank_forget_withdrawn(rank);
    ut_err_set(&why.err, 0, "rank %u on node %u %s (%spid %d, last operation %" PRIu64 ")", rank->number,
               rank->node, how, coll_rank_host(rank, host), (int)rank->pid, rank->last_seq);
    coll_job_fail_pending(job, &why, now);
}

/* What was heard may be older than what we have seen of the same join ourselves. */
static void take_last_seq(struct coll_rank *rank, unsigned node, const struct coll_remote *remote)
{
    bool is_same = rank->node == node && rank->incarnation == remote->incarnation;
    if (!is_same || rank->last_seq < remote->last_seq)
        rank->last_seq = remote->last_seq;
}

/* The rank is in, on that node: new, or again. */
static void enter(struct coll_rank *rank, unsigned node, const struct coll_remote *remote)
{
    struct coll_job *job = rank->job;
    bool was_in = coll_rank_is_counting(rank);
    if (rank->state == COLL_DROPPED) {
        job->dropped--;
        job->epoch++;
    }
    job->lost -= rank->state == COLL_LOST;
    take_last_seq(rank, node, remote);
    rank->node = node;
    rank->incarnation = remote->incarnation;
    if (rank->dropped == rank->incarnation)
        rank->dropped = 0;
    rank->pid = remote->pid;
    rank->state = remote->state == COLL_PRESENT ? COLL_PRESENT : COLL_JOINED;
    if (was_in)
        return;
    coll_rank_start_counting(rank);
    coll_rank_say(rank, "info", "is in");
}

static void take_rank(struct coll_job *job, unsigned node, const struct coll_remote *remote, uint64_t now)
{
    struct coll_rank *rank = &job->ranks[remote->number];
    bool is_old = rank->dropped && rank->dropped == remote->incarnation &&
                  coll_job_member_count(job); /* none: a lower node has dropped us all, and goes on */
    if (is_old)
        return; /* dropped, which its node will hear; somebody else may have joined in its place */
    if (is_taken_elsewhere(rank, node)) {
        set_conflict(job, rank, node);
        return;
    }
    if (rank->asking > (rank->node == node ? ASKING_MAX : 0))
        return; /* an operation from before still runs */
    if (remote->state != COLL_LOST) {
        enter(rank, node, remote);
        return;
    }
    bool was_in = coll_rank_is_counting(rank);
    if (!was_in && rank->state != COLL_LOST)
        enter(rank, node, remote);
    rank->pid = remote->pid;
    take_last_seq(rank, node, remote);
    if (rank->state != COLL_LOST)
        fail_lost(rank, -ECONNRESET, "is lost: its process ended", now);
    rank->lost_rc = -ECONNRESET;
}

static bool is_listed(const struct coll_remote *ranks, unsigned count, unsigned number)
{
    for (unsigned i = 0; i < count; i++) {
        if (ranks[i].number == number)
            return true;
    }
    return false;
}

/* Ranks that the node no longer lists have left it. */
static void leave_unlisted(struct coll_job *job, unsigned node, const struct coll_remote *ranks,
                           unsigned count, uint64_t now)
{
    struct coll_why left = {.result = -ECONNRESET};
    for (unsigned r = 0; r < job->config.world; r++) {
        struct coll_rank *rank = &job->ranks[r];
        bool is_in = coll_rank_is_counting(rank) || rank->state == COLL_LOST;
        if (!is_in || rank->node != node || is_listed(ranks, count, r))
            continue;
        ut_err_set(&left.err, 0, "rank %u left the job on node %u", r, node);
        coll_rank_take_back(rank, &left, now);
        job->lost -= rank->state == COLL_LOST;
        rank->state = COLL_ABSENT;
        coll_rank_say(rank, "info", "left");
    }
}

static void begin(struct coll_job *job)
{
    job->hearing = true;
}

static void end(struct coll_job *job)
{
    job->hearing = false;
}

/* The time that a job lingers begins when its last participant goes, on whichever node. */
static void linger(struct coll_job *job, bool took_part, uint64_t now)
{
    if (took_part && !coll_job_has_remote_participant(job))
        coll_job_touch(job, now);
}

void coll_remote_ranks(struct coll_job *job, unsigned node, const struct coll_remote *ranks, unsigned count,
                       uint64_t now)
{
    if (!job->config.world || node == job->node || coll_job_make_ranks(job))
        return;
    bool took_part = coll_job_has_remote_participant(job);
    begin(job);
    leave_unlisted(job, node, ranks, count, now);
    for (unsigned i = 0; i < count; i++) {
        if (ranks[i].number < job->config.world)
            take_rank(job, node, &ranks[i], now);
    }
    linger(job, took_part, now);
    coll_job_recount(job, now);
    end(job);
    coll_job_tick(job, now);
}

bool coll_remote_drop(struct coll_job *job, unsigned node, unsigned number, uint32_t incarnation,
                      uint64_t now)
{
    if (!job->ranks || number >= job->config.world)
        return false;
    struct coll_rank *rank = &job->ranks[number];
    if (rank->state == COLL_DROPPED || rank->incarnation != incarnation)
        return false;
    if (coll_job_member_count(job) < 2 && node > job->node)
        return false; /* we have dropped each other: the lower node goes on, the other comes back to it */
    begin(job);
    coll_rank_drop(rank, now);
    job->epoch++;
    coll_job_recount(job, now);
    end(job);
    if (coll_rank_is_local(rank))
        coll_job_tell(job); /* who has dropped it knows; to the others, and to meet again, it is news */
    return true;
}

/* ---- numbers ---- */

uint64_t coll_tag_floor(const struct coll_tag *tag)
{
    return coll_tag_join_number(tag) - 1;
}

/* An operation that gathers at a number another node is past: it can never be complete. */
static struct coll_operation *find_passed(const struct coll_tag *tag, uint64_t floor)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if (op->state == COLL_GATHER && op->seq <= floor)
            return op;
    }
    return NULL;
}

static bool all_gather(const struct coll_tag *tag)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if (op->state != COLL_GATHER)
            return false;
    }
    return true;
}

/* Ranks of ours that came before we knew of others go on behind the numbers of those. */
static void move_behind(struct coll_tag *tag, uint64_t floor)
{
    uint64_t first = tag->top + 1;
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        first = op->seq < first ? op->seq : first;
    }
    uint64_t by = floor + 1 - first;
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, moved)
    {
        moved->seq += by;
    }
    for (unsigned r = 0; r < tag->job->config.world; r++)
        tag->rank_next[r] += by;
    tag->top += by;
}

void coll_remote_floor(struct coll_job *job, const char *name, uint64_t floor, bool is_unknown, uint64_t now)
{
    int rc;
    struct coll_tag *tag = job->ranks && floor <= NUMBER_MAX ? coll_tag_get(job, name, &rc) : NULL;
    if (!tag || floor <= coll_tag_floor(tag))
        return;
    if (is_unknown && all_gather(tag)) {
        move_behind(tag, floor);
        return;
    }
    struct coll_why why = {.result = -ECANCELED};
    ut_err_set(&why.err, 0, "another node, which was not known yet, is already at operation %" PRIu64, floor);
    for (struct coll_operation *op; (op = find_passed(tag, floor));) {
        coll_op_fail(op, &why, now);
    }
    for (unsigned r = 0; r < job->config.world; r++) {
        if (tag->rank_next[r] <= floor)
            tag->rank_next[r] = floor + 1;
    }
    if (tag->top < floor)
        tag->top = floor;
    coll_tag_forget_passed(tag);
}

/* ---- asking ---- */

static struct coll_rank *rank_of(struct coll_job *job, unsigned node, unsigned number)
{
    if (!job->ranks || number >= job->config.world)
        return NULL;
    struct coll_rank *rank = &job->ranks[number];
    return coll_rank_is_counting(rank) && rank->node == node ? rank : NULL;
}

static uint64_t count_unasked(const struct coll_job *job)
{
    uint64_t count = 0;
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
        {
            count += op->state == COLL_GATHER && !op->requests;
        }
    }
    return count;
}

/* Each number in a gap costs an operation; there are few of them between nodes that mean well. */
static bool is_too_far(const struct coll_tag *tag, uint64_t seq)
{
    uint64_t gap = seq - tag->top - 1;
    return gap && (gap > GAP_MAX || gap + count_unasked(tag->job) > GAP_MAX);
}

/* The operation of that number; those before it that nobody has asked for here are made as well, so that a
 * tag's numbers have no gap. */
static struct coll_operation *find_or_create(struct coll_tag *tag, uint64_t seq, uint64_t now)
{
    if (seq <= tag->top)
        return coll_tag_find(tag, seq);
    if (is_too_far(tag, seq))
        return NULL;
    struct coll_operation *op = NULL;
    while (tag->top < seq) {
        op = coll_op_create(tag, now);
        if (!op)
            return NULL;
    }
    return op;
}

static bool is_cut_off(const struct coll_job *job)
{
    for (unsigned r = 0; job->lost && r < job->config.world; r++) {
        if (job->ranks[r].state == COLL_LOST && job->ranks[r].lost_rc == -ENOLINK)
            return true;
    }
    return false;
}

/* Who asks may reach both ends of a link that is down and know nothing of it: the ends say so. */
static int fail_cut_off(struct coll_operation *op, const struct coll_cmd *cmd, uint64_t now)
{
    struct coll_why why;
    coll_job_refuse_lost(op->job, &why);
    if (!op->asked)
        op->cmd = *cmd;
    coll_op_fail(op, &why, now);
    return 0;
}

static int add_ask(struct coll_operation *op, struct coll_rank *rank, const struct coll_remote_ask *asked,
                   uint64_t now)
{
    struct coll_ask *ask = op->ask[rank->number];
    if (ask && !ask->withdrawn)
        return 0; /* told twice */
    if (ask) {
        ask->withdrawn = false;
        rank->job->withdrawn--;
    } else {
        if (!op->requests)
            op->t_first = now;
        ask = coll_ask_create(op, rank);
        if (!ask)
            return -ENOMEM;
        ask->t_arrive = now;
    }
    ask->cmd = asked->cmd;
    ask->pid = asked->pid;
    ask->crosses = asked->crosses;
    coll_ask_arrive(ask, now);
    return 0;
}

/* A request for an operation that is there, or (NULL) is not any more. */
static int take_ask(struct coll_operation *op, struct coll_rank *rank, const struct coll_remote_ask *asked,
                    uint64_t now)
{
    if (!op || op->state == COLL_FAILED)
        return -ESTALE;
    if (op->state != COLL_GATHER && asked->crosses)
        coll_op_repeat_turn(op);
    if (op->state != COLL_GATHER)
        return 0;
    if (rank->job->joined && is_cut_off(rank->job))
        return fail_cut_off(op, &asked->cmd, now);
    return add_ask(op, rank, asked, now);
}

/* How the operation (NULL: it is not kept any more) has ended. -ESTALE, for the caller to return. */
static int say_over(const struct coll_job *job, const struct coll_operation *op, uint64_t seq,
                    struct coll_why *why)
{
    *why = (struct coll_why){.result = -ESTALE};
    ut_err_set(&why->err, 0, "operation %" PRIu64 " is over on node %u", seq, job->node);
    if (op && op->state == COLL_FAILED)
        *why = op->why;
    return -ESTALE;
}

int coll_remote_ask(struct coll_job *job, unsigned node, const struct coll_remote_ask *asked, uint64_t now,
                    struct coll_why *why)
{
    const struct coll_cmd *cmd = &asked->cmd;
    unsigned number = asked->number;
    uint64_t seq = asked->seq;
    struct coll_rank *rank = cmd->root < job->config.world ? rank_of(job, node, number) : NULL;
    int rc;
    struct coll_tag *tag = rank ? coll_tag_get(job, cmd->tag, &rc) : NULL;
    if (!rank)
        return 0; /* lost or dropped here: its node hears that */
    if (!tag || rank->asking >= ASKING_MAX)
        return say_over(job, NULL, seq, why);
    uint64_t *next = &tag->rank_next[number];
    struct coll_operation *op = find_or_create(tag, seq, now);
    if (seq > tag->top)
        return say_over(job, NULL, seq, why); /* further ahead than can be, or no memory */
    bool jumped = seq > *next;
    if (op && op->state == COLL_GATHER && !op->ask[number] && *next > seq)
        op->excused--; /* it was thought to have joined behind this number */
    if (*next <= seq)
        *next = seq + 1;
    begin(job);
    rc = take_ask(op, rank, asked, now);
    if (rc == -ESTALE)
        say_over(job, op, seq, why); /* while it is there: it may have waited for this rank only */
    if (jumped)
        coll_job_recount(job, now);
    coll_tag_forget_passed(tag);
    end(job);
    return rc;
}

void coll_remote_withdraw(struct coll_job *job, unsigned node, unsigned number, const char *name,
                          uint64_t seq, bool dying, uint64_t now)
{
    struct coll_rank *rank = rank_of(job, node, number);
    int rc;
    struct coll_tag *tag = rank ? coll_tag_get(job, name, &rc) : NULL;
    struct coll_operation *op = tag ? coll_tag_find(tag, seq) : NULL;
    struct coll_ask *ask = op ? op->ask[number] : NULL;
    if (!ask || ask->withdrawn)
        return;
    begin(job);
    coll_ask_interrupt(ask, dying, now);
    end(job);
}

/* ---- failing ---- */

/* Whether a member of the operation (NULL: nobody has asked for it), or one that has yet to ask, is on that
 * node. */
static bool takes_part(const struct coll_job *job, const struct coll_operation *op, unsigned node)
{
    bool gathers = !op || op->state == COLL_GATHER;
    for (unsigned r = 0; r < job->config.world; r++) {
        const struct coll_rank *rank = &job->ranks[r];
        bool may_ask = gathers && rank->state != COLL_ABSENT && rank->state != COLL_DROPPED;
        if (rank->node == node && (may_ask || (op && op->ask[r])))
            return true;
    }
    return false;
}

void coll_remote_fail(struct coll_job *job, unsigned node, const struct coll_cmd *cmd, uint64_t seq,
                      const struct coll_why *why, uint64_t now)
{
    int rc;
    bool is_sound = job->ranks && cmd->root < job->config.world;
    struct coll_tag *tag = is_sound ? coll_tag_get(job, cmd->tag, &rc) : NULL;
    if (!tag || !takes_part(job, coll_tag_find(tag, seq), node))
        return; /* it goes on without that node, whose ranks were dropped and have not heard of it yet */
    if (why->result == -ENOLINK) {
        job->cut = *why;
        job->cut_until = now + COLL_CUT_NS;
    }
    struct coll_operation *op = find_or_create(tag, seq, now);
    if (!op || op->state == COLL_FAILED)
        return;
    op->heard = true;
    begin(job);
    if (op->state == COLL_RUNNING) {
        job->host->abort(job->host->ctx, op, why);
    } else {
        if (!op->asked)
            op->cmd = *cmd;
        coll_op_fail(op, why, now);
    }
    end(job);
}

void coll_remote_node_lost(struct coll_job *job, unsigned node, int rc, const char *reason, uint64_t now)
{
    char how[256];
    if (!job->ranks)
        return;
    if (rc == -ENOLINK)
        snprintf(how, sizeof(how), "is out of reach: the " COLL_LINK " is down (%.96s)",
                 COLL_LINK_ENDS(job->node, node), reason);
    else
        snprintf(how, sizeof(how), "is out of reach: its node is down (%.96s)", reason);
    bool took_part = coll_job_has_remote_participant(job);
    begin(job);
    for (unsigned r = 0; r < job->config.world; r++) {
        struct coll_rank *rank = &job->ranks[r];
        if (rank->state == COLL_LOST && rank->node == node)
            rank->lost_rc = rc; /* its process was lost before; now its node is */
        if (coll_rank_is_counting(rank) && rank->node == node)
            fail_lost(rank, rc, how, now);
    }
    linger(job, took_part, now);
    coll_job_recount(job, now);
    end(job);
}

uint32_t coll_op_members_sum(const struct coll_operation *op)
{
    uint32_t sum = 2166136261u; /* FNV-1a */
    for (unsigned r = 0; r < op->job->config.world; r++) {
        const struct coll_ask *ask = op->ask[r];
        const uint32_t is_in[] = {r, ask ? ask->rank->node : 0, ask ? ask->rank->incarnation : 0};
        for (unsigned i = 0; ask && i < 3; i++)
            sum = (sum ^ is_in[i]) * 16777619u;
    }
    return sum;
}

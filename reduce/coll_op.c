/*
 * Operations: from the last rank that asks to the answer. The diagram and the invariants are in coll_job.h.
 */
#include "reduce/coll_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory: operations are kept for reuse ---- */

static size_t op_bytes(const struct coll_job *job)
{
    return sizeof(struct coll_operation) + job->config.world * sizeof(struct coll_ask *);
}

struct coll_operation *coll_op_create(struct coll_tag *tag, uint64_t now)
{
    struct coll_job *job = tag->job;
    struct coll_operation *op = job->free_ops;
    if (op)
        job->free_ops = op->host;
    else
        op = malloc(op_bytes(job));
    if (!op)
        return NULL;
    memset(op, 0, op_bytes(job));
    op->job = job;
    op->tag = tag;
    op->seq = ++tag->top;
    op->t_first = now;
    ut_list_init(&op->active);
    ut_list_init(&op->turn);
    ut_list_append(&tag->ops, &op->link);
    return op;
}

void coll_op_free(struct coll_operation *op)
{
    struct coll_job *job = op->job;
    job->failed_count -= op->state == COLL_FAILED;
    ut_list_remove(&op->link);
    ut_list_remove(&op->active);
    ut_list_remove(&op->turn);
    op->host = job->free_ops;
    job->free_ops = op;
}

void coll_pool_free(struct coll_job *job)
{
    for (struct coll_operation *op = job->free_ops, *next; op; op = next) {
        next = op->host;
        free(op);
    }
    for (struct coll_ask *ask = job->free_asks, *next; ask; ask = next) {
        next = ask->next_free;
        free(ask);
    }
    job->free_ops = NULL;
    job->free_asks = NULL;
}

/* ---- which operations stand in each other's way ---- */

static bool ranges_overlap(const struct coll_cmd *a, const struct coll_cmd *b)
{
    uint64_t a_bytes = coll_cmd_bytes(a), b_bytes = coll_cmd_bytes(b);
    return a_bytes && b_bytes && a->offset < b->offset + b_bytes && b->offset < a->offset + a_bytes;
}

/* The bytes between the lowest and the highest that any rank of this node gives to the operation; the others'
 * are their nodes' affair. */
static void measure_span(struct coll_operation *op)
{
    op->span_begin = UINT64_MAX;
    op->span_end = 0;
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (!op->ask[r] || !coll_rank_is_local(op->ask[r]->rank))
            continue;
        uint64_t begin = op->ask[r]->cmd.offset, end = begin + coll_cmd_bytes(&op->cmd);
        op->span_begin = begin < op->span_begin ? begin : op->span_begin;
        op->span_end = end > op->span_end ? end : op->span_end;
    }
}

static bool ops_overlap(const struct coll_operation *a, const struct coll_operation *b)
{
    if (a->span_begin >= b->span_end || b->span_begin >= a->span_end)
        return false; /* on no rank, without looking at each */
    for (unsigned r = 0; r < a->job->config.world; r++) {
        if (a->ask[r] && b->ask[r] && coll_rank_is_local(a->ask[r]->rank) &&
            ranges_overlap(&a->ask[r]->cmd, &b->ask[r]->cmd))
            return true;
    }
    return false;
}

unsigned coll_op_count_blockers(const struct coll_operation *op)
{
    unsigned count = 0;
    UT_LIST_EACH(&op->job->active, struct coll_operation, active, older)
    {
        if (older == op)
            break;
        count += ops_overlap(older, op);
    }
    return count;
}

static void activate(struct coll_operation *op)
{
    measure_span(op);
    op->blockers = coll_op_count_blockers(op);
    ut_list_append(&op->job->active, &op->active);
}

/* Since when it has waited in vain for what the older one, which ends, has waited for in vain. */
static uint64_t vain_since(const struct coll_operation *younger, const struct coll_operation *older)
{
    if (older->state != COLL_RUNNING || older->why.result != -ETIMEDOUT)
        return 0;
    return older->t_moved > younger->t_last ? older->t_moved : younger->t_last;
}

/* The operation, with its requests still there, is out of the way of younger ones. */
static void deactivate(struct coll_operation *op)
{
    struct ut_list *end = &op->job->active;
    for (struct ut_list *node = op->active.next; node != end; node = node->next) {
        struct coll_operation *younger = UT_CONTAINER(node, struct coll_operation, active);
        if (!ops_overlap(op, younger))
            continue;
        younger->blockers--;
        younger->vain_since = vain_since(younger, op);
    }
    ut_list_remove(&op->active);
}

/* ---- the end ---- */

/* Answers all who ask and have not withdrawn. */
static void answer_all(struct coll_operation *op, const struct coll_why *why, uint64_t now)
{
    for (unsigned r = 0; op->asked && r < op->job->config.world; r++) {
        if (!op->ask[r] || op->ask[r]->withdrawn)
            continue;
        op->asked--;
        coll_ask_answer(op->ask[r], why, now);
    }
}

static void record(struct coll_operation *op, int result, uint64_t now)
{
    struct coll_done done = {.cmd = op->cmd,
                             .seq = op->seq,
                             .result = result,
                             .last_rank = op->last_rank,
                             .t_first = op->t_first,
                             .t_last = op->t_last,
                             .t_start = op->t_start,
                             .t_end = now,
                             .phases = op->phases};
    coll_stats_op(&op->job->stats, &done, op->member_count);
}

/* Keeps the failure for stats, and tells the operator and the other nodes. */
static void tell_failure(const struct coll_operation *op)
{
    const struct coll_why *why = &op->why;
    char what[128], text[768];
    op->job->failed_seq = op->seq;
    op->job->failed_why = *why;
    coll_cmd_describe(&op->cmd, what, sizeof(what));
    snprintf(text, sizeof(text), "operation %" PRIu64 "%s%s (%s) failed with %s%s%s: %s", op->seq,
             op->tag->name[0] ? " tag " : "", op->tag->name, what, ut_err_name(why->result),
             why->missing[0] ? " missing=" : "", why->missing, why->err.text);
    op->job->host->event(op->job->host->ctx, op->job, "warn", text);
    if (op->job->host->failed && !op->heard && !op->job->quiet)
        op->job->host->failed(op->job->host->ctx, op);
}

void coll_op_fail(struct coll_operation *op, const struct coll_why *why, uint64_t now)
{
    struct coll_job *job = op->job;
    if (op->state == COLL_READY)
        deactivate(op);
    job->agreeing -= op->state == COLL_AGREE;
    if (!ut_list_empty(&op->turn)) {
        ut_list_remove(&op->turn);
        job->host->wake(job->host->ctx, now); /* others may come to their turn */
    }
    op->member_count = coll_job_member_count(job);
    op->why = *why;
    op->state = COLL_FAILED;
    job->failed_count++;
    record(op, why->result, now);
    tell_failure(op);
    answer_all(op, &op->why, now);
    coll_tag_forget_passed(op->tag);
    coll_job_touch(job, now);
}

/* The first operation that somebody asks for and that has not started. */
static struct coll_operation *find_pending(const struct coll_tag *tag)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if ((op->state == COLL_GATHER && op->requests) || op->state == COLL_AGREE || op->state == COLL_READY)
            return op;
    }
    return NULL;
}

void coll_job_fail_pending(struct coll_job *job, const struct coll_why *why, uint64_t now)
{
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        for (struct coll_operation *op; (op = find_pending(tag));)
            coll_op_fail(op, why, now);
    }
}

/* ---- starting and finishing ---- */

static struct coll_operation *next_to_start(const struct coll_job *job)
{
    UT_LIST_EACH(&job->active, struct coll_operation, active, op)
    {
        if (op->state == COLL_READY && !op->blockers)
            return op;
    }
    return NULL;
}

void coll_op_make_ready(struct coll_operation *op)
{
    op->job->agreeing -= op->state == COLL_AGREE;
    ut_list_remove(&op->turn);
    op->state = COLL_READY;
    activate(op);
}

/* run() may finish at once and so come back here: the flag keeps that flat. */
void coll_job_advance(struct coll_job *job, uint64_t now)
{
    if (job->advancing)
        return;
    job->advancing = true;
    coll_job_take_turns(job);
    for (struct coll_operation *op; (op = next_to_start(job));) {
        op->state = COLL_RUNNING;
        op->t_start = now;
        job->host->run(job->host->ctx, op);
    }
    job->advancing = false;
}

static bool is_complete(const struct coll_operation *op)
{
    return op->state == COLL_GATHER && op->asked && op->asked + op->excused >= coll_job_member_count(op->job);
}

static void fail_rootless(struct coll_operation *op, uint64_t now)
{
    struct coll_why why = {.result = -ESTALE};
    ut_err_set(&why.err, 0, "rank %u, the root, takes no part in it: it was dropped or has joined later",
               op->cmd.root);
    coll_op_fail(op, &why, now);
}

bool coll_op_has_local(const struct coll_operation *op)
{
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (op->ask[r] && coll_rank_is_local(op->ask[r]->rank))
            return true;
    }
    return false;
}

void coll_op_pass_by(struct coll_operation *op)
{
    op->job->agreeing -= op->state == COLL_AGREE;
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (!op->ask[r])
            continue;
        op->ask[r]->rank->asking -= !op->ask[r]->withdrawn;
        coll_ask_free(op->ask[r]);
    }
    coll_op_free(op);
}

static void wait_for_turn(struct coll_operation *op)
{
    struct coll_job *job = op->job;
    op->state = COLL_AGREE;
    job->agreeing++;
    job->host->wake(job->host->ctx, coll_op_deadline(op));
}

void coll_op_check_complete(struct coll_operation *op, uint64_t now)
{
    if (!is_complete(op))
        return;
    if (op->cmd.kind == COLL_BROADCAST && !op->ask[op->cmd.root]) {
        fail_rootless(op, now);
        return;
    }
    if (op->tag->done_top < op->seq)
        op->tag->done_top = op->seq;
    if (!coll_op_has_local(op)) {
        coll_op_pass_by(op);
        return;
    }
    op->member_count = op->asked;
    op->t_last = now;
    if (coll_op_needs_turn(op))
        wait_for_turn(op);
    else
        coll_op_make_ready(op);
    coll_job_advance(op->job, now);
}

static void count_lateness(struct coll_operation *op)
{
    struct coll_rank *ranks = op->job->ranks;
    ranks[op->last_rank].late.arrived_last++;
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (!op->ask[r])
            continue;
        struct coll_late *late = &ranks[r].late;
        uint64_t ns = op->ask[r]->t_arrive > op->t_first ? op->ask[r]->t_arrive - op->t_first : 0;
        late->late_sum_ns += ns;
        if (ns > late->late_max_ns)
            late->late_max_ns = ns;
    }
}

void coll_op_finish(struct coll_operation *op, int result, const char *text, uint64_t now)
{
    struct coll_job *job = op->job;
    struct coll_tag *tag = op->tag;
    op->why.result = result;
    if (result) {
        op->why.undefined = op->moved;
        ut_err_set(&op->why.err, result, "%s", text);
        tell_failure(op);
    }
    if (op->member_count > 1)
        count_lateness(op);
    record(op, result, now);
    deactivate(op);
    answer_all(op, &op->why, now);
    coll_op_free(op);
    coll_tag_forget_passed(tag);
    coll_job_touch(job, now);
    coll_job_advance(job, now);
}

void coll_op_members(const struct coll_operation *op, struct coll_ask **out)
{
    unsigned n = 0;
    for (unsigned r = 0; r < op->job->config.world && n < op->member_count; r++) {
        if (op->ask[r])
            out[n++] = op->ask[r];
    }
}

/* ---- changes of who takes part ---- */

static void count_excused(struct coll_operation *op)
{
    op->excused = 0;
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (coll_rank_is_counting(&op->job->ranks[r]) && !op->ask[r] && op->tag->rank_next[r] > op->seq)
            op->excused++;
    }
}

static struct coll_operation *find_complete(const struct coll_tag *tag)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if (is_complete(op))
            return op;
    }
    return NULL;
}

static void recount_tag(struct coll_tag *tag, uint64_t now)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if (op->state == COLL_GATHER)
            count_excused(op);
    }
    for (struct coll_operation *op; (op = find_complete(tag));)
        coll_op_check_complete(op, now);
    coll_tag_forget_passed(tag);
}

void coll_job_recount(struct coll_job *job, uint64_t now)
{
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        recount_tag(tag, now);
    }
    coll_job_advance(job, now);
}

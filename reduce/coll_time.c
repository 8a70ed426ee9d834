/*
 * What runs out: the time of operations that gather, and the patience with requests that were interrupted.
 */
#include "reduce/coll_internal.h"

#include "utils/ut_clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool is_limited(const struct coll_job *job)
{
    return job->wait_limit_ns && job->wait_limit_ns < job->config.timeout_ns;
}

static uint64_t wait_ns(const struct coll_operation *op)
{
    const struct coll_job *job = op->job;
    return is_limited(job) ? job->wait_limit_ns : job->config.timeout_ns;
}

/* When the kernel's patience ends with the first of our ranks whose write waits; UINT64_MAX: never. */
static uint64_t kernel_deadline(const struct coll_operation *op)
{
    uint64_t limit = op->job->wait_limit_ns, end = UINT64_MAX;
    for (unsigned r = 0; limit && r < op->job->config.world; r++) {
        const struct coll_ask *ask = op->ask[r];
        if (ask && ask->t_parked && ask->t_parked + limit < end)
            end = ask->t_parked + limit;
    }
    return end;
}

uint64_t coll_op_end_of_wait(const struct coll_operation *op, uint64_t since)
{
    uint64_t end = since + wait_ns(op), kernel = kernel_deadline(op);
    return end < kernel ? end : kernel;
}

uint64_t coll_op_deadline(const struct coll_operation *op)
{
    if (op->state == COLL_READY)
        return kernel_deadline(op);
    return coll_op_end_of_wait(op, op->state == COLL_AGREE ? op->t_last : op->t_first);
}

/* ---- the sentence of a timeout ---- */

/* Adds "1" to the list of those missing; a list that has no room for all ends in "...". */
static void list_missing(struct coll_why *why, unsigned number)
{
    size_t used = strlen(why->missing), room = sizeof(why->missing) - used;
    if (used && why->missing[used - 1] == '.')
        return;
    if (room > 10)
        snprintf(why->missing + used, room, "%s%u", used ? "," : "", number);
    else
        snprintf(why->missing + used, room, ",...");
}

/* Adds "rank 1 (node 0, host a, pid 7, last operation 11)" to the sentence. False when there is no room for
 * it. */
static bool say_missing(struct coll_why *why, const struct coll_rank *rank)
{
    enum { REST_BYTES = 96 }; /* for what fail_timeout adds */
    char who[144], host[COLL_HOST_BYTES];
    size_t used = strlen(why->err.text);
    int len = rank->state == COLL_ABSENT
                  ? snprintf(who, sizeof(who), "%srank %u (has %s)", used ? ", " : "", rank->number,
                             rank->incarnation ? "left" : "not joined")
                  : snprintf(who, sizeof(who), "%srank %u (node %u, %spid %d, last operation %" PRIu64 ")",
                             used ? ", " : "", rank->number, rank->node, coll_rank_host(rank, host),
                             (int)rank->pid, rank->last_seq);
    if (used + (size_t)len + REST_BYTES > sizeof(why->err.text))
        return false;
    memcpy(why->err.text + used, who, (size_t)len + 1);
    return true;
}

static bool is_missing(const struct coll_operation *op, const struct coll_rank *rank)
{
    const struct coll_ask *ask = op->ask[rank->number];
    bool excused = !ask && coll_rank_is_counting(rank) && op->tag->rank_next[rank->number] > op->seq;
    return coll_rank_is_member(rank) && (!ask || ask->withdrawn) && !excused;
}

static void fail_timeout(struct coll_operation *op, uint64_t now)
{
    const struct coll_job *job = op->job;
    struct coll_why why = {.result = -ETIMEDOUT};
    unsigned more = 0;
    char and_more[24] = "";
    for (unsigned r = 0; r < job->config.world; r++) {
        if (!is_missing(op, &job->ranks[r]))
            continue;
        list_missing(&why, r);
        more += more || !say_missing(&why, &job->ranks[r]);
    }
    if (more)
        snprintf(and_more, sizeof(and_more), " and %u more", more);
    size_t said = strlen(why.err.text);
    snprintf(why.err.text + said, sizeof(why.err.text) - said, "%s did not come within %.3f s%s", and_more,
             (double)(now - op->t_first) / (double)UT_NS_PER_S,
             is_limited(job) ? " (the kernel's FUSE request timeout)" : "");
    coll_op_fail(op, &why, now);
}

static void fail_blocked(struct coll_operation *op, uint64_t now)
{
    struct coll_why why = {.result = -ETIMEDOUT};
    ut_err_set(&why.err, 0,
               "an earlier operation on the same memory is not over, and the kernel's FUSE request timeout "
               "is near");
    coll_op_fail(op, &why, now);
}

/* ---- the clock ---- */

static void earlier(uint64_t *next, uint64_t when)
{
    if (when < *next)
        *next = when;
}

/* The withdrawn request of this operation whose time is over; *next: when the others' is. */
static struct coll_ask *find_given_up(const struct coll_operation *op, uint64_t now, uint64_t *next)
{
    for (unsigned r = 0; op->requests > op->asked && r < op->job->config.world; r++) {
        struct coll_ask *ask = op->ask[r];
        if (!ask || !ask->withdrawn)
            continue;
        if (ask->withdrawn_until > now)
            earlier(next, ask->withdrawn_until);
        else if (op->asked || !coll_ask_hangs_on_later(ask))
            return ask;
    }
    return NULL;
}

/* Ends one operation, or one interrupted request, whose time is over. False when there is none. */
static bool tick_one(struct coll_tag *tag, uint64_t now, uint64_t *next)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if (op->state == COLL_RUNNING)
            continue;
        if (coll_op_is_turn_late(op, now))
            return coll_op_fail_turn(op, now), true;
        if (op->state == COLL_READY && coll_op_deadline(op) <= now)
            return fail_blocked(op, now), true;
        if (op->asked && coll_op_deadline(op) <= now)
            return fail_timeout(op, now), true;
        struct coll_ask *gone = find_given_up(op, now, next);
        if (gone)
            return coll_ask_give_up(gone, false, now), true;
        if (op->asked)
            earlier(next, coll_op_deadline(op));
    }
    return false;
}

void coll_tag_tick(struct coll_tag *tag, uint64_t now, uint64_t *next)
{
    while (tick_one(tag, now, next)) {
    }
}

/*
 * A job in virtual time, with a host that remembers what it was told.
 */
#ifndef JOB_FIXTURE_H
#define JOB_FIXTURE_H

#include "reduce/coll_job.h"
#include "utils/ut_clock.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MS UT_NS_PER_MS
#define S UT_NS_PER_S
#define BUFFER_BYTES 4096u
#define PID(rank) ((pid_t)(1000 + (rank)))

/* One write to a trigger, and its answer. */
struct reply {
    struct coll_ask *ask; /* NULL: over */
    bool refused, answered;
    int result; /* 1: none yet */
    uint64_t seq, time_ns;
    struct coll_why why;
};

static struct {
    struct coll_job *job;
    struct coll_rank *rank[COLL_WORLD_MAX];
    uint64_t now, wake;
    bool ending; /* replies, locals of the test, may be gone */
    bool hold;   /* operations go on until finish(), instead of succeeding within run() */
    struct coll_operation *running[512];
    unsigned running_count, runs;
    unsigned suspect; /* node + 1; 0: none is */
    unsigned events;
    char event[1024]; /* the last one */
} fix;

static void fix_run(void *ctx, struct coll_operation *op)
{
    fix.runs++;
    if (fix.hold)
        fix.running[fix.running_count++] = op;
    else
        coll_op_finish(op, 0, NULL, fix.now);
}

static void fix_answer(void *ctx, struct coll_ask *ask, const struct coll_why *why, uint64_t now)
{
    struct reply *reply = ask->waiter;
    if (fix.ending)
        return;
    cr_assert(!reply->answered, "answered twice");
    cr_assert_eq(now, fix.now);
    reply->answered = true;
    reply->ask = NULL;
    reply->result = why->result;
    reply->seq = ask->op->seq;
    reply->time_ns = now - ask->t_arrive;
    reply->why = *why;
}

static void fix_event(void *ctx, const struct coll_job *job, const char *severity, const char *text)
{
    fix.events++;
    snprintf(fix.event, sizeof(fix.event), "%s: %s", severity, text);
}

static void fix_wake(void *ctx, uint64_t when)
{
    if (when < fix.wake)
        fix.wake = when;
}

static bool fix_is_suspect(void *ctx, unsigned node)
{
    return node + 1 == fix.suspect;
}

static const struct coll_host fix_host = {
    .run = fix_run, .answer = fix_answer, .event = fix_event, .wake = fix_wake, .suspect = fix_is_suspect};

static inline int configure(const char *text)
{
    return coll_job_configure(fix.job, text, strlen(text), fix.now, NULL);
}

static inline int join(unsigned r)
{
    return coll_rank_join(fix.job, r, 0, PID(r), fix.now, &fix.rank[r]);
}

/* A job of which all ranks have joined. */
static inline void make_job(unsigned world)
{
    char text[32];
    memset(&fix, 0, sizeof(fix));
    fix.now = 100 * S;
    fix.wake = UINT64_MAX;
    cr_assert_eq(coll_job_create("demo", &fix_host, 1 << 30, fix.now, &fix.job), 0);
    snprintf(text, sizeof(text), "world=%u", world);
    cr_assert_eq(configure(text), 0);
    for (unsigned r = 0; r < world; r++)
        cr_assert_eq(join(r), 0);
}

/* A write of `line` to the trigger of `kind` by rank r: the answer is in the reply, at once or later. */
static inline void ask_later(unsigned r, enum coll_kind kind, const char *line, struct reply *reply)
{
    struct coll_cmd cmd;
    struct coll_ask *out;
    *reply = (struct reply){.result = 1};
    int rc = coll_cmd_parse(kind, line, strlen(line), &fix.job->config, BUFFER_BYTES, &cmd, &reply->why.err);
    cr_assert_eq(rc, 0, "%s: %s", line, reply->why.err.text);
    rc = coll_rank_ask(fix.rank[r], &cmd, PID(r), reply, fix.now, &out, &reply->why);
    if (rc) {
        cr_assert(!out && !reply->answered && reply->why.result == rc && reply->why.err.text[0]);
        reply->refused = true;
        reply->result = rc;
    } else {
        cr_assert_eq(out == NULL, reply->answered);
        reply->ask = out;
        if (out)
            reply->seq = out->op->seq;
    }
    coll_job_check(fix.job);
}

#define write_to(r, kind, line, reply) ask_later(r, kind, line, &(reply))
#define allreduce(r, line, reply) write_to(r, COLL_ALLREDUCE, line, reply)
#define barrier(r, reply) write_to(r, COLL_BARRIER, "", reply)

/* Time passes, and the host ticks whenever it was asked to. */
static inline void pass(uint64_t ns)
{
    uint64_t then = fix.now + ns;
    while (fix.wake <= then) {
        fix.now = fix.wake > fix.now ? fix.wake : fix.now;
        fix.wake = UINT64_MAX;
        coll_job_tick(fix.job, fix.now);
        coll_job_check(fix.job);
    }
    fix.now = then;
}

/* The operation that has run longest is over. */
static inline void finish(int result)
{
    struct coll_operation *op = fix.running[0];
    cr_assert(fix.running_count > 0);
    memmove(fix.running, fix.running + 1, --fix.running_count * sizeof(fix.running[0]));
    coll_op_finish(op, result, result ? "memory was taken away" : NULL, fix.now);
    coll_job_check(fix.job);
}

static inline bool interrupt(struct reply *reply, bool dying)
{
    bool withdrawn = coll_ask_interrupt(reply->ask, dying, fix.now);
    coll_job_check(fix.job);
    return withdrawn;
}

static inline void promise(unsigned r)
{
    cr_assert_eq(coll_rank_promise(fix.rank[r], PID(r), fix.now), 0);
    coll_job_check(fix.job);
}

static inline void lose(unsigned r)
{
    promise(r);
    coll_rank_lost(fix.rank[r], PID(r), 1, fix.now);
    coll_job_check(fix.job);
}

static inline int drop(const char *text)
{
    int rc = coll_job_drop(fix.job, text, strlen(text), fix.now, NULL);
    coll_job_check(fix.job);
    return rc;
}

static inline void end_job(void)
{
    fix.ending = true;
    while (fix.running_count)
        finish(0);
    coll_job_destroy(fix.job, -ENODEV, fix.now);
}

/* One barrier that all ranks below world come to succeeds: their numbers are aligned. */
static inline void assert_aligned(unsigned world)
{
    static struct reply replies[COLL_WORLD_MAX];
    for (unsigned r = 0; r < world; r++)
        barrier(r, replies[r]);
    for (unsigned r = 0; r < world; r++) {
        cr_assert_eq(replies[r].result, 0, "rank %u: %d %s", r, replies[r].result, replies[r].why.err.text);
        cr_assert_eq(replies[r].seq, replies[0].seq);
    }
}

#define assert_says(text, part) cr_assert(strstr(text, part), "\"%s\" is not in \"%s\"", part, text)

#endif

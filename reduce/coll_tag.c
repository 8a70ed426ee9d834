/*
 * Tags: the sequences of operations, and the number at which each rank stands in them.
 */
#include "reduce/coll_internal.h"
#include "reduce/ring.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- by name ---- */

/* Starting such a tag again at 1 says the same: all ranks stand at the same number. */
static bool is_level(const struct coll_tag *tag)
{
    const struct coll_job *job = tag->job;
    if (!ut_list_empty(&tag->ops))
        return false;
    for (unsigned r = 0; r < job->config.world; r++) {
        if (coll_rank_is_counting(&job->ranks[r]) && tag->rank_next[r] != tag->top + 1)
            return false;
    }
    return true;
}

static void forget_one_tag(struct coll_job *job)
{
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        if (!tag->name[0] || !is_level(tag))
            continue;
        ut_list_remove(&tag->link);
        free(tag);
        job->tag_count--;
        return;
    }
}

static struct coll_tag *tag_create(struct coll_job *job, const char *name)
{
    struct coll_tag *tag = calloc(1, sizeof(*tag) + job->config.world * sizeof(tag->rank_next[0]));
    if (!tag)
        return NULL;
    tag->job = job;
    snprintf(tag->name, sizeof(tag->name), "%s", name);
    ut_list_init(&tag->ops);
    for (unsigned r = 0; r < job->config.world; r++)
        tag->rank_next[r] = 1;
    ut_list_append(&job->tags, &tag->link);
    job->tag_count++;
    return tag;
}

/* On the ring a tag is known by a number made of its name. */
static bool has_same_id(const struct coll_job *job, const char *name)
{
    uint64_t id = ring_id(name);
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        if (ring_id(tag->name) == id)
            return true;
    }
    return false;
}

struct coll_tag *coll_tag_get(struct coll_job *job, const char *name, int *rc)
{
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        if (strcmp(tag->name, name) == 0)
            return tag;
    }
    if (has_same_id(job, name)) {
        *rc = -EEXIST;
        return NULL;
    }
    if (job->tag_count >= COLL_TAGS_MAX && !job->host->asked)
        forget_one_tag(job); /* alone only: another node may still count in it */
    if (job->tag_count >= COLL_TAGS_MAX) {
        *rc = -ENOSPC;
        return NULL;
    }
    struct coll_tag *tag = tag_create(job, name);
    if (!tag)
        *rc = -ENOMEM;
    return tag;
}

/* ---- by number ---- */

uint64_t coll_tag_join_number(const struct coll_tag *tag)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if (op->state == COLL_GATHER && op->seq > tag->done_top)
            return op->seq;
    }
    return tag->top + 1;
}

struct coll_operation *coll_tag_find(const struct coll_tag *tag, uint64_t seq)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if (op->seq == seq)
            return op;
    }
    return NULL;
}

/* True when somebody has still to come to this number. */
static bool is_awaited(const struct coll_operation *op)
{
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (coll_rank_is_counting(&op->job->ranks[r]) && op->tag->rank_next[r] <= op->seq)
            return true;
    }
    return false;
}

static bool is_passed(const struct coll_operation *op)
{
    return (op->state == COLL_FAILED || op->state == COLL_GATHER) && !op->requests && !is_awaited(op);
}

/* The withdrawn requests that a failed operation still holds. */
static void free_requests(struct coll_operation *op)
{
    for (unsigned r = 0; op->requests && r < op->job->config.world; r++) {
        if (op->ask[r])
            coll_ask_free(op->ask[r]);
    }
}

static void forget_oldest_failure(struct coll_tag *tag)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if (op->state != COLL_FAILED)
            continue;
        free_requests(op);
        coll_op_free(op);
        return;
    }
}

void coll_tag_forget_passed(struct coll_tag *tag)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        if (!is_passed(op))
            break;
        coll_op_free(op);
    }
    if (tag->job->failed_count > COLL_FAILED_MAX)
        forget_oldest_failure(tag);
}

/* ---- all of them ---- */

static void tag_free(struct coll_tag *tag)
{
    UT_LIST_EACH(&tag->ops, struct coll_operation, link, op)
    {
        free_requests(op);
        coll_op_free(op);
    }
    ut_list_remove(&tag->link);
    free(tag);
}

void coll_tags_free(struct coll_job *job)
{
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        tag_free(tag);
    }
    job->tag_count = 0;
}

#include "fs/fs_rank.h"

#include "fs/fs_buffer.h"
#include "fs/fs_dispose.h"
#include "fs/fs_memory.h"
#include "fs/fs_process.h"
#include "fs/fs_text.h"
#include "fs/fs_trigger.h"
#include "utils/ut_clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- memory ---- */

static void free_buffer(struct fs_rank *rank)
{
    fs_dispose(rank->fs, rank->disposal, rank->job_tag, rank->buf);
    rank->disposal = NULL;
    rank->buf = NULL;
}

/* Frees the buffer, now or when nobody uses it any more. Workers that have its pages in hand are done soon:
 * who removes the rank waits for that. An operation may wait for other nodes. */
static void give_back(struct fs_rank *rank)
{
    if (!rank->running)
        free_buffer(rank);
    else if (rank->running == rank->tasks)
        rank->disposal = fs_dispose_plan(rank->fs, rank->job_tag);
}

static int make_buffer(struct fs_rank *rank)
{
    struct fs_job *job = rank->job;
    uint64_t bytes = job->coll->config.size_bytes;
    int rc = fs_memory_begin(job);
    if (!rc)
        rc = fs_memory_create(job, &rank->buf);
    if (!rc)
        rc = fs_memory_promise(rank, bytes);
    return !rc && bytes ? ntbm_buf_resize(rank->buf, bytes) : rc;
}

/* ---- the directory ---- */

static void show_status(void *of, struct ut_text *out)
{
    const struct fs_rank *rank = of;
    coll_rank_show_status(rank->coll, out);
}

static const struct fs_text status_text = {.render = show_status};

static int rmdir_rank(struct fs_node *dir)
{
    return fs_rank_leave(dir->object, ut_clock_ns());
}

static void free_dir(struct fs_node *dir)
{
    fs_rank_put(dir->object);
}

static const struct fs_kind rank_kind = {.mode = S_IFDIR | 0755, .rmdir = rmdir_rank, .free = free_dir};

static bool make_trigger(struct fs_rank *rank, enum coll_kind kind)
{
    struct fs_trigger *trigger = &rank->triggers[kind];
    *trigger = (struct fs_trigger){.rank = rank, .kind = kind};
    if (!fs_node_create(rank->dir, coll_kind_name(kind), &fs_trigger_kind, &rank->job->owner, trigger))
        return false;
    rank->refs++;
    return true;
}

/* What has been made is freed with the directory when the rest fails. */
static int make_nodes(struct fs_rank *rank, unsigned number)
{
    struct fs_job *job = rank->job;
    char name[16];
    snprintf(name, sizeof(name), "%u", number);
    rank->dir = fs_node_create(job->ranks_dir, name, &rank_kind, &job->owner, rank);
    if (!rank->dir)
        return -ENOMEM;
    rank->refs++;
    rank->buffer = fs_node_create(rank->dir, "buffer", &fs_buffer_kind, &job->owner, rank);
    if (!rank->buffer)
        return -ENOMEM;
    rank->refs++;
    for (unsigned kind = 0; kind < COLL_KIND_COUNT; kind++) {
        if (!make_trigger(rank, (enum coll_kind)kind))
            return -ENOMEM;
    }
    return fs_text_create(rank->dir, "status", &status_text, 0444, &job->owner, rank) ? 0 : -ENOMEM;
}

static struct fs_rank *rank_alloc(struct fs_job *job)
{
    struct fs_rank *rank = calloc(1, sizeof(*rank));
    if (!rank)
        return NULL;
    rank->fs = job->fs;
    rank->job = job;
    rank->job_tag = &job->owner;
    rank->refs = 1; /* the one who makes it */
    ut_list_init(&rank->promises);
    ut_list_init(&rank->handles);
    ut_list_init(&rank->runs);
    ut_list_append(&job->ranks, &rank->link);
    return rank;
}

int fs_rank_create(struct fs_job *job, unsigned number, pid_t pid, struct fs_rank **out)
{
    uint64_t now = ut_clock_ns();
    unsigned node = (unsigned)job->fs->settings->node;
    if (!job->coll->config.world)
        return -EAGAIN;
    if (number >= job->coll->config.world)
        return -EINVAL;
    struct fs_rank *rank = rank_alloc(job);
    if (!rank)
        return -ENOMEM;
    pid_t process = fs_process_of(pid);
    int rc = make_buffer(rank);
    if (!rc)
        rc = coll_rank_join(job->coll, number, node, process > 0 ? process : 0, now, &rank->coll);
    if (!rc) {
        rank->coll->host = rank;
        rc = make_nodes(rank, number);
        if (rc)
            coll_rank_leave(rank->coll, now);
    }
    if (rc) {
        fs_rank_gone(rank, ENODEV);
    } else {
        *out = rank;
        if (job->coll->config.size_bytes)
            fs_buffer_reserve(rank);
    }
    fs_rank_put(rank);
    return rc;
}

/* ---- going ---- */

void fs_rank_put(struct fs_rank *rank)
{
    if (--rank->refs)
        return;
    fs_trigger_free_handles(rank);
    free(rank);
}

void fs_rank_run_begins(struct fs_rank *rank)
{
    rank->refs++;
    rank->running++;
    rank->fs->running++;
}

void fs_rank_run_over(struct fs_rank *rank)
{
    rank->running--;
    rank->fs->running--;
    if (!rank->running && !rank->coll && rank->buf)
        free_buffer(rank);
    fs_rank_put(rank);
}

void fs_rank_gone(struct fs_rank *rank, int rc)
{
    rank->refs++;
    fs_trigger_gone(rank, rc);
    UT_LIST_EACH(&rank->promises, struct fs_promise, in_rank, promise)
    {
        fs_promise_void(promise);
    }
    ut_list_remove(&rank->link);
    if (ut_list_empty(&rank->job->ranks))
        fs_memory_leave(rank->job);
    rank->coll = NULL;
    rank->job = NULL;
    if (rank->dir)
        fs_node_cut(rank->dir, rc);
    rank->dir = NULL;
    if (rank->buf)
        give_back(rank);
    fs_rank_put(rank);
}

int fs_rank_leave(struct fs_rank *rank, uint64_t now)
{
    int rc = coll_rank_leave(rank->coll, now);
    if (rc)
        return rc;
    fs_rank_gone(rank, ENODEV);
    return 0;
}

void fs_rank_lost(struct fs_rank *rank, pid_t pid, unsigned promises, uint64_t now)
{
    coll_rank_lost(rank->coll, pid, promises, now);
    fs_job_wake(rank->job);
}

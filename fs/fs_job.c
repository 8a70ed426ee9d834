#include "fs/fs_job.h"

#include "fs/fs_exec.h"
#include "fs/fs_fabric.h"
#include "fs/fs_memory.h"
#include "fs/fs_rank.h"
#include "fs/fs_text.h"
#include "fs/fs_trigger.h"
#include "fs/fs_watch.h"
#include "utils/ut_clock.h"
#include "utils/ut_num.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files of a job ---- */

static void job_event(struct fs_job *job, const char *severity, const char *text)
{
    char object[FS_NAME_BYTES + 8];
    snprintf(object, sizeof(object), "jobs/%s", job->coll->name);
    fs_events_add_for(job->fs, job->owner.uid, severity, object, text);
}

static void show_config(void *of, struct ut_text *out)
{
    const struct fs_job *job = of;
    coll_config_render(&job->coll->config, out);
}

/* There may be no rank to say it in its status: a refusal is an event. */
static int report(struct fs_job *job, const char *file, int rc, const struct ut_err *err)
{
    char text[320];
    if (!rc)
        return 0;
    snprintf(text, sizeof(text), "%s: %s: %s", file, ut_err_name(rc), err->text);
    job_event(job, "warn", text);
    return rc;
}

static int take_config(void *of, const char *text, size_t len, struct ut_err *err)
{
    struct fs_job *job = of;
    return report(job, "config", coll_job_configure(job->coll, text, len, ut_clock_ns(), err), err);
}

static void show_members(void *of, struct ut_text *out)
{
    const struct fs_job *job = of;
    coll_job_show_members(job->coll, out);
}

/* Ranks that the job has dropped lose their directory, also when they have joined on another node since. */
static void cut_dropped(struct fs_job *job)
{
    UT_LIST_EACH(&job->ranks, struct fs_rank, link, rank)
    {
        if (rank->coll->state == COLL_DROPPED || rank->coll->node != job->coll->node)
            fs_rank_gone(rank, ESTALE);
    }
}

static int take_members(void *of, const char *text, size_t len, struct ut_err *err)
{
    struct fs_job *job = of;
    int rc = coll_job_drop(job->coll, text, len, ut_clock_ns(), err);
    if (rc)
        return report(job, "members", rc, err);
    cut_dropped(job);
    fs_job_wake(job);
    return 0;
}

/* How near the ring came to the least time there is: what every node has to send over the bandwidth of the
 * slowest link that was configured. */
static void show_efficiency(const struct fs_job *job, struct ut_text *out)
{
    const struct coll_stats *stats = &job->coll->stats;
    uint64_t slowest = job->fs->fabric ? fs_fabric_slowest(job->fs->fabric) : 0;
    double spent_ns = (double)(stats->ring_ns + stats->local_ns + stats->copy_ns);
    if (slowest && stats->ring_bus_bytes)
        ut_text_addf(out, "ring_efficiency %.3f\n",
                     (double)stats->ring_bus_bytes * 1e9 / (double)slowest / spent_ns);
    else
        ut_text_addf(out, "ring_efficiency -\n");
}

static void show_stats(void *of, struct ut_text *out)
{
    struct fs_job *job = of;
    coll_job_show_stats(job->coll, out);
    show_efficiency(job, out);
    ut_text_stat(out, "memory_used_bytes", fs_memory_job_bytes(job));
    ut_text_addf(out, "buffer_mode %s\n", job->fs->passthrough ? "passthrough" : "coherent");
}

static void show_trace(void *of, struct ut_text *out)
{
    const struct fs_job *job = of;
    coll_job_show_trace(job->coll, out);
}

static uint64_t trace_length(void *of)
{
    const struct fs_job *job = of;
    return coll_job_trace_bytes(job->coll);
}

static const struct fs_text config_text = {.render = show_config, .take = take_config};
static const struct fs_text members_text = {.render = show_members, .take = take_members, .frees = true};
static const struct fs_text stats_text = {.render = show_stats};
static const struct fs_text trace_text = {.render = show_trace, .length = trace_length};

/* ---- ranks/ ---- */

/* What a join was refused for. It has no status file to say it. */
static void explain_refusal(const struct fs_job *job, const char *name, int rc, struct ut_err *err)
{
    unsigned world = job->coll->config.world;
    if (rc == -EAGAIN)
        ut_err_set(err, rc, "world is not set; write world=N to config first");
    else if (rc == -EINVAL && world)
        ut_err_set(err, rc, "a rank is a number below world, which is %u", world);
    else if (rc == -EINVAL)
        ut_err_set(err, rc, "a rank is a number");
    else if (rc == -ENOSPC)
        ut_err_set(err, rc, "rank %s does not fit into the memory that is left", name);
    else
        ut_err_set(err, rc, "rank %s cannot join", name);
}

static int mkdir_rank(struct fs_node *dir, const char *name, const struct fuse_ctx *caller,
                      struct fs_node **out)
{
    struct fs_job *job = dir->object;
    struct fs_rank *rank;
    struct ut_err err;
    uint64_t number;
    bool canonical = name[0] != '0' || !name[1];
    int rc = !canonical || ut_num_u64(name, UINT32_MAX, &number) ? -EINVAL : 0;
    if (!rc)
        rc = fs_rank_create(job, (unsigned)number, caller->pid, &rank);
    if (rc) {
        explain_refusal(job, name, rc, &err);
        return report(job, "ranks", rc, &err);
    }
    *out = rank->dir;
    return 0;
}

static const struct fs_kind ranks_kind = {.mode = S_IFDIR | 0777, .still = true, .mkdir = mkdir_rank};

/* ---- jobs/ ---- */

static void job_free(struct fs_job *job)
{
    ut_list_remove(&job->link);
    fs_memory_leave(job);
    free(job);
}

void fs_job_remove(struct fs_job *job, int result, uint64_t now)
{
    job->coll->hearing = job->coll->quiet =
        true; /* none of our ranks is in it: the others' business goes on */
    coll_job_fail_all(job->coll, result, "the job is removed", now);
    if (job->fs->fabric)
        coll_net_remove(&job->fs->fabric->net, job->coll);
    UT_LIST_EACH(&job->ranks, struct fs_rank, link, rank)
    {
        coll_rank_leave(rank->coll, now);
        fs_rank_gone(rank, ENODEV);
    }
    fs_node_cut(job->dir, ENODEV);
    coll_job_destroy(job->coll, result, now);
    job_free(job);
}

static int rmdir_job(struct fs_node *dir)
{
    struct fs_job *job = dir->object;
    if (job->coll->joined || coll_job_is_busy(job->coll))
        return -EBUSY;
    job_event(job, "info", "removed");
    fs_job_remove(job, -ENODEV, ut_clock_ns());
    return 0;
}

/* Before it is removed for idleness, its linger time must pass without anybody who takes part. */
static bool is_lasting(const struct fs_node *dir)
{
    const struct fs_job *job = dir->object;
    return job->coll->participants && job->coll->config.linger_ns > (uint64_t)(FS_MOMENT_S * UT_NS_PER_S);
}

static const struct fs_kind job_kind = {
    .mode = S_IFDIR | 0777, .owns = true, .lasting = is_lasting, .rmdir = rmdir_job};

struct fs_owner *fs_job_owner(struct fs_node *dir)
{
    struct fs_job *job = dir->object;
    return &job->owner;
}

static bool make_job_nodes(struct fs_job *job, struct fs_node *jobs_dir, const char *name)
{
    const struct fs_owner *owner = &job->owner;
    job->dir = fs_node_create(jobs_dir, name, &job_kind, owner, job);
    return job->dir && fs_text_create(job->dir, "config", &config_text, 0666, owner, job) &&
           fs_text_create(job->dir, "members", &members_text, 0644, owner, job) &&
           fs_text_create(job->dir, "stats", &stats_text, 0444, owner, job) &&
           fs_text_create(job->dir, "trace", &trace_text, 0444, owner, job) &&
           (job->ranks_dir = fs_node_create(job->dir, "ranks", &ranks_kind, owner, job));
}

static bool is_job_name(const char *name)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t len = strlen(name);
    return len && len < FS_NAME_BYTES && strspn(name, good) == len && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

static struct fs_job *job_alloc(struct fs *fs, const struct fuse_ctx *caller)
{
    struct fs_job *job = calloc(1, sizeof(*job));
    if (!job)
        return NULL;
    job->fs = fs;
    job->owner = (struct fs_owner){.uid = caller->uid, .gid = caller->gid, .mode = 0700};
    ut_list_init(&job->ranks);
    ut_list_append(&fs->jobs, &job->link);
    return job;
}

static int mkdir_job(struct fs_node *dir, const char *name, const struct fuse_ctx *caller,
                     struct fs_node **out)
{
    struct fs *fs = dir->fs;
    struct ut_err err;
    if (!is_job_name(name))
        return -EINVAL;
    struct fs_job *job = job_alloc(fs, caller);
    if (!job)
        return -ENOMEM;
    int rc = coll_job_create(name, &fs->host, fs->settings->memory_bytes, ut_clock_ns(), &job->coll);
    if (rc) {
        job_free(job);
        return rc;
    }
    job->coll->wait_limit_ns = fs->wait_limit_ns;
    job->coll->node = (unsigned)fs->settings->node;
    rc = make_job_nodes(job, dir, name) ? 0 : ut_err_set(&err, -ENOMEM, "no memory is left");
    if (!rc && fs->fabric)
        rc = coll_net_add(&fs->fabric->net, job->coll, job->owner.uid, &err);
    if (report(job, "mkdir", rc, &err)) {
        if (job->dir)
            fs_node_cut(job->dir, ENODEV);
        coll_job_destroy(job->coll, rc, ut_clock_ns());
        job_free(job);
        return rc;
    }
    job_event(job, "info", "made");
    coll_job_tick(job->coll, ut_clock_ns());
    *out = job->dir;
    return 0;
}

static const struct fs_kind jobs_kind = {.mode = S_IFDIR | S_ISVTX | 0777, .still = true, .mkdir = mkdir_job};

/* ---- what reduce/ calls ---- */

static void on_event(void *ctx, const struct coll_job *coll, const char *severity, const char *text)
{
    struct fs *fs = ctx;
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        if (job->coll == coll)
            job_event(job, severity, text);
    }
}

static void on_wake(void *ctx, uint64_t when)
{
    struct fs *fs = ctx;
    fs_loop_wake_at(&fs->loop, when);
}

static struct coll_net *net_of(void *ctx)
{
    struct fs *fs = ctx;
    return &fs->fabric->net;
}

static void on_asked(void *ctx, const struct coll_ask *ask)
{
    struct fs *fs = ctx;
    fs_fabric_touch(fs->fabric);
    coll_net_asked(net_of(ctx), ask);
}

static void on_withdrew(void *ctx, const struct coll_ask *ask, bool dying)
{
    coll_net_withdrew(net_of(ctx), ask, dying);
}

static void on_failed(void *ctx, const struct coll_operation *op)
{
    coll_net_failed(net_of(ctx), op);
}

static void on_changed(void *ctx, struct coll_job *job)
{
    coll_net_changed(net_of(ctx), job);
}

static void on_turn(void *ctx, const struct coll_operation *op)
{
    coll_net_turn(net_of(ctx), op);
}

static const char *machine_of(void *ctx, unsigned node)
{
    const struct fs *fs = ctx;
    return fs_fabric_machine(fs->fabric, node);
}

static void on_abort(void *ctx, struct coll_operation *op, const struct coll_why *why)
{
    fs_exec_abort(ctx, op, why);
}

int fs_jobs_init(struct fs *fs)
{
    fs->host = (struct coll_host){.ctx = fs,
                                  .run = fs_exec_run,
                                  .answer = fs_trigger_answer,
                                  .event = on_event,
                                  .wake = on_wake,
                                  .suspect = fs_watch_is_suspect};
    if (fs->fabric) {
        fs->host.asked = on_asked;
        fs->host.withdrew = on_withdrew;
        fs->host.failed = on_failed;
        fs->host.changed = on_changed;
        fs->host.turn = on_turn;
        fs->host.abort = on_abort;
        fs->host.machine = machine_of;
    }
    fs->jobs_dir = fs_node_create(fs->root, "jobs", &jobs_kind, &fs->root_owner, NULL);
    return fs->jobs_dir ? 0 : -ENOMEM;
}

void fs_jobs_tick(struct fs *fs, uint64_t now)
{
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        if (coll_job_is_over(job->coll, now)) {
            job_event(job, "info", "removed: nobody has taken part for its linger time");
            fs_job_remove(job, -ENODEV, now);
        } else {
            coll_job_tick(job->coll, now);
        }
    }
}

void fs_jobs_settle(struct fs *fs)
{
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        if (job->seen_epoch == job->coll->epoch && job->seen_lost == job->coll->lost)
            continue;
        job->seen_epoch = job->coll->epoch;
        job->seen_lost = job->coll->lost;
        cut_dropped(job);
        fs_job_wake(job);
    }
}

void fs_job_owner_changed(struct fs_node *dir)
{
    struct fs_job *job = dir->object;
    fs_memory_owner_changed(job);
    /* What the kernel may still believe of ranks/ (fs_node_attr_timeout). With a negative offset this takes
     * no lock, so it cannot wait for a request that waits for us. */
    fuse_lowlevel_notify_inval_inode(job->fs->session, fs_node_number(job->ranks_dir), -1, 0);
    if (job->fs->fabric)
        coll_net_set_owner(&job->fs->fabric->net, job->coll, job->owner.uid);
}

void fs_job_wake(struct fs_job *job)
{
    UT_LIST_EACH(&job->ranks, struct fs_rank, link, rank)
    {
        fs_trigger_wake(rank);
    }
}

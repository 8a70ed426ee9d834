/*
 * Who takes part in a job: its configuration, ranks that join, leave, promise, are lost or dropped.
 */
#include "reduce/coll_internal.h"

#include "utils/ut_clock.h"
#include "utils/ut_num.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int coll_job_create(const char *name, const struct coll_host *host, uint64_t memory_limit, uint64_t now,
                    struct coll_job **out)
{
    /* Most of a job is figures that are not touched until it works. Pages of its own are not there until
     * then, and go back to the system with it: any user may make thousands of jobs. */
    struct coll_job *job =
        mmap(NULL, sizeof(*job), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (job == MAP_FAILED)
        return -ENOMEM;
    snprintf(job->name, sizeof(job->name), "%s", name);
    job->host = host;
    job->memory_limit = memory_limit;
    job->epoch = 1;
    coll_config_init(&job->config, memory_limit);
    ut_list_init(&job->tags);
    ut_list_init(&job->active);
    ut_list_init(&job->turns);
    coll_job_touch(job, now);
    *out = job;
    return 0;
}

/* What there is for each rank: it ends with the job, or with the world that it was made for. */
static void free_world(struct coll_job *job)
{
    coll_tags_free(job);
    coll_pool_free(job);
    for (unsigned r = 0; job->ranks && r < job->config.world; r++)
        free(job->ranks[r].status);
    free(job->ranks);
    job->ranks = NULL;
    job->lost = job->dropped = 0;
}

void coll_job_destroy(struct coll_job *job, int result, uint64_t now)
{
    coll_job_fail_all(job, result, "the job is gone", now);
    free_world(job);
    munmap(job, sizeof(*job));
}

void coll_job_fail_all(struct coll_job *job, int result, const char *text, uint64_t now)
{
    struct coll_why why = {.result = result};
    ut_err_set(&why.err, 0, "%s", text);
    coll_job_fail_pending(job, &why, now);
}

int coll_job_configure(struct coll_job *job, const char *text, size_t len, uint64_t now, struct ut_err *err)
{
    struct coll_config next = job->config;
    bool frozen = job->joined || !ut_list_empty(&job->active);
    int rc = coll_config_write(&next, text, len, frozen, job->memory_limit, err);
    if (rc)
        return rc;
    if (next.world != job->config.world)
        free_world(job);
    job->config = next;
    coll_job_tell(job);
    coll_job_touch(job, now);
    return 0;
}

void coll_job_tell(struct coll_job *job)
{
    if (job->host->changed && !job->hearing)
        job->host->changed(job->host->ctx, job);
}

unsigned coll_job_member_count(const struct coll_job *job)
{
    return job->config.world - job->dropped;
}

bool coll_job_is_busy(const struct coll_job *job)
{
    for (unsigned r = 0; job->ranks && r < job->config.world; r++) {
        if (job->ranks[r].asking && coll_rank_is_local(&job->ranks[r]))
            return true;
    }
    return !ut_list_empty(&job->active);
}

bool coll_job_has_remote_participant(const struct coll_job *job)
{
    for (unsigned r = 0; job->ranks && r < job->config.world; r++) {
        if (job->ranks[r].state == COLL_PRESENT && !coll_rank_is_local(&job->ranks[r]))
            return true;
    }
    return false;
}

static bool is_idle(const struct coll_job *job)
{
    return !job->participants && !coll_job_has_remote_participant(job) && !coll_job_is_busy(job);
}

bool coll_job_is_over(const struct coll_job *job, uint64_t now)
{
    uint64_t linger = job->config.linger_ns;
    return linger != COLL_LINGER_NEVER && is_idle(job) && now - job->idle_since >= linger;
}

void coll_job_touch(struct coll_job *job, uint64_t now)
{
    job->idle_since = now;
    if (!job->participants && job->config.linger_ns != COLL_LINGER_NEVER)
        job->host->wake(job->host->ctx, now + job->config.linger_ns);
}

void coll_job_tick(struct coll_job *job, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    UT_LIST_EACH(&job->tags, struct coll_tag, link, tag)
    {
        coll_tag_tick(tag, now, &next);
    }
    coll_job_advance(job, now); /* what was behind the turn of one that has failed */
    if (job->config.linger_ns != COLL_LINGER_NEVER && is_idle(job)) {
        uint64_t over = job->idle_since + job->config.linger_ns;
        if (over < next)
            next = over;
    }
    if (next != UINT64_MAX)
        job->host->wake(job->host->ctx, next);
}

/* ---- joining and leaving ---- */

int coll_job_make_ranks(struct coll_job *job)
{
    if (job->ranks)
        return 0;
    job->ranks = calloc(job->config.world, sizeof(job->ranks[0]));
    if (!job->ranks)
        return -ENOMEM;
    for (unsigned r = 0; r < job->config.world; r++) {
        job->ranks[r].job = job;
        job->ranks[r].number = r;
    }
    return 0;
}

/* The rank counts from the job's next number on, in every tag. */
void coll_rank_start_counting(struct coll_rank *rank)
{
    rank->job->cut_until = 0;
    UT_LIST_EACH(&rank->job->tags, struct coll_tag, link, tag)
    {
        tag->rank_next[rank->number] = coll_tag_join_number(tag);
    }
}

const char *coll_rank_host(const struct coll_rank *rank, char host[COLL_HOST_BYTES])
{
    const struct coll_host *of = rank->job->host;
    const char *name = of->machine ? of->machine(of->ctx, rank->node) : NULL;
    host[0] = '\0';
    if (name)
        snprintf(host, COLL_HOST_BYTES, "host %.31s, ", name);
    return host;
}

void coll_rank_say(const struct coll_rank *rank, const char *severity, const char *what)
{
    char text[512], host[COLL_HOST_BYTES];
    snprintf(text, sizeof(text), "rank %u %s (node %u, %spid %d, last operation %" PRIu64 ")", rank->number,
             what, rank->node, coll_rank_host(rank, host), (int)rank->pid, rank->last_seq);
    rank->job->host->event(rank->job->host->ctx, rank->job, severity, text);
}

int coll_rank_join(struct coll_job *job, unsigned number, unsigned node, pid_t pid, uint64_t now,
                   struct coll_rank **out)
{
    if (!job->config.world)
        return -EAGAIN;
    if (number >= job->config.world)
        return -EINVAL;
    int rc = coll_job_make_ranks(job);
    if (rc)
        return rc;
    struct coll_rank *rank = &job->ranks[number];
    if (rank->state != COLL_ABSENT && rank->state != COLL_DROPPED)
        return -EEXIST;
    if (rank->asking)
        return -EBUSY;
    struct coll_status *status = calloc(COLL_STATUS_LINES, sizeof(*status));
    if (!status)
        return -ENOMEM;
    coll_rank_start_counting(rank);
    if (rank->state == COLL_DROPPED) {
        job->dropped--;
        job->epoch++;
    }
    free(rank->status);
    *rank = (struct coll_rank){.job = job,
                               .number = number,
                               .state = COLL_JOINED,
                               .node = node,
                               .pid = pid,
                               .dropped = rank->dropped,
                               .status = status};
    rank->incarnation =
        ++job->joins + (uint32_t)(now / UT_NS_PER_US); /* of no join before a restart, either */
    job->joined++;
    coll_rank_say(rank, "info", "joined");
    coll_job_tell(job);
    coll_job_recount(job, now);
    coll_job_touch(job, now);
    *out = rank;
    return 0;
}

/* The rank has no directory any more; its promises are void. */
static void vacate(struct coll_rank *rank, enum coll_rank_state state, uint64_t now)
{
    struct coll_job *job = rank->job;
    job->lost -= rank->state == COLL_LOST;
    job->participants -= rank->promises;
    job->joined -= coll_rank_is_local(rank);
    rank->promises = 0;
    rank->state = state;
    coll_job_touch(job, now);
}

int coll_rank_leave(struct coll_rank *rank, uint64_t now)
{
    struct coll_why none = {0};
    if (rank->asking)
        return -EBUSY;
    coll_rank_take_back(rank, &none, now); /* interrupted requests only: nobody waits */
    coll_rank_say(rank, "info", "left");
    vacate(rank, COLL_ABSENT, now);
    coll_job_tell(rank->job);
    coll_job_recount(rank->job, now);
    return 0;
}

int coll_rank_promise(struct coll_rank *rank, pid_t pid, uint64_t now)
{
    struct coll_job *job = rank->job;
    if (rank->state == COLL_DROPPED || rank->state == COLL_ABSENT)
        return -ESTALE;
    bool is_back = rank->state == COLL_LOST;
    if (is_back) {
        job->lost--;
        coll_rank_start_counting(rank);
    }
    rank->state = COLL_PRESENT;
    rank->pid = pid;
    rank->promises++;
    job->participants++;
    coll_job_tell(job);
    if (is_back) {
        coll_rank_say(rank, "info", "is back");
        coll_job_recount(job, now);
    }
    return 0;
}

void coll_rank_release(struct coll_rank *rank, uint64_t now)
{
    if (!rank->promises)
        return; /* left or dropped meanwhile */
    rank->job->participants--;
    if (--rank->promises == 0 && rank->state == COLL_PRESENT) {
        rank->state = COLL_JOINED;
        coll_job_tell(rank->job);
    }
    coll_job_touch(rank->job, now);
}

void coll_rank_lost(struct coll_rank *rank, pid_t pid, unsigned promises, uint64_t now)
{
    struct coll_job *job = rank->job;
    struct coll_why why = {.result = -ECONNRESET};
    char host[COLL_HOST_BYTES];
    if (promises > rank->promises)
        promises = rank->promises; /* left or dropped meanwhile */
    rank->promises -= promises;
    job->participants -= promises;
    coll_job_touch(job, now);
    if (rank->state != COLL_PRESENT || !promises)
        return; /* lost before, by another process that took part */
    job->lost++;
    rank->state = COLL_LOST;
    rank->lost_rc = -ECONNRESET;
    rank->pid = pid;
    coll_job_tell(job);
    coll_rank_say(rank, "warn", "is lost: its process ended without closing its trigger");
    snprintf(why.missing, sizeof(why.missing), "%u", rank->number);
    ut_err_set(&why.err, 0, "rank %u on node %u is lost: its process %d ended (%slast operation %" PRIu64 ")",
               rank->number, rank->node, (int)pid, coll_rank_host(rank, host), rank->last_seq);
    coll_rank_forget_withdrawn(rank); /* where only this rank had asked, nothing has happened */
    coll_job_fail_pending(job, &why, now);
    coll_job_recount(job, now);
}

/* ---- dropping ---- */

void coll_rank_drop(struct coll_rank *rank, uint64_t now)
{
    struct coll_job *job = rank->job;
    struct coll_why why = {.result = -ESTALE};
    ut_err_set(&why.err, 0, "rank %u was dropped from the job", rank->number);
    job->cut_until = 0;
    coll_rank_take_back(rank, &why, now);
    coll_rank_say(rank, "warn", "was dropped");
    rank->dropped = rank->incarnation;
    if (rank->state == COLL_ABSENT)
        rank->state = COLL_DROPPED;
    else
        vacate(rank, COLL_DROPPED, now);
    job->dropped++;
}

bool coll_rank_is_suspect(const struct coll_rank *rank)
{
    const struct coll_host *host = rank->job->host;
    bool takes_part = rank->state != COLL_ABSENT && rank->state != COLL_DROPPED;
    return takes_part && host->suspect && host->suspect(host->ctx, rank->node);
}

/* Whom a write to members takes out. */
struct drop {
    enum { DROP_LOST, DROP_SUSPECT, DROP_NUMBER } whom;
    uint64_t number;
};

static bool is_to_drop(const struct coll_rank *rank, const struct drop *drop)
{
    if (drop->whom == DROP_LOST)
        return rank->state == COLL_LOST;
    if (drop->whom == DROP_SUSPECT)
        return coll_rank_is_suspect(rank);
    return rank->number == drop->number && rank->state != COLL_DROPPED;
}

static unsigned count_to_drop(const struct coll_job *job, const struct drop *drop)
{
    unsigned found = 0;
    for (unsigned r = 0; job->ranks && r < job->config.world; r++)
        found += is_to_drop(&job->ranks[r], drop);
    return found;
}

/* Reads "drop=lost", "drop=suspect" or "drop=R". */
static int parse_drop(const struct coll_job *job, const char *text, size_t len, struct drop *out,
                      struct ut_err *err)
{
    char line[64];
    if (len && text[len - 1] == '\n')
        len--;
    if (len >= sizeof(line) || len < 5 || memcmp(text, "drop=", 5) != 0 || memchr(text, '\0', len))
        return ut_err_set(err, -EINVAL, "members takes drop=lost, drop=suspect or drop=RANK");
    memcpy(line, text + 5, len - 5);
    line[len - 5] = '\0';
    out->whom = strcmp(line, "lost") == 0      ? DROP_LOST
                : strcmp(line, "suspect") == 0 ? DROP_SUSPECT
                                               : DROP_NUMBER;
    if (out->whom == DROP_NUMBER &&
        (ut_num_u64(line, UINT32_MAX, &out->number) || out->number >= job->config.world))
        return ut_err_set(err, -EINVAL, "drop=\"%s\" is neither lost, suspect nor a rank below world", line);
    return 0;
}

int coll_job_drop(struct coll_job *job, const char *text, size_t len, uint64_t now, struct ut_err *err)
{
    static const char *const nobody[] = {"no rank is lost", "no rank is on a suspect node",
                                         "no such rank takes part"};
    struct drop drop;
    int rc = parse_drop(job, text, len, &drop, err);
    if (rc)
        return rc;
    unsigned found = count_to_drop(job, &drop);
    if (!found)
        return ut_err_set(err, -ENOENT, "%s", nobody[drop.whom]);
    if (found >= coll_job_member_count(job))
        return ut_err_set(err, -EINVAL, "a job keeps at least one rank");
    for (unsigned r = 0; r < job->config.world; r++) {
        if (is_to_drop(&job->ranks[r], &drop))
            coll_rank_drop(&job->ranks[r], now);
    }
    job->epoch++;
    coll_job_tell(job);
    coll_job_recount(job, now);
    return 0;
}

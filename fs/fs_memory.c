#include "fs/fs_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* How often the quotas are set anew when a client takes pages at the very moment they are taken back. */
#define SET_TRIES 3

struct fs_user {
    struct ut_list link; /* in fs->users */
    uid_t uid;
    unsigned pool_count;
    uint64_t need_bytes;  /* as last counted */
    uint64_t quota_bytes; /* of all pools, kept up while quotas are set */
    unsigned taker_count; /* as last counted: pools that are lent what is free */
};

struct fs_pool {
    struct ut_list link; /* in fs->pools */
    struct ntbm_pool *pool;
    struct fs_job *job; /* NULL: left, and kept for what clients still hold */
    struct fs_user *user;
    uint64_t limit_bytes;  /* the job's memory when its first rank joined */
    uint64_t need_bytes;   /* as last counted */
    uint64_t orphan_bytes; /* likewise: in use, but in no rank's buffer any more */
    bool takes;            /* likewise: a buffer is open for writing */
};

struct totals {
    uint64_t need_bytes, quota_bytes;
    unsigned taker_count;
};

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- pools and users ---- */

static struct fs_user *find_user(struct fs *fs, uid_t uid)
{
    UT_LIST_EACH(&fs->users, struct fs_user, link, user)
    {
        if (user->uid == uid)
            return user;
    }
    struct fs_user *user = calloc(1, sizeof(*user));
    if (!user)
        return NULL;
    user->uid = uid;
    ut_list_append(&fs->users, &user->link);
    return user;
}

static void user_put(struct fs_user *user)
{
    if (--user->pool_count)
        return;
    ut_list_remove(&user->link);
    free(user);
}

static struct fs_pool *pool_create(struct fs_job *job)
{
    const struct fs_settings *settings = job->fs->settings;
    struct fs_pool *pool = calloc(1, sizeof(*pool));
    struct fs_user *user = pool ? find_user(job->fs, job->owner.uid) : NULL;
    if (!user) {
        free(pool);
        return NULL;
    }
    user->pool_count++;
    pool->job = job;
    pool->user = user;
    pool->limit_bytes = ntbm_whole_pages(min(job->coll->config.memory_bytes, settings->memory_user_bytes));
    ut_list_append(&job->fs->pools, &pool->link);
    return pool;
}

static void pool_free(struct fs_pool *pool)
{
    ut_list_remove(&pool->link);
    user_put(pool->user);
    if (pool->pool)
        ntbm_pool_put(pool->pool);
    free(pool);
}

/* Frees pools that jobs have left and nobody holds pages of. Who has a file of it open still can allocate
 * what the quota allows, so that is made as small as it can be: a page. */
static void free_empty(struct fs *fs)
{
    UT_LIST_EACH(&fs->pools, struct fs_pool, link, pool)
    {
        if (!pool->job && !ntbm_pool_held_bytes(pool->pool) && ntbm_pool_set_quota(pool->pool, 1) == 0)
            pool_free(pool);
    }
}

static int make_pool(const struct fs *fs, uint64_t limit_bytes, struct ntbm_pool **out)
{
    struct ntbm_pool_attr attr = {.quota_bytes = limit_bytes};
    char mpol[32];
    if (fs->settings->huge[0])
        attr.huge = fs->settings->huge;
    if (fs->numa_node >= 0) {
        snprintf(mpol, sizeof(mpol), "prefer:%d", fs->numa_node);
        attr.mpol = mpol;
    }
    int rc = ntbm_pool_create(&attr, out);
    if (!rc && (rc = ntbm_pool_set_quota(*out, 1)))
        ntbm_pool_put(*out);
    return rc;
}

int fs_memory_create(struct fs_job *job, struct ntbm_buf **out)
{
    struct ntbm_buf *buf = malloc(sizeof(*buf));
    int rc = buf ? ntbm_buf_create(job->pool->pool, buf) : -ENOMEM;
    if (rc)
        free(buf);
    else
        *out = buf;
    return rc;
}

void fs_memory_leave(struct fs_job *job)
{
    if (job->pool)
        job->pool->job = NULL;
    job->pool = NULL;
}

void fs_memory_owner_changed(struct fs_job *job)
{
    struct fs_user *user = job->pool ? find_user(job->fs, job->owner.uid) : NULL;
    if (!user)
        return;
    user->pool_count++;
    user_put(job->pool->user);
    job->pool->user = user;
}

/* ---- counting ---- */

struct pages {
    uint64_t length_bytes, allocated_bytes, has_bytes; /* whole pages; what is promised or allocated */
};

static struct pages look(const struct fs_rank *rank)
{
    struct stat st;
    if (!rank->buf || fstat(rank->buf->fd, &st) < 0)
        return (struct pages){0};
    uint64_t allocated = (uint64_t)st.st_blocks * 512;
    return (struct pages){.length_bytes = ntbm_whole_pages((uint64_t)st.st_size),
                          .allocated_bytes = allocated,
                          .has_bytes = max(allocated, rank->promised_bytes)};
}

/* What the buffers of the job's ranks need, and how many pages they have; whether clients have set lengths
 * themselves, and whether workers allocate pages now. */
static bool count_ranks(struct fs_pool *pool, uint64_t *allocated_bytes, bool *allocating)
{
    bool longer = false;
    uint64_t allocated = 0;
    *allocating = false;
    UT_LIST_EACH(&pool->job->ranks, struct fs_rank, link, rank)
    {
        struct pages pages = look(rank);
        allocated += pages.allocated_bytes;
        pool->need_bytes += pages.has_bytes;
        pool->takes |= rank->writers != 0;
        *allocating |= rank->tasks != 0;
        longer |= pages.length_bytes > pages.has_bytes;
    }
    *allocated_bytes = allocated;
    return longer;
}

/* The lengths that clients have set are promised too, each that fits into the quota. */
static void adopt_lengths(struct fs_pool *pool)
{
    uint64_t quota = ntbm_pool_quota_bytes(pool->pool);
    UT_LIST_EACH(&pool->job->ranks, struct fs_rank, link, rank)
    {
        struct pages pages = look(rank);
        uint64_t more = less(pages.length_bytes, pages.has_bytes);
        if (!more || more > less(quota, pool->need_bytes))
            continue;
        rank->promised_bytes = pages.length_bytes;
        pool->need_bytes += more;
    }
}

/* Pages are allocated and freed meanwhile: what is held beside the ranks' buffers is told from what two looks
 * agree on only, and as it was while a worker allocates: one that is put aside in the middle of a page, which
 * the tmpfs has counted and the file has not, lets all looks agree. */
static void count_job(struct fs_pool *pool)
{
    uint64_t held = ntbm_pool_held_bytes(pool->pool), allocated;
    bool allocating, longer = count_ranks(pool, &allocated, &allocating);
    if (!allocating && ntbm_pool_held_bytes(pool->pool) == held)
        pool->orphan_bytes = less(held, allocated);
    pool->need_bytes += pool->orphan_bytes;
    if (longer)
        adopt_lengths(pool);
}

static void count(struct fs_pool *pool)
{
    pool->takes = false;
    pool->need_bytes = 0;
    if (pool->job)
        count_job(pool);
    else
        pool->need_bytes = ntbm_pool_held_bytes(pool->pool);
    pool->need_bytes = max(pool->need_bytes, ntbm_whole_pages(1)); /* no tmpfs has a smaller quota */
}

static struct totals count_all(struct fs *fs)
{
    struct totals all = {0};
    UT_LIST_EACH(&fs->users, struct fs_user, link, user)
    {
        user->need_bytes = user->quota_bytes = 0;
        user->taker_count = 0;
    }
    UT_LIST_EACH(&fs->pools, struct fs_pool, link, pool)
    {
        count(pool);
        all.need_bytes += pool->need_bytes;
        all.taker_count += pool->takes;
        pool->user->need_bytes += pool->need_bytes;
        all.quota_bytes += ntbm_pool_quota_bytes(pool->pool);
        pool->user->quota_bytes += ntbm_pool_quota_bytes(pool->pool);
        pool->user->taker_count += pool->takes;
    }
    return all;
}

/* ---- quotas ---- */

/* What the pool may have now: what it needs, and its share of what is free. */
static uint64_t due_bytes(const struct fs_pool *pool, const struct fs_settings *settings,
                          const struct totals *all)
{
    if (!pool->takes)
        return pool->need_bytes;
    uint64_t share = less(settings->memory_bytes, all->need_bytes) / all->taker_count;
    uint64_t user = less(settings->memory_user_bytes, pool->user->need_bytes) / pool->user->taker_count;
    uint64_t own = less(pool->limit_bytes, pool->need_bytes);
    uint64_t lent = min(min(share, user), own);
    return pool->need_bytes + lent / ntbm_whole_pages(1) * ntbm_whole_pages(1);
}

static int set_quota(struct fs_pool *pool, uint64_t bytes, struct totals *all)
{
    uint64_t before = ntbm_pool_quota_bytes(pool->pool);
    int rc = ntbm_pool_set_quota(pool->pool, bytes);
    if (rc)
        return rc;
    all->quota_bytes += bytes - before;
    pool->user->quota_bytes += bytes - before;
    return 0;
}

/* Takes back from pools what they are not due any more. False when a client has just allocated pages of that.
 */
static bool take_back(struct fs *fs, struct totals *all)
{
    bool all_taken = true;
    UT_LIST_EACH(&fs->pools, struct fs_pool, link, pool)
    {
        uint64_t due = due_bytes(pool, fs->settings, all);
        if (due < ntbm_pool_quota_bytes(pool->pool) && set_quota(pool, due, all))
            all_taken = false;
    }
    return all_taken;
}

/* Gives pools what they are due, as far as the limits allow beside the quotas that are set. */
static void give(struct fs *fs, struct totals *all)
{
    UT_LIST_EACH(&fs->pools, struct fs_pool, link, pool)
    {
        uint64_t quota = ntbm_pool_quota_bytes(pool->pool);
        uint64_t room = min(less(fs->settings->memory_bytes, all->quota_bytes),
                            less(fs->settings->memory_user_bytes, pool->user->quota_bytes));
        uint64_t more = min(less(due_bytes(pool, fs->settings, all), quota), room);
        more = more / ntbm_whole_pages(1) * ntbm_whole_pages(1);
        if (more)
            set_quota(pool, quota + more, all);
    }
}

void fs_memory_lend(struct fs *fs)
{
    bool all_taken = false;
    struct totals all;
    for (int i = 0; !all_taken && i < SET_TRIES; i++) {
        all = count_all(fs);
        all_taken = take_back(fs, &all);
    }
    give(fs, &all);
}

/* True when nobody's limit is exceeded by what is needed now. */
static bool fits(struct fs *fs, const struct fs_pool *pool)
{
    struct totals all = count_all(fs);
    return all.need_bytes <= fs->settings->memory_bytes &&
           pool->user->need_bytes <= fs->settings->memory_user_bytes;
}

static bool get_room(struct fs *fs, struct fs_pool *pool)
{
    count(pool);
    if (pool->need_bytes > pool->limit_bytes)
        return false;
    if (pool->need_bytes <= ntbm_pool_quota_bytes(pool->pool))
        return true;
    free_empty(fs);
    if (!fits(fs, pool))
        return false;
    fs_memory_lend(fs);
    return pool->need_bytes <= ntbm_pool_quota_bytes(pool->pool);
}

int fs_memory_begin(struct fs_job *job)
{
    struct fs *fs = job->fs;
    if (job->pool)
        return 0;
    free_empty(fs);
    struct fs_pool *pool = pool_create(job);
    if (!pool)
        return -ENOMEM;
    int rc = make_pool(fs, pool->limit_bytes, &pool->pool);
    if (!rc && !fits(fs, pool))
        rc = -ENOSPC;
    if (rc) {
        pool_free(pool);
        return rc;
    }
    fs_memory_lend(fs);
    job->pool = pool;
    return 0;
}

int fs_memory_promise(struct fs_rank *rank, uint64_t bytes)
{
    struct fs_pool *pool = rank->job->pool;
    uint64_t before = rank->promised_bytes;
    if (bytes > pool->limit_bytes)
        return -ENOSPC;
    if (ntbm_whole_pages(bytes) <= before)
        return 0;
    rank->promised_bytes = ntbm_whole_pages(bytes);
    if (get_room(rank->fs, pool))
        return 0;
    rank->promised_bytes = before;
    return -ENOSPC;
}

/* ---- figures ---- */

static uint64_t used_bytes(const struct fs_pool *pool)
{
    uint64_t promised = 0;
    if (pool->job) {
        UT_LIST_EACH(&pool->job->ranks, struct fs_rank, link, rank)
        {
            promised += rank->promised_bytes;
        }
    }
    return max(promised, ntbm_pool_held_bytes(pool->pool));
}

uint64_t fs_memory_used_bytes(struct fs *fs)
{
    uint64_t used = 0;
    free_empty(fs);
    UT_LIST_EACH(&fs->pools, struct fs_pool, link, pool)
    {
        used += used_bytes(pool);
    }
    return used;
}

uint64_t fs_memory_job_bytes(const struct fs_job *job)
{
    return job->pool ? used_bytes(job->pool) : 0;
}

/* ---- the end ---- */

void fs_memory_stop(struct fs *fs)
{
    UT_LIST_EACH(&fs->pools, struct fs_pool, link, pool)
    {
        ntbm_pool_stop(pool->pool);
    }
}

void fs_memory_fini(struct fs *fs)
{
    UT_LIST_EACH(&fs->pools, struct fs_pool, link, pool)
    {
        pool_free(pool);
    }
}

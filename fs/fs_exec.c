#include "fs/fs_exec.h"

#include "fs/fs_buffer.h"
#include "fs/fs_fabric.h"
#include "fs/fs_memory.h"
#include "fs/fs_trigger.h"
#include "reduce/coll_exec.h"
#include "utils/ut_clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Up to here the loop thread and a worker share an operation, in blocks small enough to end together: waking
 * a worker and being woken by it would take as long as half of the operation. */
#define SHORT_BYTES ((uint64_t)4 << 20)
#define SHORT_BLOCK_BYTES (128u << 10) /* all ranks together, but not less than a page of each */

/* Of more ranks than these the loop thread, which everybody waits for meanwhile, does no more at once. */
#define SMALL_RANKS 8u

/* So long it may give way, however busy the processors are: a few steps of a training loop; and while a rank
 * waits for it, a few times as long as the bucket of one takes. */
#define GIVE_WAY_NS (UT_NS_PER_S / 10)
#define GIVE_WAY_WAITED_NS (UT_NS_PER_S / 100)

/* One rank's range under operation. */
struct fs_member {
    struct ut_list in_rank; /* in rank->runs */
    struct fs_run *run;
    struct fs_rank *rank;
    uint64_t offset, bytes;
    fuse_ino_t buffer; /* its number, for invalidation */
};

/* An operation under way. Kept for reuse by operations of no more members. */
struct fs_run {
    struct red_work work;
    struct fs_post post;
    struct fs *fs;
    struct coll_operation *op;
    struct coll_exec exec;
    uint64_t block_bytes; /* of an operation that is shared with the loop thread; 0: as suits a large one */
    unsigned block_count;
    atomic_int rc;                    /* the first failure of any worker */
    atomic_bool moved;                /* data has begun to move */
    bool dropping;                    /* between the two invalidations */
    struct ut_list link;              /* in fs->unread_runs, in fs->giving_runs, or nowhere */
    void (*next)(struct fs_run *run); /* on the loop thread, when the worker has done its part */
    struct coll_net_run *ring;        /* made when first needed; ranks of other nodes take part */
    bool over_ring, on_ring, settled; /* this operation goes over the ring; is on it now; has its result */
    char text[256];                   /* why it failed, when that is known better than here */
    struct fs_run *next_free;
    unsigned capacity;
    void **base;                /* [capacity] */
    struct coll_ask **asks;     /* [capacity] */
    struct fs_member members[]; /* [capacity] */
};

static struct fs_run *run_create(struct fs *fs, unsigned members)
{
    struct fs_run **at = &fs->free_runs;
    while (*at && (*at)->capacity < members)
        at = &(*at)->next_free;
    struct fs_run *run = *at;
    if (run) {
        *at = run->next_free;
        return run;
    }
    run = calloc(1, sizeof(*run) + members * sizeof(run->members[0]));
    if (!run)
        return NULL;
    run->base = calloc(members, sizeof(run->base[0]));
    run->asks = calloc(members, sizeof(run->asks[0]));
    run->capacity = members;
    run->fs = fs;
    ut_list_init(&run->link);
    if (run->base && run->asks)
        return run;
    free(run->base);
    free(run->asks);
    free(run);
    return NULL;
}

static void run_free(struct fs_run *run)
{
    run->next_free = run->fs->free_runs;
    run->fs->free_runs = run;
}

void fs_exec_fini(struct fs *fs)
{
    for (struct fs_run *run = fs->free_runs, *next; run; run = next) {
        next = run->next_free;
        free(run->base);
        free(run->asks);
        free(run->ring);
        free(run);
    }
    fs->free_runs = NULL;
}

/* ---- what the operation is about ---- */

static void add_member(struct fs_run *run, unsigned idx, const struct coll_ask *ask)
{
    struct fs_member *member = &run->members[idx];
    struct fs_rank *rank = ask->rank->host;
    *member = (struct fs_member){.run = run,
                                 .rank = rank,
                                 .offset = ask->cmd.offset,
                                 .bytes = coll_cmd_bytes(&ask->cmd),
                                 .buffer = fs_node_number(rank->buffer)};
    ut_list_append(&rank->runs, &member->in_rank);
    fs_buffer_written(rank);
    fs_rank_run_begins(rank);
}

/* Finds the members' memory, which must be whole: then what is mapped is there. */
static int find_memory(struct fs_run *run)
{
    for (unsigned i = 0; i < run->exec.member_count; i++) {
        const struct fs_member *member = &run->members[i];
        void *map;
        int rc = ntbm_buf_map(member->rank->buf, member->offset + member->bytes, &map);
        if (rc)
            return rc;
        run->base[i] = (char *)map + member->offset;
    }
    return 0;
}

/* The requests of this node's ranks, in rank order. */
static unsigned list_local(const struct coll_operation *op, struct coll_ask **out)
{
    unsigned count = 0;
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (op->ask[r] && op->ask[r]->rank->node == op->job->node)
            out[count++] = op->ask[r];
    }
    return count;
}

static uint64_t short_block_bytes(unsigned members)
{
    const unsigned bytes = SHORT_BLOCK_BYTES / members;
    return bytes < 4096 ? 4096 : bytes;
}

static unsigned count_waiting(const struct fs_run *run)
{
    unsigned count = 0;
    for (unsigned i = 0; i < run->exec.member_count; i++)
        count += fs_trigger_waits(run->asks[i]);
    return count;
}

static void set_up(struct fs_run *run, struct coll_operation *op)
{
    unsigned members = list_local(op, run->asks);
    run->op = op;
    op->host = run;
    run->over_ring = members < op->member_count;
    run->on_ring = run->settled = false;
    run->text[0] = '\0';
    run->exec = (struct coll_exec){.kind = op->cmd.kind,
                                   .dtype = op->cmd.dtype,
                                   .op = op->cmd.op,
                                   .count = op->cmd.count,
                                   .member_count = members,
                                   .base = run->base,
                                   .table = run->fs->table};
    for (unsigned i = 0; i < members; i++) {
        add_member(run, i, run->asks[i]);
        if (run->asks[i]->rank->number == op->cmd.root)
            run->exec.root_idx = i;
    }
    bool is_short = coll_cmd_bytes(&op->cmd) * members <= SHORT_BYTES;
    run->block_bytes = is_short ? short_block_bytes(members) : 0;
    run->block_count = coll_exec_block_count(&run->exec, run->block_bytes);
    atomic_store_explicit(&run->rc, 0, memory_order_relaxed);
    run->dropping = false;
    atomic_store_explicit(&run->moved, false, memory_order_relaxed);
}

/* Whose memory the failure was about, in words; or what else it was. */
static void describe_fault(const struct fs_run *run, int rc, char *out, size_t len)
{
    if (rc != -EFAULT && rc != -ENOSPC) {
        snprintf(out, len, "it cannot be carried out: %s",
                 rc == -ESHUTDOWN ? "the daemon is stopping" : strerror(-rc));
        return;
    }
    const char *what = rc == -EFAULT ? "was taken away while it was used: a hole was punched or the file cut"
                                     : "cannot be had: the job's memory is used up";
    for (unsigned i = 0; i < run->exec.member_count; i++) {
        const struct fs_member *member = &run->members[i];
        bool whole = ntbm_buf_is_reserved(member->rank->buf) &&
                     ntbm_buf_bytes(member->rank->buf) >= (int64_t)(member->offset + member->bytes);
        if (!whole) {
            snprintf(out, len, "memory of rank %u's buffer %s", run->asks[i]->rank->number, what);
            return;
        }
    }
    snprintf(out, len, "memory of a buffer %s", what);
}

/* Answers, on the loop thread. A rank that was dropped meanwhile stays until its request is answered. */
static void finish(struct fs_run *run)
{
    struct coll_operation *op = run->op;
    int rc = atomic_load_explicit(&run->rc, memory_order_acquire);
    char text[256] = "";
    if (rc && run->text[0])
        snprintf(text, sizeof(text), "%s", run->text);
    else if (rc)
        describe_fault(run, rc, text, sizeof(text));
    op->moved = atomic_load_explicit(&run->moved, memory_order_relaxed);
    ut_list_remove(&run->link);
    if (ut_list_empty(&run->fs->giving_runs))
        run->fs->hurry_ns = 0;
    const uint64_t now = ut_clock_ns();
    fs_loop_wake_at(&run->fs->loop, fs_awake_operation(&run->fs->awake, now));
    coll_op_finish(op, rc, text, now);
    for (unsigned i = 0; i < run->exec.member_count; i++) {
        ut_list_remove(&run->members[i].in_rank);
        fs_rank_run_over(run->members[i].rank);
    }
    run_free(run);
}

/* What the kernel had begun to write back before it forgot the pages is a request by then, and it does not
 * wait for its answer (Linux before 6.16). So the queue is read to its end first. */
static void worker_is_done(struct fs_post *post)
{
    struct fs_run *run = UT_CONTAINER(post, struct fs_run, post);
    if (run->fs->passthrough)
        run->next(run);
    else
        ut_list_append(&run->fs->unread_runs, &run->link);
}

/* Any thread. */
static void hand_back(struct fs_run *run, void (*next)(struct fs_run *run))
{
    run->next = next;
    run->post.run = worker_is_done;
    fs_loop_post(&run->fs->loop, &run->post);
}

/* Workers begin when the loop thread has nothing else to do: one that wakes beside it would run before the
 * answer to the request that asked. */
static void submit_later(struct fs_run *run)
{
    ut_list_append(&run->fs->works, &run->work.link);
}

/* ---- on workers ---- */

static void fail(struct fs_run *run, int rc)
{
    int none = 0;
    if (rc)
        atomic_compare_exchange_strong_explicit(&run->rc, &none, rc, memory_order_release,
                                                memory_order_relaxed);
}

static void invalidate(struct fs_run *run)
{
    for (unsigned i = 0; i < run->exec.member_count; i++) {
        const struct fs_member *member = &run->members[i];
        fuse_lowlevel_notify_inval_inode(run->fs->session, member->buffer, (off_t)member->offset,
                                         (off_t)member->bytes);
    }
}

static void run_block(struct red_work *work, unsigned idx)
{
    struct fs_run *run = UT_CONTAINER(work, struct fs_run, work);
    if (atomic_load_explicit(&run->rc, memory_order_relaxed))
        return;
    fail(run, coll_exec_block(&run->exec, run->block_bytes, idx));
}

static void blocks_done(struct red_work *work)
{
    struct fs_run *run = UT_CONTAINER(work, struct fs_run, work);
    if (!run->fs->passthrough)
        invalidate(run);
    hand_back(run, finish);
}

/* What is left to do where the kernel caches the buffers, after data have moved. */
static void forget_pages(struct red_work *work, unsigned idx)
{
    struct fs_run *run = UT_CONTAINER(work, struct fs_run, work);
    (void)idx;
    invalidate(run);
}

static void pages_forgotten(struct red_work *work)
{
    hand_back(UT_CONTAINER(work, struct fs_run, work), finish);
}

static void ring_over(struct coll_net_run *ring, int result, const char *text)
{
    struct fs_run *run = ring->op->host;
    run->on_ring = false;
    run->settled = true;
    fail(run, result);
    snprintf(run->text, sizeof(run->text), "%s", text);
    atomic_store_explicit(&run->moved, ring->ring.moved, memory_order_relaxed);
    if (run->fs->passthrough || !coll_cmd_bytes(&run->op->cmd)) { /* 0 bytes mean all to the kernel */
        finish(run);
        return;
    }
    run->work = (struct red_work){.block = forget_pages, .finish = pages_forgotten, .block_count = 1};
    submit_later(run);
}

/* Each of our ranks' ranges, at its place among the members of all nodes. */
static void place_bases(struct fs_run *run)
{
    const struct coll_operation *op = run->op;
    unsigned member = 0, local = 0;
    for (unsigned r = 0; r < op->job->config.world; r++) {
        if (!op->ask[r])
            continue;
        bool ours = local < run->exec.member_count && run->asks[local] == op->ask[r];
        run->ring->base[member++] = ours ? run->base[local++] : NULL;
    }
}

static void start_ring(struct fs_run *run)
{
    int rc = atomic_load_explicit(&run->rc, memory_order_acquire); /* what preparing, or another node, said */
    if (!rc && !run->ring)
        run->ring = calloc(1, sizeof(*run->ring));
    if (!rc && !run->ring)
        rc = -ENOMEM;
    if (!rc)
        rc = find_memory(run);
    if (!rc) {
        run->ring->op = run->op;
        run->ring->over = ring_over;
        place_bases(run);
        run->on_ring = true;
        rc = coll_net_start(&run->fs->fabric->net, run->ring, run->fs->table);
    }
    if (!rc)
        return;
    run->on_ring = false;
    fail(run, rc);
    if (rc == -EHOSTDOWN || rc == -ENOLINK)
        snprintf(run->text, sizeof(run->text), "a node that takes part is not connected");
    finish(run);
}

/* All that has been begun gives way no longer, also what the workers do not have yet. */
static void hurry(struct fs *fs)
{
    UT_LIST_EACH(&fs->works, struct red_work, link, work)
    {
        work->gives_way = false;
    }
    while (!ut_list_empty(&fs->giving_runs))
        ut_list_remove(fs->giving_runs.next);
    fs->hurry_ns = 0;
    red_pool_hurry(fs->workers);
}

static void hurry_within(struct fs *fs, uint64_t ns)
{
    const uint64_t at = ut_clock_ns() + ns;
    if (!fs->hurry_ns || at < fs->hurry_ns)
        fs->hurry_ns = at;
    fs_loop_wake_at(&fs->loop, fs->hurry_ns);
}

static void set_up_blocks(struct fs_run *run)
{
    atomic_store_explicit(&run->moved, true, memory_order_relaxed);
    run->work = (struct red_work){.block = run_block, .finish = blocks_done, .block_count = run->block_count};
}

static void start_blocks(struct fs_run *run)
{
    const unsigned waiting = count_waiting(run);
    set_up_blocks(run);
    run->work.gives_way = run->fs->passthrough && waiting < run->exec.member_count;
    submit_later(run);
    if (run->work.gives_way) {
        ut_list_append(&run->fs->giving_runs, &run->link);
        hurry_within(run->fs, waiting ? GIVE_WAY_WAITED_NS : GIVE_WAY_NS);
    }
}

/* Our memory is what clients stored; what the kernel writes back from now on is older than the result. */
static void start(struct fs_run *run)
{
    run->dropping = !run->fs->passthrough;
    if (run->over_ring)
        start_ring(run);
    else if (atomic_load_explicit(&run->rc, memory_order_relaxed))
        finish(run);
    else
        start_blocks(run);
}

/* Makes the memory whole, and ours what the clients stored. */
static void prepare(struct red_work *work, unsigned idx)
{
    struct fs_run *run = UT_CONTAINER(work, struct fs_run, work);
    (void)idx;
    if (!run->fs->passthrough)
        invalidate(run);
    for (unsigned i = 0; i < run->exec.member_count && !atomic_load_explicit(&run->rc, memory_order_relaxed);
         i++) {
        struct ntbm_buf *buf = run->members[i].rank->buf;
        if (!ntbm_buf_is_reserved(buf))
            fail(run, ntbm_buf_reserve(buf));
    }
    if (!atomic_load_explicit(&run->rc, memory_order_relaxed))
        fail(run, find_memory(run));
}

static void prepared(struct red_work *work)
{
    hand_back(UT_CONTAINER(work, struct fs_run, work), start);
}

/* A length that clients have set has no pages yet, and no promise of any. */
static void submit_prepare(struct fs_run *run)
{
    for (unsigned i = 0; i < run->exec.member_count; i++) {
        struct fs_rank *rank = run->members[i].rank;
        if (!ntbm_buf_is_reserved(rank->buf))
            fail(run, fs_memory_promise(rank, (uint64_t)ntbm_buf_bytes(rank->buf)));
    }
    run->work = (struct red_work){.block = prepare, .finish = prepared, .block_count = 1};
    submit_later(run);
}

/* ---- on the loop thread ---- */

/* Whether the memory of all members is there and found, so that nothing is to be prepared. */
static bool is_whole(struct fs_run *run)
{
    for (unsigned i = 0; i < run->exec.member_count; i++) {
        if (!ntbm_buf_is_reserved(run->members[i].rank->buf))
            return false;
    }
    return find_memory(run) == 0;
}

static bool is_small(const struct fs_run *run)
{
    uint64_t bytes = coll_cmd_bytes(&run->op->cmd), small = run->fs->settings->small_bytes;
    return bytes <= small && bytes * run->exec.member_count <= small * SMALL_RANKS;
}

static void run_here(struct fs_run *run)
{
    atomic_store_explicit(&run->moved, true, memory_order_relaxed);
    for (unsigned i = 0; i < run->block_count; i++)
        run_block(&run->work, i);
    finish(run);
}

static void share_blocks(struct fs_run *run)
{
    set_up_blocks(run);
    if (red_pool_share(run->fs->workers, &run->work))
        finish(run);
}

static void run_over_ring(struct fs_run *run)
{
    if (coll_cmd_bytes(&run->op->cmd) && (!run->fs->passthrough || !is_whole(run)))
        submit_prepare(run);
    else
        start_ring(run);
}

void fs_exec_abort(struct fs *fs, struct coll_operation *op, const struct coll_why *why)
{
    struct fs_run *run = op->host;
    if (run->on_ring) {
        coll_net_abort(&fs->fabric->net, op, why);
        return;
    }
    if (run->settled)
        return; /* only pages are to be forgotten yet */
    fail(run, why->result);
    if (!run->text[0])
        snprintf(run->text, sizeof(run->text), "%s", why->err.text);
}

void fs_exec_run(void *ctx, struct coll_operation *op)
{
    struct fs *fs = ctx;
    struct fs_run *run = run_create(fs, op->member_count);
    if (!run) {
        coll_op_finish(op, -ENOMEM, "the daemon has no memory to carry it out", ut_clock_ns());
        return;
    }
    set_up(run, op);
    if (run->over_ring)
        run_over_ring(run);
    else if (!run->block_count)
        finish(run);
    else if (!fs->passthrough || !is_whole(run))
        submit_prepare(run);
    else if (is_small(run))
        run_here(run);
    else if (run->block_bytes)
        share_blocks(run);
    else
        start_blocks(run);
}

bool fs_exec_waits_for_writes(const struct fs *fs)
{
    return !ut_list_empty(&fs->unread_runs);
}

void fs_exec_writes_are_read(struct fs *fs)
{
    UT_LIST_EACH(&fs->unread_runs, struct fs_run, link, run)
    {
        ut_list_remove(&run->link);
        run->next(run);
    }
}

void fs_exec_submit(struct fs *fs)
{
    while (!ut_list_empty(&fs->works)) {
        struct red_work *work = UT_CONTAINER(fs->works.next, struct red_work, link);
        ut_list_remove(&work->link);
        red_pool_submit(fs->workers, work);
    }
}

void fs_exec_rank_waits(struct fs *fs)
{
    UT_LIST_EACH(&fs->giving_runs, struct fs_run, link, run)
    {
        const unsigned waiting = count_waiting(run);
        if (waiting == run->exec.member_count) {
            hurry(fs);
            return;
        }
        if (waiting)
            hurry_within(fs, GIVE_WAY_WAITED_NS);
    }
}

void fs_exec_tick(struct fs *fs, uint64_t now)
{
    if (fs->hurry_ns && now >= fs->hurry_ns)
        hurry(fs);
    if (fs->hurry_ns)
        fs_loop_wake_at(&fs->loop, fs->hurry_ns);
}

bool fs_exec_is_dropping(const struct fs_rank *rank, uint64_t at, uint64_t *stop)
{
    UT_LIST_EACH(&rank->runs, struct fs_member, in_rank, member)
    {
        uint64_t end = member->offset + member->bytes;
        if (!member->run->dropping)
            continue;
        if (at >= member->offset && at < end) {
            *stop = end;
            return true;
        }
        if (member->offset > at && member->offset < *stop)
            *stop = member->offset;
    }
    return false;
}

#include "fs/fs_trigger.h"

#include "fs/fs_exec.h"
#include "fs/fs_process.h"
#include "utils/ut_clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* What trigger files say is their size: beyond any offset that a writer's file position reaches, since a
 * write past the end takes the inode's lock for itself. */
#define TRIGGER_BYTES (UINT64_C(1) << 50)

/* An open trigger. */
struct fs_handle {
    struct ut_list link; /* in rank->handles */
    struct fs_trigger *trigger;
    bool promised;              /* opened read-write */
    struct fs_promise *promise; /* NULL when it has ended: by the end of the process, while this is open */
    unsigned queued;            /* operations without a result yet */
    struct ut_list lines;       /* struct fs_wait.link: results not read yet, oldest first */
    struct ut_list readers;     /* struct fs_wait.link: reads that wait for one */
    struct fuse_pollhandle *poll;
    bool polls; /* somebody does, and found no result */
};

/* Somebody who waits: a parked write, a parked read, or a queued operation whose result becomes a line. */
struct fs_wait {
    struct ut_list link;        /* in handle->lines, handle->readers, or fs->queued_waits while it runs */
    struct ut_list interrupted; /* in fs->interrupted */
    struct fs *fs;
    struct fs_trigger *trigger;
    struct fs_handle *handle; /* NULL when it was closed */
    fuse_req_t req;           /* NULL: a queued operation */
    bool parked;              /* a write that holds its inode's lock */
    struct fs_wait *next_free;
    struct coll_ask *ask; /* NULL: a read, or over */
    size_t size;          /* of the write, or the most a read takes */
    size_t line_len, line_read;
    char line[256];
};

static struct fs_handle *handle_of(const struct fuse_file_info *fi)
{
    return (struct fs_handle *)(uintptr_t)fi->fh;
}

static struct fs_wait *wait_create(struct fs_handle *handle, fuse_req_t req, size_t size)
{
    struct fs *fs = handle->trigger->rank->fs;
    struct fs_wait *wait = fs->free_waits;
    if (wait)
        fs->free_waits = wait->next_free;
    else
        wait = malloc(sizeof(*wait));
    if (!wait)
        return NULL;
    memset(wait, 0, offsetof(struct fs_wait, line));
    wait->fs = fs;
    wait->trigger = handle->trigger;
    wait->handle = handle;
    wait->req = req;
    wait->size = size;
    fs->parked += req != NULL;
    ut_list_init(&wait->link);
    ut_list_init(&wait->interrupted);
    return wait;
}

static void wait_free(struct fs_wait *wait)
{
    ut_list_remove(&wait->link);
    ut_list_remove(&wait->interrupted);
    wait->fs->parked -= wait->req != NULL;
    wait->next_free = wait->fs->free_waits;
    wait->fs->free_waits = wait;
}

/* ---- opening and closing ---- */

static uint64_t trigger_bytes(struct fs_node *node)
{
    (void)node;
    return TRIGGER_BYTES;
}

static struct fs_handle *handle_create(struct fs_trigger *trigger)
{
    struct fs_handle *handle = calloc(1, sizeof(*handle));
    if (!handle)
        return NULL;
    handle->trigger = trigger;
    ut_list_init(&handle->lines);
    ut_list_init(&handle->readers);
    ut_list_append(&trigger->rank->handles, &handle->link);
    return handle;
}

/* There is room for another operation, which somebody may wait for. */
static void drop_line(struct fs_wait *line)
{
    struct fs_rank *rank = line->trigger->rank;
    bool was_full = rank->job && rank->queued >= rank->job->coll->config.depth;
    rank->queued--;
    wait_free(line);
    if (was_full)
        fs_trigger_wake(rank);
}

/* Operations that are queued go on; their lines are dropped when they end. */
static void handle_free(struct fs_handle *handle)
{
    UT_LIST_EACH(&handle->lines, struct fs_wait, link, line)
    {
        drop_line(line);
    }
    if (handle->poll)
        fuse_pollhandle_destroy(handle->poll);
    ut_list_remove(&handle->link);
    free(handle);
}

/* Says in the rank's status why a trigger cannot be opened read-write. */
static void note_no_promise(const struct fs_rank *rank, pid_t tid, int rc)
{
    struct coll_why why = {.result = rc};
    if (tid)
        ut_err_set(&why.err, rc, "process %d cannot be watched: %s", (int)tid, strerror(-rc));
    else
        ut_err_set(&why.err, rc, "the process is in a PID namespace that the daemon cannot see");
    coll_rank_note(rank->coll, NULL, &why);
}

static int promise(struct fs_handle *handle, pid_t tid)
{
    struct fs_rank *rank = handle->trigger->rank;
    bool was_lost = rank->coll->state == COLL_LOST;
    int rc = fs_promise_make(rank, tid, &handle->promise, ut_clock_ns());
    handle->promised = !rc;
    if (!rc && was_lost)
        fs_job_wake(rank->job);
    if (rc)
        note_no_promise(rank, tid, rc);
    return rc;
}

static void trigger_open(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi)
{
    struct fs_trigger *trigger = node->object;
    if ((fi->flags & O_TRUNC) && trigger->parked) {
        fuse_reply_err(req, EBUSY); /* the truncation would wait for the parked write, beyond any signal */
        return;
    }
    struct fs_handle *handle = handle_create(trigger);
    int rc = !handle ? -ENOMEM : 0;
    if (!rc && (fi->flags & O_ACCMODE) == O_RDWR)
        rc = promise(handle, fuse_req_ctx(req)->pid);
    if (rc) {
        if (handle)
            handle_free(handle);
        fuse_reply_err(req, -rc);
        return;
    }
    fi->fh = (uint64_t)(uintptr_t)handle;
    fi->direct_io = 1;
#if FS_HAS_PASSTHROUGH
    fi->parallel_direct_writes = 1;
#endif
    fs_node_reply_open(req, node, fi);
}

static void forget_handle(struct fs_handle *handle)
{
    UT_LIST_EACH(&handle->trigger->rank->fs->queued_waits, struct fs_wait, link, wait)
    {
        if (wait->handle == handle)
            wait->handle = NULL;
    }
}

static void trigger_flush(struct fs_node *node, struct fuse_file_info *fi, pid_t tid)
{
    const struct fs_handle *handle = handle_of(fi);
    (void)node;
    if (handle->promise)
        fs_promise_flush(handle->promise, tid);
}

static void trigger_release(struct fs_node *node, struct fuse_file_info *fi)
{
    struct fs_handle *handle = handle_of(fi);
    (void)node;
    if (handle->promise)
        fs_promise_close(handle->promise, ut_clock_ns());
    if (handle->queued)
        forget_handle(handle);
    handle_free(handle);
}

/* ---- results ---- */

void fs_trigger_wake(struct fs_rank *rank)
{
    UT_LIST_EACH(&rank->handles, struct fs_handle, link, handle)
    {
        if (!handle->poll)
            continue;
        fuse_lowlevel_notify_poll(handle->poll);
        fuse_pollhandle_destroy(handle->poll);
        handle->poll = NULL;
        handle->polls = false;
    }
}

/* Gives a reader the line, or as much of it as it asked for; the rest stays. */
static void give_line(fuse_req_t req, size_t size, struct fs_wait *line)
{
    size_t left = line->line_len - line->line_read, len = left < size ? left : size;
    fuse_reply_buf(req, line->line + line->line_read, len);
    line->line_read += len;
    if (line->line_read == line->line_len)
        drop_line(line);
}

/* Answers those who wait to read: with lines as long as there are any, and when nothing is queued any more
 * with the end of the file. */
static void serve_readers(struct fs_handle *handle)
{
    while (!ut_list_empty(&handle->readers) && (!ut_list_empty(&handle->lines) || !handle->queued)) {
        struct fs_wait *reader = UT_CONTAINER(handle->readers.next, struct fs_wait, link);
        if (ut_list_empty(&handle->lines))
            fuse_reply_buf(reader->req, NULL, 0);
        else
            give_line(reader->req, reader->size, UT_CONTAINER(handle->lines.next, struct fs_wait, link));
        wait_free(reader);
    }
}

/* A queued operation is over: its result goes to a reader that waits, or waits for one. */
static void queue_line(struct fs_wait *wait)
{
    struct fs_handle *handle = wait->handle;
    if (!handle) {
        drop_line(wait);
        return;
    }
    handle->queued--;
    ut_list_remove(&wait->link);
    ut_list_append(&handle->lines, &wait->link);
    serve_readers(handle);
    fs_trigger_wake(handle->trigger->rank);
}

void fs_trigger_answer(void *ctx, struct coll_ask *ask, const struct coll_why *why, uint64_t now)
{
    struct fs_wait *wait = ask->waiter;
    (void)ctx;
    wait->ask = NULL;
    if (!wait->req) {
        wait->line_len = coll_show_result(&ask->cmd, ask->op->seq, why, now - ask->t_arrive, wait->line,
                                          sizeof(wait->line));
        queue_line(wait);
        return;
    }
    if (wait->parked)
        wait->trigger->parked--;
    if (why->result)
        fuse_reply_err(wait->req, -why->result);
    else
        fuse_reply_write(wait->req, wait->size);
    wait_free(wait);
}

static bool rank_waits(const struct fs_rank *rank)
{
    for (unsigned i = 0; i < COLL_KIND_COUNT; i++) {
        if (rank->triggers[i].parked)
            return true;
    }
    UT_LIST_EACH(&rank->handles, struct fs_handle, link, handle)
    {
        if (handle->polls || !ut_list_empty(&handle->readers))
            return true;
    }
    return false;
}

bool fs_trigger_waits(const struct coll_ask *ask)
{
    const struct fs_wait *wait = ask->waiter;
    return wait && (wait->req || rank_waits(wait->trigger->rank));
}

/* ---- interruption ---- */

/* Called by libfuse in the middle of a request of its own, so the answer is left for later. */
static void on_interrupt(fuse_req_t req, void *data)
{
    struct fs_wait *wait = data;
    (void)req;
    if (ut_list_empty(&wait->interrupted))
        ut_list_append(&wait->fs->interrupted, &wait->interrupted);
}

static void settle_one(struct fs_wait *wait, uint64_t now)
{
    ut_list_remove(&wait->interrupted);
    if (wait->ask) {
        if (!coll_ask_interrupt(wait->ask, fs_process_is_dying(wait->ask->pid), now))
            return; /* data moves already: it gets its result */
        wait->trigger->parked--;
    }
    fuse_reply_err(wait->req, EINTR);
    wait_free(wait);
}

void fs_trigger_settle_interrupted(struct fs *fs)
{
    while (!ut_list_empty(&fs->interrupted))
        settle_one(UT_CONTAINER(fs->interrupted.next, struct fs_wait, interrupted), ut_clock_ns());
}

void fs_trigger_gone(struct fs_rank *rank, int rc)
{
    UT_LIST_EACH(&rank->handles, struct fs_handle, link, handle)
    {
        UT_LIST_EACH(&handle->readers, struct fs_wait, link, reader)
        {
            fuse_reply_err(reader->req, rc);
            wait_free(reader);
        }
    }
    fs_trigger_wake(rank);
}

void fs_trigger_free_handles(struct fs_rank *rank)
{
    UT_LIST_EACH(&rank->handles, struct fs_handle, link, handle)
    {
        handle_free(handle);
    }
}

void fs_trigger_fini(struct fs *fs)
{
    for (struct fs_wait *wait = fs->free_waits, *next; wait; wait = next) {
        next = wait->next_free;
        free(wait);
    }
}

/* ---- asking ---- */

static void refuse(fuse_req_t req, struct fs_rank *rank, const struct coll_cmd *cmd,
                   const struct coll_why *why)
{
    coll_rank_note(rank->coll, cmd, why);
    fuse_reply_err(req, -why->result);
}

/* A descriptor that was opened by a process that has ended, in the hands of another one. */
static bool is_orphan(const struct fs_handle *handle)
{
    return handle->promised && !handle->promise;
}

static int parse(struct fs_trigger *trigger, const char *bytes, size_t size, struct coll_cmd *cmd,
                 struct coll_why *why)
{
    const struct fs_rank *rank = trigger->rank;
    int64_t buf_bytes = ntbm_buf_bytes(rank->buf);
    if (buf_bytes < 0)
        return why->result = (int)buf_bytes;
    why->result = coll_cmd_parse(trigger->kind, bytes, size, &rank->job->coll->config, (uint64_t)buf_bytes,
                                 cmd, &why->err);
    return why->result;
}

static int check_handle(const struct fs_handle *handle, bool queue, struct coll_why *why)
{
    const struct fs_rank *rank = handle->trigger->rank;
    if (rank->fs->loop.stopping)
        return why->result = ut_err_set(&why->err, -ESHUTDOWN, "the daemon is stopping");
    if (is_orphan(handle))
        return why->result = ut_err_set(&why->err, -ECONNRESET,
                                        "the process that opened this descriptor has ended; open it anew");
    if (queue && rank->queued >= rank->job->coll->config.depth)
        return why->result = ut_err_set(&why->err, -EAGAIN,
                                        "%u operations are queued, as many as depth allows", rank->queued);
    return 0;
}

/* Parks the write, or has it queued. wait->ask is set when it is not over yet. */
static int ask(struct fs_wait *wait, const struct coll_cmd *cmd, pid_t pid, bool queue, struct coll_why *why)
{
    struct fs_rank *rank = wait->trigger->rank;
    struct coll_ask *out;
    uint64_t now = ut_clock_ns();
    int rc = coll_rank_ask(rank->coll, cmd, pid, wait, now, &out, why);
    if (rc || !out)
        return rc;
    wait->ask = out;
    if (queue)
        return 0;
    out->t_parked = now;
    wait->parked = true;
    wait->trigger->parked++;
    fs_exec_rank_waits(rank->fs);
    fuse_req_interrupt_func(wait->req, on_interrupt, wait);
    return 0;
}

static void trigger_write(fuse_req_t req, struct fs_node *node, const char *bytes, size_t size, off_t offset,
                          struct fuse_file_info *fi)
{
    struct fs_trigger *trigger = node->object;
    struct fs_rank *rank = trigger->rank;
    struct fs_handle *handle = handle_of(fi);
    bool queue = fi->flags & O_NONBLOCK;
    struct coll_why why = {0};
    struct coll_cmd cmd;
    (void)offset;
    if (parse(trigger, bytes, size, &cmd, &why)) {
        refuse(req, rank, NULL, &why);
        return;
    }
    struct fs_wait *wait = NULL;
    if (!check_handle(handle, queue, &why) && !(wait = wait_create(handle, queue ? NULL : req, size)))
        why.result = -ENOMEM;
    if (wait && queue) {
        rank->queued++;
        handle->queued++;
        ut_list_append(&rank->fs->queued_waits, &wait->link);
    }
    if (wait && ask(wait, &cmd, fuse_req_ctx(req)->pid, queue, &why) == 0) {
        if (queue)
            fuse_reply_write(req, size);
        return;
    }
    if (wait && queue) {
        rank->queued--;
        handle->queued--;
    }
    if (wait)
        wait_free(wait);
    refuse(req, rank, &cmd, &why);
}

/* ---- reading results ---- */

static void trigger_read(fuse_req_t req, struct fs_node *node, size_t size, off_t offset,
                         struct fuse_file_info *fi)
{
    struct fs_handle *handle = handle_of(fi);
    (void)node, (void)offset;
    if (!ut_list_empty(&handle->lines)) {
        give_line(req, size, UT_CONTAINER(handle->lines.next, struct fs_wait, link));
        return;
    }
    if (!handle->queued) {
        fuse_reply_buf(req, NULL, 0);
        return;
    }
    struct fs_wait *reader = fi->flags & O_NONBLOCK ? NULL : wait_create(handle, req, size);
    if (!reader) {
        fuse_reply_err(req, fi->flags & O_NONBLOCK ? EAGAIN : ENOMEM);
        return;
    }
    ut_list_append(&handle->readers, &reader->link);
    fuse_req_interrupt_func(req, on_interrupt, reader);
    fs_exec_rank_waits(handle->trigger->rank->fs);
}

static void trigger_poll(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi,
                         struct fuse_pollhandle *ph)
{
    const struct fs_trigger *trigger = node->object;
    const struct fs_rank *rank = trigger->rank;
    struct fs_handle *handle = handle_of(fi);
    unsigned events = 0;
    if (ph) {
        if (handle->poll)
            fuse_pollhandle_destroy(handle->poll);
        handle->poll = ph;
        handle->polls = ut_list_empty(&handle->lines);
        if (handle->polls)
            fs_exec_rank_waits(rank->fs);
    }
    if (!ut_list_empty(&handle->lines))
        events |= POLLIN;
    if (rank->queued < rank->job->coll->config.depth)
        events |= POLLOUT;
    if (rank->job->coll->lost)
        events |= POLLERR;
    fuse_reply_poll(req, events);
}

/* `> allreduce` and `truncate`: there is nothing to cut. */
static void trigger_resize(fuse_req_t req, struct fs_node *node, uint64_t bytes)
{
    (void)bytes;
    fs_node_reply_attr(req, node);
}

static void trigger_free(struct fs_node *node)
{
    struct fs_trigger *trigger = node->object;
    fs_rank_put(trigger->rank);
}

const struct fs_kind fs_trigger_kind = {
    .mode = S_IFREG | 0666,
    .still = true,
    .bytes = trigger_bytes,
    .open = trigger_open,
    .read = trigger_read,
    .write = trigger_write,
    .poll = trigger_poll,
    .flush = trigger_flush,
    .release = trigger_release,
    .resize = trigger_resize,
    .free = trigger_free,
};

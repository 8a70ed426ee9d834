#include "fs/fs_buffer.h"

#include "fs/fs_backing.h"
#include "fs/fs_exec.h"
#include "fs/fs_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <unistd.h>

/* A change of a buffer's pages that a worker makes while its request is parked. */
struct task {
    struct red_work work;
    struct fs_post post;
    struct fs_rank *rank;
    fuse_req_t req; /* NULL: nobody waits */
    struct fuse_file_info fi;
    uint64_t bytes;     /* new length */
    uint64_t old_bytes; /* length to go back to when the pages cannot be had */
    int mode;           /* of fallocate */
    off_t offset, length;
    int rc;
    int (*run)(struct task *task);             /* worker */
    void (*answer)(struct task *task, int rc); /* loop thread */
};

static void task_run(struct red_work *work, unsigned idx)
{
    struct task *task = UT_CONTAINER(work, struct task, work);
    (void)idx;
    task->rc = task->run(task);
}

static void task_finish(struct red_work *work)
{
    struct task *task = UT_CONTAINER(work, struct task, work);
    fs_loop_post(&task->rank->fs->loop, &task->post);
}

/* What is promised is no more than the length, or what is kept, once nobody is changing it. */
static void settle_promise(struct fs_rank *rank)
{
    int64_t length = ntbm_buf_bytes(rank->buf);
    if (rank->tasks || length < 0)
        return;
    uint64_t need = (uint64_t)length > rank->kept_bytes ? (uint64_t)length : rank->kept_bytes;
    if (rank->promised_bytes > need)
        rank->promised_bytes = need;
}

void fs_buffer_written(struct fs_rank *rank)
{
    if (!rank->kept_bytes)
        return;
    rank->kept_bytes = 0;
    settle_promise(rank);
}

static void task_over(struct fs_post *post)
{
    struct task *task = UT_CONTAINER(post, struct task, post);
    struct fs_rank *rank = task->rank;
    rank->tasks--;
    settle_promise(rank);
    if (task->answer)
        task->answer(task, task->rc);
    fs_rank_run_over(rank);
    free(task);
}

/* A task for the request, or for nobody (req NULL). It is refused with rc when that is not 0, without memory,
 * and when the daemon is stopping, since that waits for tasks: then NULL, and the request is answered. */
static struct task *task_create(struct fs_rank *rank, fuse_req_t req, int rc)
{
    struct task *task = NULL;
    if (!rc && rank->fs->loop.stopping)
        rc = -ESHUTDOWN;
    if (!rc && !(task = calloc(1, sizeof(*task))))
        rc = -ENOMEM;
    if (rc && req)
        fuse_reply_err(req, -rc);
    if (rc)
        return NULL;
    *task = (struct task){.work = {.block = task_run, .finish = task_finish, .block_count = 1},
                          .post = {.run = task_over},
                          .rank = rank,
                          .req = req};
    return task;
}

/* The rank and its memory stay until the task is over. Where the kernel caches the buffer, it keeps the pages
 * that it has to write to us back until a change of the length is answered; workers may all be waiting for
 * such pages (fs_exec.c), so none of them must be needed for that answer. */
static void task_submit(struct task *task)
{
    struct fs *fs = task->rank->fs;
    task->rank->tasks++;
    fs_rank_run_begins(task->rank);
    red_pool_submit(fs->passthrough ? fs->workers : fs->resizer, &task->work);
}

/* ---- length ---- */

/* Whether the length may become `bytes`, which are promised then. 0, -ENOSPC above a limit, -EBUSY when an
 * operation uses what would be cut off. */
static int prepare_resize(struct fs_rank *rank, uint64_t bytes)
{
    int64_t now = ntbm_buf_bytes(rank->buf);
    if (now < 0)
        return (int)now;
    if (bytes > (uint64_t)now)
        return fs_memory_promise(rank, bytes);
    return coll_rank_is_using(rank->coll, bytes) ? -EBUSY : 0;
}

/* Sets the length and allocates the pages; without pages the length is as before. */
static int run_resize(struct task *task)
{
    struct ntbm_buf *buf = task->rank->buf;
    int rc = ntbm_buf_resize(buf, task->bytes);
    if (rc || task->bytes <= task->old_bytes)
        return rc;
    rc = ntbm_buf_reserve(buf);
    if (rc)
        ntbm_buf_resize(buf, task->old_bytes);
    return rc;
}

static void answer_attr(struct task *task, int rc)
{
    if (rc)
        fuse_reply_err(task->req, -rc);
    else
        fs_node_reply_attr(task->req, task->rank->buffer);
}

/* A task, as task_create makes it, that needs the length to be `bytes`. */
static struct task *task_for_length(struct fs_rank *rank, fuse_req_t req, uint64_t bytes)
{
    struct task *task = task_create(rank, req, prepare_resize(rank, bytes));
    if (!task) {
        settle_promise(rank);
        return NULL;
    }
    task->bytes = bytes;
    task->old_bytes = (uint64_t)ntbm_buf_bytes(rank->buf);
    return task;
}

static void buffer_resize(fuse_req_t req, struct fs_node *node, uint64_t bytes)
{
    struct fs_rank *rank = node->object;
    struct task *task = task_for_length(rank, req, bytes);
    if (!task)
        return;
    rank->kept_bytes = 0;
    task->run = run_resize;
    task->answer = answer_attr;
    task_submit(task);
}

static int run_reserve(struct task *task)
{
    return ntbm_buf_reserve(task->rank->buf);
}

void fs_buffer_reserve(struct fs_rank *rank)
{
    struct task *task = task_create(rank, NULL, 0);
    if (!task)
        return; /* the first operation reserves */
    task->run = run_reserve;
    task_submit(task);
}

/* ---- fallocate ---- */

static int run_fallocate(struct task *task)
{
    return fallocate(task->rank->buf->fd, task->mode, task->offset, task->length) ? -errno : 0;
}

static void answer_fallocate(struct task *task, int rc)
{
    fuse_reply_err(task->req, -rc);
}

static void buffer_fallocate(fuse_req_t req, struct fs_node *node, int mode, off_t offset, off_t length)
{
    struct fs_rank *rank = node->object;
    uint64_t end = (uint64_t)offset + (uint64_t)length;
    bool known = !(mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE));
    bool longer = !(mode & FALLOC_FL_PUNCH_HOLE) && (int64_t)end > ntbm_buf_bytes(rank->buf);
    struct task *task =
        known && longer ? task_for_length(rank, req, end) : task_create(rank, req, known ? 0 : -EOPNOTSUPP);
    if (!task)
        return;
    task->mode = mode;
    task->offset = offset;
    task->length = length;
    task->run = run_fallocate;
    task->answer = answer_fallocate;
    task_submit(task);
}

/* ---- opening ---- */

/* One backing id an inode, however often it is open. */
static int open_backing(struct fs_rank *rank)
{
    if (!rank->fs->passthrough || rank->backing_id)
        return 0;
    int id = fs_backing_open(fuse_session_fd(rank->fs->session), rank->buf->fd);
    if (id < 0)
        return id;
    rank->backing_id = id;
    return 0;
}

static void close_backing(struct fs_rank *rank)
{
    if (rank->backing_id)
        fs_backing_close(fuse_session_fd(rank->fs->session), rank->backing_id);
    rank->backing_id = 0;
}

/* Whether whoever has it open lengthens the file by writing, without the daemon. */
static bool can_lengthen(const struct fs_rank *rank, const struct fuse_file_info *fi)
{
    return rank->fs->passthrough && (fi->flags & O_ACCMODE) != O_RDONLY;
}

static void end_rewriting(struct fs_rank *rank)
{
    if (!--rank->rewriters && rank->buf)
        fs_buffer_written(rank);
}

static void buffer_release(struct fs_node *node, struct fuse_file_info *fi)
{
    struct fs_rank *rank = node->object;
    rank->writers -= can_lengthen(rank, fi);
    if (fi->fh)
        end_rewriting(rank);
    if (node->opens == 1)
        close_backing(rank);
}

static void answer_open(struct task *task, int rc)
{
    struct fs_rank *rank = task->rank;
    struct fs_node *node = rank->buffer;
    if (!rc && node->gone)
        rc = -node->gone;
    if (!rc)
        rc = open_backing(rank);
    if (rc) {
        if (task->fi.fh)
            end_rewriting(rank);
        fuse_reply_err(task->req, -rc);
        return;
    }
#if FS_HAS_PASSTHROUGH
    task->fi.backing_id = rank->backing_id;
#endif
    /* The kernel cleans a file that is closed, and holds pages that others write back meanwhile in a queue of
     * its own: an operation would not see them. What is mapped is written back when it is unmapped. */
    task->fi.noflush = !rank->fs->passthrough;
    if (can_lengthen(rank, &task->fi)) {
        rank->writers++;
        fs_memory_lend(rank->fs);
    }
    fs_node_reply_open(task->req, node, &task->fi);
}

/* Whoever cuts the buffer off to write it anew (`cat grad.bin > buffer`) has pages for as much as it held:
 * nobody is lent them meanwhile. A length that has no room anyway is not kept. fi->fh marks the descriptor.
 */
static void begin_rewriting(struct fs_rank *rank, struct fuse_file_info *fi)
{
    fs_memory_promise(rank, (uint64_t)ntbm_buf_bytes(rank->buf));
    if (rank->promised_bytes > rank->kept_bytes)
        rank->kept_bytes = rank->promised_bytes;
    rank->rewriters++;
    fi->fh = 1;
}

/* O_TRUNC comes with the open: it frees pages, so a worker does it first. */
static void open_truncated(fuse_req_t req, struct fs_rank *rank, struct fuse_file_info *fi)
{
    struct task *task = task_for_length(rank, req, 0);
    if (!task)
        return;
    if ((fi->flags & O_ACCMODE) != O_RDONLY)
        begin_rewriting(rank, fi);
    task->fi = *fi;
    task->run = run_resize;
    task->answer = answer_open;
    task_submit(task);
}

static void buffer_open(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi)
{
    struct fs_rank *rank = node->object;
    if ((fi->flags & O_TRUNC) && ntbm_buf_bytes(rank->buf) > 0) {
        open_truncated(req, rank, fi);
        return;
    }
    struct task now = {.rank = rank, .req = req, .fi = *fi};
    answer_open(&now, 0);
}

/* ---- reading and writing, where the kernel caches the file ---- */

static void buffer_read(fuse_req_t req, struct fs_node *node, size_t size, off_t offset,
                        struct fuse_file_info *fi)
{
    const struct fs_rank *rank = node->object;
    (void)fi;
    int64_t bytes = ntbm_buf_bytes(rank->buf);
    size_t left = offset < bytes ? (size_t)(bytes - offset) : 0;
    struct fuse_bufvec data = FUSE_BUFVEC_INIT(left < size ? left : size);
    data.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    data.buf[0].fd = rank->buf->fd;
    data.buf[0].pos = offset;
    fuse_reply_data(req, &data, 0);
}

/* Writes one piece. pwrite rather than a copy into the mapping: a file that a worker is shortening meanwhile
 * gives an error, not a signal. */
static int write_piece(const struct fs_rank *rank, const char *bytes, uint64_t offset, size_t size)
{
    while (size) {
        ssize_t done = pwrite(rank->buf->fd, bytes, size, (off_t)offset);
        if (done < 0)
            return -errno;
        bytes += done;
        offset += (uint64_t)done;
        size -= (size_t)done;
    }
    return 0;
}

/* A page that the kernel writes back holds what the client had there before the operation wherever that is
 * under operation: those bytes are left out. */
static int write_back(const struct fs_rank *rank, const char *bytes, uint64_t offset, size_t size)
{
    uint64_t end = offset + size, at = offset;
    while (at < end) {
        uint64_t stop = end;
        bool dropped = fs_exec_is_dropping(rank, at, &stop);
        if (stop > end)
            stop = end;
        int rc = dropped ? 0 : write_piece(rank, bytes + (at - offset), at, stop - at);
        if (rc)
            return rc;
        at = stop;
    }
    return 0;
}

/* Makes the buffer reach to `end`. */
static int lengthen(struct fs_rank *rank, uint64_t end)
{
    int rc = fs_memory_promise(rank, end);
    if (!rc && (rc = ntbm_buf_resize(rank->buf, end)))
        settle_promise(rank);
    return rc;
}

static void buffer_write(fuse_req_t req, struct fs_node *node, const char *bytes, size_t size, off_t offset,
                         struct fuse_file_info *fi)
{
    struct fs_rank *rank = node->object;
    uint64_t end = (uint64_t)offset + size;
    int64_t length = ntbm_buf_bytes(rank->buf);
    int rc = 0;
    if (fi->writepage) {
        /* Never beyond the end: the page was cut off meanwhile. */
        size_t inside = offset < length ? (size_t)(length - offset) : 0;
        rc = write_back(rank, bytes, (uint64_t)offset, inside < size ? inside : size);
    } else {
        if ((int64_t)end > length)
            rc = lengthen(rank, end);
        if (!rc)
            rc = write_piece(rank, bytes, (uint64_t)offset, size);
    }
    if (rc)
        fuse_reply_err(req, -rc);
    else
        fuse_reply_write(req, size);
}

static uint64_t buffer_bytes(struct fs_node *node)
{
    const struct fs_rank *rank = node->object;
    int64_t bytes = ntbm_buf_bytes(rank->buf);
    return bytes < 0 ? 0 : (uint64_t)bytes;
}

static void buffer_stat(struct fs_node *node, struct stat *st)
{
    const struct fs_rank *rank = node->object;
    struct stat backing;
    if (fstat(rank->buf->fd, &backing) < 0)
        return;
    st->st_blocks = backing.st_blocks;
    st->st_mtim = backing.st_mtim;
    st->st_ctim = backing.st_ctim;
}

static void buffer_free(struct fs_node *node)
{
    fs_rank_put(node->object);
}

const struct fs_kind fs_buffer_kind = {
    .mode = S_IFREG | 0666,
    .still = true,
    .bytes = buffer_bytes,
    .stat = buffer_stat,
    .open = buffer_open,
    .read = buffer_read,
    .write = buffer_write,
    .release = buffer_release,
    .resize = buffer_resize,
    .fallocate = buffer_fallocate,
    .free = buffer_free,
};

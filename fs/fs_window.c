#include "fs/fs_window.h"

#include "fs/fs_backing.h"
#include "fs/fs_fabric.h"
#include "ntbmem/ntbm_fence.h"
#include "ntbmem/ntbm_guard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int fs_window_find(const struct fs_window *window, struct fs_extent *out)
{
    const struct ntbm_mem *mem = NULL;
    if (window->peer)
        mem = window->peer->memory.link.bytes ? &window->peer->memory.mem : NULL;
    else if (window->fs->fabric)
        mem = &window->fs->fabric->landing;
    else {
        *out = (struct fs_extent){.fd = window->alone.fd,
                                  .bytes = FS_WINDOW_ALONE_BYTES,
                                  .align_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
        return 0;
    }
    if (!mem)
        return -EHOSTDOWN;
    *out = (struct fs_extent){
        .fd = mem->fd, .offset = mem->uri.offset_bytes, .bytes = mem->bytes, .align_bytes = mem->align_bytes};
    return 0;
}

static uint64_t window_bytes(struct fs_node *node)
{
    struct fs_extent extent;
    return fs_window_find(node->object, &extent) ? 0 : extent.bytes;
}

/* ---- opening ---- */

static void close_backing(struct fs_window *window)
{
    if (window->backing_id)
        fs_backing_close(fuse_session_fd(window->fs->session), window->backing_id);
    window->backing_id = 0;
}

/* Why clients cannot map that; NULL when they can. Only files can be had in passthrough, from their
 * beginning. */
static const char *map_fault(const struct fs_window *window, const struct fs_extent *extent)
{
    struct stat st;
    if (!window->fs->passthrough)
        return "buffers are not in passthrough mode";
    if (extent->offset)
        return "the window begins at an offset, and the kernel shows clients a file from its beginning";
    return fstat(extent->fd, &st) || !S_ISREG(st.st_mode) ? "the kernel shows clients files, not devices"
                                                          : NULL;
}

void fs_window_show(const struct fs_window *window, struct ut_text *out)
{
    struct fs_extent extent;
    if (fs_window_find(window, &extent))
        return;
    const char *fault = map_fault(window, &extent);
    ut_text_addf(out, "client_mmap %s%s\n", fault ? "no: " : "yes", fault ? fault : "");
}

/* What has no backing can be read and written, and not mapped. */
static int open_backing(struct fs_window *window)
{
    struct fs_extent extent;
    int rc = fs_window_find(window, &extent);
    if (rc || window->backing_id || map_fault(window, &extent))
        return rc;
    int id = fs_backing_open(fuse_session_fd(window->fs->session), extent.fd);
    if (id > 0)
        window->backing_id = id;
    return 0;
}

static void window_open(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi)
{
    struct fs_window *window = node->object;
    int rc = open_backing(window);
    if (rc) {
        fuse_reply_err(req, -rc);
        return;
    }
    fi->direct_io = 1;
#if FS_HAS_PASSTHROUGH
    fi->backing_id = window->backing_id;
#endif
    fs_node_reply_open(req, node, fi);
}

static void window_release(struct fs_node *node, struct fuse_file_info *fi)
{
    (void)fi;
    if (node->opens == 1)
        close_backing(node->object);
}

/* ---- reading and writing ---- */

/* One request's copy. */
struct copy {
    struct red_work work;
    struct fs_post post;
    struct fs *fs;
    fuse_req_t req;
    bool to_window;
    struct fs_extent extent; /* its fd is a duplicate */
    uint64_t offset;         /* in extent.fd */
    uint8_t *shared;         /* where that is mapped */
    size_t len;
    int rc;
    uint8_t bytes[];
};

/* Whole aligned words of the shared side: a device may take no more than one access at a time, and bytewise
 * ones are eight times as many. */
static void copy_words(void *arg)
{
    struct copy *copy = arg;
    size_t at = 0;
    while (at < copy->len) {
        uint8_t *shared = copy->shared + at, *local = copy->bytes + at;
        bool whole = !((uintptr_t)shared & 7) && copy->len - at >= 8;
        if (whole && copy->to_window) {
            uint64_t word;
            memcpy(&word, local, 8);
            __atomic_store_n((uint64_t *)shared, word, __ATOMIC_RELAXED);
        } else if (whole) {
            uint64_t word = __atomic_load_n((uint64_t *)shared, __ATOMIC_RELAXED);
            memcpy(local, &word, 8);
        } else if (copy->to_window) {
            __atomic_store_n(shared, *local, __ATOMIC_RELAXED);
        } else {
            *local = __atomic_load_n(shared, __ATOMIC_RELAXED);
        }
        at += whole ? 8 : 1;
    }
    if (copy->to_window)
        ntbm_fence_push_word();
}

static int run_copy(struct copy *copy)
{
    uint64_t align = copy->extent.align_bytes, lead = copy->offset & (align - 1);
    size_t span = (lead + copy->len + align - 1) & ~(align - 1);
    uint8_t *base =
        mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_SHARED, copy->extent.fd, (off_t)(copy->offset - lead));
    if (base == MAP_FAILED)
        return -errno;
    copy->shared = base + lead;
    int rc = ntbm_guard_run(copy_words, copy);
    munmap(base, span);
    return rc;
}

static void copy_block(struct red_work *work, unsigned idx)
{
    struct copy *copy = UT_CONTAINER(work, struct copy, work);
    (void)idx;
    copy->rc = run_copy(copy);
}

static void copy_finish(struct red_work *work)
{
    struct copy *copy = UT_CONTAINER(work, struct copy, work);
    fs_loop_post(&copy->fs->loop, &copy->post);
}

static void copy_free(struct copy *copy)
{
    close(copy->extent.fd);
    free(copy);
}

static void copy_over(struct fs_post *post)
{
    struct copy *copy = UT_CONTAINER(post, struct copy, post);
    copy->fs->running--;
    if (copy->rc)
        fuse_reply_err(copy->req, -copy->rc);
    else if (copy->to_window)
        fuse_reply_write(copy->req, copy->len);
    else
        fuse_reply_buf(copy->req, (const char *)copy->bytes, copy->len);
    copy_free(copy);
}

/* A copy of at most `size` bytes at `offset` of the window, fewer at its end. 0 or -errno. */
static int copy_create(const struct fs_window *window, fuse_req_t req, size_t size, off_t offset,
                       struct copy **out)
{
    struct fs_extent extent;
    int rc = window->fs->loop.stopping ? -ESHUTDOWN : fs_window_find(window, &extent);
    if (rc)
        return rc;
    uint64_t from = (uint64_t)offset < extent.bytes ? (uint64_t)offset : extent.bytes;
    size_t len = extent.bytes - from < size ? extent.bytes - from : size;
    struct copy *copy = malloc(sizeof(*copy) + len);
    if (!copy)
        return -ENOMEM;
    *copy = (struct copy){.work = {.block = copy_block, .finish = copy_finish, .block_count = 1},
                          .post = {.run = copy_over},
                          .fs = window->fs,
                          .req = req,
                          .extent = extent,
                          .offset = extent.offset + from,
                          .len = len};
    copy->extent.fd = dup(extent.fd);
    if (copy->extent.fd < 0) {
        rc = -errno;
        free(copy);
        return rc;
    }
    *out = copy;
    return 0;
}

static void copy_submit(struct copy *copy)
{
    copy->fs->running++;
    red_pool_submit(copy->fs->workers, &copy->work);
}

static void window_read(fuse_req_t req, struct fs_node *node, size_t size, off_t offset,
                        struct fuse_file_info *fi)
{
    struct copy *copy = NULL;
    (void)fi;
    int rc = copy_create(node->object, req, size, offset, &copy);
    if (rc) {
        fuse_reply_err(req, -rc);
    } else if (!copy->len) {
        fuse_reply_buf(req, NULL, 0);
        copy_free(copy);
    } else {
        copy_submit(copy);
    }
}

static void window_write(fuse_req_t req, struct fs_node *node, const char *from, size_t size, off_t offset,
                         struct fuse_file_info *fi)
{
    struct copy *copy = NULL;
    (void)fi;
    int rc = copy_create(node->object, req, size, offset, &copy);
    if (rc) {
        fuse_reply_err(req, -rc);
    } else if (!copy->len) {
        fuse_reply_err(req, ENOSPC);
        copy_free(copy);
    } else {
        copy->to_window = true;
        memcpy(copy->bytes, from, copy->len);
        copy_submit(copy);
    }
}

static void window_free(struct fs_node *node)
{
    struct fs_window *window = node->object;
    if (window->alone.fd >= 0)
        ntbm_buf_fini(&window->alone);
    free(window);
}

const struct fs_kind fs_window_kind = {
    .mode = S_IFREG | 0600,
    .bytes = window_bytes,
    .open = window_open,
    .read = window_read,
    .write = window_write,
    .release = window_release,
    .free = window_free,
};

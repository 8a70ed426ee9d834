#include "fs/fs_text.h"

#include "fs/fs_dispose.h"
#include "utils/ut_clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>

#define KEPT_NS (100 * UT_NS_PER_MS)

/* What takes longer than this to render is long (metrics of thousands of jobs), and is rendered so rarely
 * that it takes the loop thread a twentieth of its time, however often clients look. It must do so twice in a
 * row: a hypervisor that takes the processor away in between is no reason to show what is old. */
#define LONG_NS (5 * UT_NS_PER_MS)
#define LONG_REST 20u

/* One rendering, shared by the node and the files opened on it. */
struct version {
    struct ut_text text;
    unsigned refs;
};

struct file {
    const struct fs_text *text;
    void *of;
    struct version *latest;
    uint64_t rendered_ns;
    uint64_t took_ns[2]; /* the last renderings, of processor time */
};

static void version_put(struct version *version)
{
    if (!version || --version->refs)
        return;
    ut_text_fini(&version->text);
    free(version);
}

static uint64_t processor_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * UT_NS_PER_S + (uint64_t)now.tv_nsec;
}

static void render(struct file *file)
{
    struct version *version = calloc(1, sizeof(*version));
    version_put(file->latest);
    file->latest = version;
    if (!version)
        return;
    version->refs = 1;
    uint64_t before = processor_ns();
    file->text->render(file->of, &version->text);
    file->took_ns[1] = file->took_ns[0];
    file->took_ns[0] = processor_ns() - before;
    file->rendered_ns = ut_clock_ns();
}

/* Whether the latest version is younger than that. */
static bool is_fresh(const struct file *file, uint64_t kept_ns)
{
    uint64_t took_ns = file->took_ns[0] < file->took_ns[1] ? file->took_ns[0] : file->took_ns[1];
    uint64_t rest_ns = took_ns > LONG_NS ? took_ns * LONG_REST : 0;
    return file->latest && ut_clock_ns() - file->rendered_ns <= (kept_ns > rest_ns ? kept_ns : rest_ns);
}

/* The version to show now; NULL without memory. */
static struct version *current(struct file *file)
{
    if (!is_fresh(file, KEPT_NS))
        render(file);
    if (file->latest && ut_text_failed(&file->latest->text))
        return NULL;
    return file->latest;
}

static void text_looked_up(struct fs_node *node)
{
    struct file *file = node->object;
    if (!file->text->length && !is_fresh(file, 0))
        render(file);
}

static uint64_t text_bytes(struct fs_node *node)
{
    struct file *file = node->object;
    if (file->text->length)
        return file->text->length(file->of);
    const struct version *version = current(file);
    return version ? version->text.len : 0;
}

/* Opening with O_TRUNC changes nothing: a write assigns, and what it leaves out stays. */
static void text_open(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi)
{
    struct file *file = node->object;
    bool writes = (fi->flags & O_ACCMODE) != O_RDONLY;
    if (writes && !file->text->take) {
        fuse_reply_err(req, EPERM);
        return;
    }
    if (file->text->length)
        render(file);
    struct version *version = current(file);
    if (!version) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    version->refs++;
    fi->fh = (uint64_t)(uintptr_t)version;
    fi->direct_io = 1;
    fs_node_reply_open(req, node, fi);
}

static void text_read(fuse_req_t req, struct fs_node *node, size_t size, off_t offset,
                      struct fuse_file_info *fi)
{
    const struct version *version = (struct version *)(uintptr_t)fi->fh;
    (void)node;
    size_t from = (uint64_t)offset < version->text.len ? (size_t)offset : version->text.len;
    size_t left = version->text.len - from;
    fuse_reply_buf(req, left ? version->text.bytes + from : NULL, left < size ? left : size);
}

static void text_write(fuse_req_t req, struct fs_node *node, const char *bytes, size_t size, off_t offset,
                       struct fuse_file_info *fi)
{
    struct file *file = node->object;
    struct ut_err err = {0};
    (void)offset, (void)fi;
    int rc = file->text->take ? file->text->take(file->of, bytes, size, &err) : -EPERM;
    if (rc) {
        fuse_reply_err(req, -rc);
        return;
    }
    version_put(file->latest);
    file->latest = NULL;
    if (file->text->frees)
        fs_dispose_answer(node->fs, req, node->owner, size);
    else
        fuse_reply_write(req, size);
}

static void text_release(struct fs_node *node, struct fuse_file_info *fi)
{
    (void)node;
    version_put((struct version *)(uintptr_t)fi->fh);
}

/* `> config` and `truncate -s 0`: like O_TRUNC. */
static void text_resize(fuse_req_t req, struct fs_node *node, uint64_t bytes)
{
    const struct file *file = node->object;
    (void)bytes;
    if (file->text->take)
        fs_node_reply_attr(req, node);
    else
        fuse_reply_err(req, EPERM);
}

static void text_free(struct fs_node *node)
{
    struct file *file = node->object;
    version_put(file->latest);
    free(file);
}

#define TEXT_KIND(permissions)                                                              \
    {                                                                                       \
        .mode = S_IFREG | (permissions), .bytes = text_bytes, .looked_up = text_looked_up,  \
        .open = text_open, .read = text_read, .write = text_write, .release = text_release, \
        .resize = text_resize, .free = text_free,                                           \
    }

static const struct fs_kind read_only_kind = TEXT_KIND(0444);
static const struct fs_kind owner_writes_kind = TEXT_KIND(0644);
static const struct fs_kind all_write_kind = TEXT_KIND(0666);

struct fs_node *fs_text_create(struct fs_node *parent, const char *name, const struct fs_text *text,
                               mode_t mode, const struct fs_owner *owner, void *of)
{
    struct file *file = calloc(1, sizeof(*file));
    if (!file)
        return NULL;
    *file = (struct file){.text = text, .of = of};
    const struct fs_kind *kind = mode & 0002   ? &all_write_kind
                                 : mode & 0200 ? &owner_writes_kind
                                               : &read_only_kind;
    struct fs_node *node = fs_node_create(parent, name, kind, owner, file);
    if (!node)
        free(file);
    return node;
}

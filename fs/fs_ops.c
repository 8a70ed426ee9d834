/*
 * The FUSE requests: finds the node, refuses what its kind does not do, and hands the rest on. Every request
 * comes in on the loop thread, and none of these functions blocks.
 */
#include "fs/fs_dispose.h"
#include "fs/fs_memory.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>

static struct fs *fs_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

static struct fs_node *node_of(fuse_req_t req, fuse_ino_t number)
{
    return number == FUSE_ROOT_ID ? fs_of(req)->root : (struct fs_node *)(uintptr_t)number;
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    struct fs *fs = userdata;
    /* Splicing a request costs more than copying one of ours; cached pages are dropped by us, when we say. */
    conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                              FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
#if FS_HAS_PASSTHROUGH
    if (fs->passthrough && (conn->capable & FUSE_CAP_PASSTHROUGH)) {
        conn->want |= FUSE_CAP_PASSTHROUGH;
        conn->max_backing_stack_depth = 1;
    } else
#endif
        if (fs->passthrough) {
        fs->passthrough = false;
        snprintf(fs->buffer_why, sizeof(fs->buffer_why), "the kernel offers no FUSE passthrough");
    }
    /* Writes by AIO are background requests, which the kernel sends only so many of; releases and
     * written-back pages of everybody are others. A dozen parked triggers, the usual limit, would hold those
     * up. */
    conn->max_background = UINT16_MAX;
    fs->mounted = true;
}

static void reply_node(fuse_req_t req, struct fs_node *node)
{
    struct fuse_entry_param entry = {.ino = fs_node_number(node),
                                     .generation = node->ino,
                                     .attr_timeout = fs_node_attr_timeout(node),
                                     .entry_timeout = fs_node_name_timeout(node)};
    fs_node_stat(node, &entry.attr);
    node->lookups++;
    if (fuse_reply_entry(req, &entry) == -ENOENT)
        fs_node_forget(node, 1); /* the caller has gone meanwhile */
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs_node *dir = node_of(req, parent);
    struct fs_node *child = dir->gone ? NULL : fs_node_find(dir, name);
    if (!child) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    if (child->kind->looked_up)
        child->kind->looked_up(child);
    reply_node(req, child);
}

static void op_forget(fuse_req_t req, fuse_ino_t number, uint64_t lookups)
{
    if (number != FUSE_ROOT_ID)
        fs_node_forget(node_of(req, number), lookups);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++) {
        if (forgets[i].ino != FUSE_ROOT_ID)
            fs_node_forget(node_of(req, forgets[i].ino), forgets[i].nlookup);
    }
    fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *fi)
{
    (void)fi;
    fs_node_reply_attr(req, node_of(req, number));
}

/* default_permissions: the kernel has checked that the caller may. Only a job has an owner of its own. */
static int set_owner(struct fs_node *node, const struct stat *attr, int to_set)
{
    if (!(to_set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)))
        return 0;
    if (!node->kind->owns)
        return -EPERM;
    struct fs_owner *owner = fs_job_owner(node);
    if (to_set & FUSE_SET_ATTR_MODE)
        owner->mode = attr->st_mode & 0777;
    if (to_set & FUSE_SET_ATTR_UID)
        owner->uid = attr->st_uid;
    if (to_set & FUSE_SET_ATTR_GID)
        owner->gid = attr->st_gid;
    fs_job_owner_changed(node);
    return 0;
}

static void op_setattr(fuse_req_t req, fuse_ino_t number, struct stat *attr, int to_set,
                       struct fuse_file_info *fi)
{
    struct fs_node *node = node_of(req, number);
    (void)fi;
    int rc = node->gone ? -node->gone : set_owner(node, attr, to_set);
    bool resize = !rc && (to_set & FUSE_SET_ATTR_SIZE);
    if (resize && !node->kind->resize)
        rc = -EPERM;
    if (rc)
        fuse_reply_err(req, -rc);
    else if (resize)
        node->kind->resize(req, node, (uint64_t)attr->st_size);
    else
        fs_node_reply_attr(req, node); /* times are not kept */
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct fs_node *dir = node_of(req, parent), *made;
    (void)mode;
    int rc = dir->gone ? -dir->gone : -EPERM;
    if (!dir->gone && dir->kind->mkdir)
        rc = fs_node_find(dir, name) ? -EEXIST : dir->kind->mkdir(dir, name, fuse_req_ctx(req), &made);
    if (rc)
        fuse_reply_err(req, -rc);
    else
        reply_node(req, made);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs_node *dir = node_of(req, parent);
    struct fs_node *child = dir->gone ? NULL : fs_node_find(dir, name);
    const struct fs_owner *job = child ? child->owner : NULL;
    int rc = child ? -EPERM : -ENOENT;
    if (child && !S_ISDIR(child->kind->mode))
        rc = -ENOTDIR;
    else if (child && child->kind->rmdir)
        rc = child->kind->rmdir(child);
    if (rc)
        fuse_reply_err(req, -rc);
    else
        fs_dispose_answer(fs_of(req), req, job, 0);
}

/* ---- nothing else can be made, renamed, linked or removed ---- */

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev)
{
    (void)parent, (void)name, (void)mode, (void)dev;
    fuse_reply_err(req, EPERM);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *fi)
{
    (void)parent, (void)name, (void)mode, (void)fi;
    fuse_reply_err(req, EPERM);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    (void)target, (void)parent, (void)name;
    fuse_reply_err(req, EPERM);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    (void)parent, (void)name;
    fuse_reply_err(req, EPERM);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                      const char *new_name, unsigned flags)
{
    (void)parent, (void)name, (void)new_parent, (void)new_name, (void)flags;
    fuse_reply_err(req, EPERM);
}

static void op_link(fuse_req_t req, fuse_ino_t number, fuse_ino_t new_parent, const char *new_name)
{
    (void)number, (void)new_parent, (void)new_name;
    fuse_reply_err(req, EPERM);
}

/* ---- directories: a listing is made when reading begins, or begins again, and read from there ---- */

struct listing {
    char *bytes;
    size_t len;
};

static bool list_entry(fuse_req_t req, struct listing *list, const char *name, struct fs_node *node)
{
    struct stat st = {.st_ino = node->ino, .st_mode = node->kind->mode};
    size_t more = fuse_add_direntry(req, NULL, 0, name, NULL, 0);
    char *bytes = realloc(list->bytes, list->len + more);
    if (!bytes)
        return false;
    list->bytes = bytes;
    fuse_add_direntry(req, bytes + list->len, more, name, &st, (off_t)(list->len + more));
    list->len += more;
    return true;
}

static bool list_all(fuse_req_t req, struct listing *list, struct fs_node *dir)
{
    list->len = 0;
    if (!list_entry(req, list, ".", dir) || !list_entry(req, list, "..", dir->parent ? dir->parent : dir))
        return false;
    UT_LIST_EACH(&dir->children, struct fs_node, sibling, child)
    {
        if (!list_entry(req, list, child->name, child))
            return false;
    }
    return true;
}

static void op_opendir(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *fi)
{
    struct fs_node *dir = node_of(req, number);
    struct listing *list = dir->gone ? NULL : calloc(1, sizeof(*list));
    if (!list) {
        fuse_reply_err(req, dir->gone ? dir->gone : ENOMEM);
        return;
    }
    fi->fh = (uint64_t)(uintptr_t)list;
    if (!fs_node_reply_open(req, dir, fi))
        free(list);
}

static void op_readdir(fuse_req_t req, fuse_ino_t number, size_t size, off_t offset,
                       struct fuse_file_info *fi)
{
    struct listing *list = (struct listing *)(uintptr_t)fi->fh;
    struct fs_node *dir = node_of(req, number);
    if (dir->gone || (offset == 0 && !list_all(req, list, dir))) {
        fuse_reply_err(req, dir->gone ? dir->gone : ENOMEM);
        return;
    }
    size_t from = (size_t)offset < list->len ? (size_t)offset : list->len;
    size_t left = list->len - from;
    fuse_reply_buf(req, list->bytes + from, left < size ? left : size);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *fi)
{
    struct listing *list = (struct listing *)(uintptr_t)fi->fh;
    free(list->bytes);
    free(list);
    fs_node_closed(node_of(req, number));
    fuse_reply_err(req, 0);
}

/* ---- files ---- */

static void op_open(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *fi)
{
    struct fs_node *node = node_of(req, number);
    if (node->gone)
        fuse_reply_err(req, node->gone);
    else
        node->kind->open(req, node, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t number, size_t size, off_t offset, struct fuse_file_info *fi)
{
    struct fs_node *node = node_of(req, number);
    if (node->gone)
        fuse_reply_err(req, node->gone);
    else
        node->kind->read(req, node, size, offset, fi);
}

static void op_write(fuse_req_t req, fuse_ino_t number, const char *bytes, size_t size, off_t offset,
                     struct fuse_file_info *fi)
{
    struct fs_node *node = node_of(req, number);
    if (node->gone)
        fuse_reply_err(req, node->gone);
    else if (!node->kind->write)
        fuse_reply_err(req, EPERM);
    else
        node->kind->write(req, node, bytes, size, offset, fi);
}

static void op_poll(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *fi, struct fuse_pollhandle *ph)
{
    struct fs_node *node = node_of(req, number);
    if (!node->gone && node->kind->poll) {
        node->kind->poll(req, node, fi, ph);
        return;
    }
    if (ph)
        fuse_pollhandle_destroy(ph);
    fuse_reply_poll(req, node->gone ? POLLERR | POLLHUP : POLLIN | POLLOUT);
}

/* Somebody closes a descriptor; the file may stay open by others. */
static void op_flush(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *fi)
{
    struct fs_node *node = node_of(req, number);
    if (node->kind->flush)
        node->kind->flush(node, fi, fuse_req_ctx(req)->pid);
    fuse_reply_err(req, 0);
}

static void op_release(fuse_req_t req, fuse_ino_t number, struct fuse_file_info *fi)
{
    struct fs_node *node = node_of(req, number);
    if (node->kind->release)
        node->kind->release(node, fi);
    fs_node_closed(node);
    fuse_reply_err(req, 0);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t number, int mode, off_t offset, off_t length,
                         struct fuse_file_info *fi)
{
    struct fs_node *node = node_of(req, number);
    (void)fi;
    if (node->gone || !node->kind->fallocate)
        fuse_reply_err(req, node->gone ? node->gone : EOPNOTSUPP);
    else
        node->kind->fallocate(req, node, mode, offset, length);
}

static void op_statfs(fuse_req_t req, fuse_ino_t number)
{
    struct fs *fs = fs_of(req);
    (void)number;
    uint64_t total = fs->settings->memory_bytes, used = fs_memory_used_bytes(fs);
    struct statvfs st = {
        .f_bsize = 4096,
        .f_frsize = 4096,
        .f_blocks = total / 4096,
        .f_bfree = used < total ? (total - used) / 4096 : 0,
        .f_bavail = used < total ? (total - used) / 4096 : 0,
        .f_files = fs->last_ino,
        .f_namemax = FS_NAME_BYTES - 1,
    };
    fuse_reply_statfs(req, &st);
}

const struct fuse_lowlevel_ops fs_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .mkdir = op_mkdir,
    .rmdir = op_rmdir,
    .mknod = op_mknod,
    .create = op_create,
    .symlink = op_symlink,
    .unlink = op_unlink,
    .rename = op_rename,
    .link = op_link,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .releasedir = op_releasedir,
    .open = op_open,
    .read = op_read,
    .write = op_write,
    .poll = op_poll,
    .flush = op_flush,
    .release = op_release,
    .fallocate = op_fallocate,
    .statfs = op_statfs,
};

#include "fs/fs_node.h"

#include "fs/fs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct fs_node *node_create(struct fs *fs, const char *name, const struct fs_kind *kind,
                                   const struct fs_owner *owner, void *object)
{
    struct fs_node *node = calloc(1, sizeof(*node));
    if (!node)
        return NULL;
    node->fs = fs;
    node->kind = kind;
    node->owner = owner;
    node->object = object;
    node->ino = ++fs->last_ino;
    snprintf(node->name, sizeof(node->name), "%s", name);
    clock_gettime(CLOCK_REALTIME, &node->born);
    ut_list_init(&node->children);
    ut_list_init(&node->sibling);
    return node;
}

struct fs_node *fs_node_create(struct fs_node *parent, const char *name, const struct fs_kind *kind,
                               const struct fs_owner *owner, void *object)
{
    struct fs_node *node = node_create(parent->fs, name, kind, owner, object);
    if (!node)
        return NULL;
    node->parent = parent;
    ut_list_append(&parent->children, &node->sibling);
    return node;
}

struct fs_node *fs_node_create_root(struct fs *fs, const struct fs_kind *kind, const struct fs_owner *owner)
{
    return node_create(fs, "", kind, owner, NULL);
}

struct fs_node *fs_node_find(const struct fs_node *dir, const char *name)
{
    UT_LIST_EACH(&dir->children, struct fs_node, sibling, child)
    {
        if (strcmp(child->name, name) == 0)
            return child;
    }
    return NULL;
}

static void free_if_unused(struct fs_node *node)
{
    if (!node->gone || node->lookups || node->opens)
        return;
    ut_list_remove(&node->sibling);
    if (node->kind->free)
        node->kind->free(node);
    free(node);
}

void fs_node_cut(struct fs_node *node, int rc)
{
    UT_LIST_EACH(&node->children, struct fs_node, sibling, child)
    {
        fs_node_cut(child, rc);
    }
    ut_list_remove(&node->sibling);
    ut_list_append(&node->fs->gone_nodes, &node->sibling);
    node->parent = NULL;
    node->gone = rc;
    free_if_unused(node);
}

void fs_node_forget(struct fs_node *node, uint64_t lookups)
{
    node->lookups -= lookups < node->lookups ? lookups : node->lookups;
    free_if_unused(node);
}

void fs_node_closed(struct fs_node *node)
{
    node->opens--;
    free_if_unused(node);
}

bool fs_node_reply_open(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi)
{
    node->opens++;
    if (fuse_reply_open(req, fi) == 0)
        return true;
    if (node->kind->release)
        node->kind->release(node, fi);
    fs_node_closed(node);
    return false;
}

void fs_node_destroy(struct fs_node *node)
{
    UT_LIST_EACH(&node->children, struct fs_node, sibling, child)
    {
        fs_node_destroy(child);
    }
    ut_list_remove(&node->sibling);
    if (node->kind->free)
        node->kind->free(node);
    free(node);
}

fuse_ino_t fs_node_number(const struct fs_node *node)
{
    return node == node->fs->root ? FUSE_ROOT_ID : (fuse_ino_t)(uintptr_t)node;
}

static unsigned count_directories(const struct fs_node *dir)
{
    unsigned count = 0;
    UT_LIST_EACH(&dir->children, struct fs_node, sibling, child)
    {
        count += S_ISDIR(child->kind->mode);
    }
    return count;
}

void fs_node_stat(struct fs_node *node, struct stat *st)
{
    mode_t type = node->kind->mode & S_IFMT;
    *st = (struct stat){
        .st_ino = node->ino,
        .st_mode = type | (node->kind->mode & (node->owner->mode | S_ISVTX)),
        .st_nlink = S_ISDIR(type) ? 2 + count_directories(node) : 1,
        .st_uid = node->owner->uid,
        .st_gid = node->owner->gid,
        .st_size = node->kind->bytes ? (off_t)node->kind->bytes(node) : 0,
        .st_blksize = 4096,
        .st_atim = node->born,
        .st_mtim = node->born,
        .st_ctim = node->born,
    };
    if (node->kind->stat)
        node->kind->stat(node, st);
}

double fs_node_attr_timeout(const struct fs_node *node)
{
    return S_ISDIR(node->kind->mode) ? FS_MOMENT_S : 0;
}

double fs_node_name_timeout(const struct fs_node *node)
{
    if (node->kind->still)
        return 3600;
    return node->kind->lasting && node->kind->lasting(node) ? FS_MOMENT_S : 0;
}

void fs_node_reply_attr(fuse_req_t req, struct fs_node *node)
{
    struct stat st;
    if (node->gone) {
        fuse_reply_err(req, node->gone);
        return;
    }
    fs_node_stat(node, &st);
    fuse_reply_attr(req, &st, fs_node_attr_timeout(node));
}

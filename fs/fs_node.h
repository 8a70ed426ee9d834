/*
 * The objects of the mount: directories and files, in a tree that is the daemon's own. A node exists as long
 * as what it shows; when that goes it is cut from the tree, and stays only for clients that still hold it,
 * who get its last word (ENODEV, or ESTALE for a dropped rank).
 *
 * The node's address is the number the kernel knows it by; it is freed when the kernel has forgotten it and
 * nothing has it open. What differs between kinds of nodes is a table of functions, struct fs_kind.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_NODE_H
#define FS_NODE_H

#include "fs/fs_fuse.h"
#include "utils/ut_list.h"
#include "utils/ut_text.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define FS_NAME_BYTES 65u

/* How long the kernel may trust what it was told a moment ago, seconds. */
#define FS_MOMENT_S 0.02

struct fs;
struct fs_node;

/* Whose the nodes of a subtree are: root's, or a job's owner's. `mode` masks the kinds' permissions. */
struct fs_owner {
    uid_t uid;
    gid_t gid;
    mode_t mode;
};

/* What a kind of node does. Functions that are NULL refuse: directories cannot be changed (EPERM), files not
 * be resized (EPERM), polled (always ready) and so on. Whoever gets a request answers it, at once or later.
 */
struct fs_kind {
    mode_t mode; /* type and permissions, before the owner's mask */
    bool owns;   /* its owner and mode can be changed: a job */
    bool still;  /* exists as long as its directory: the name need not be looked up again there */
    bool (*lasting)(const struct fs_node *node); /* not still, but it will not go by itself for a moment */
    uint64_t (*bytes)(struct fs_node *node);     /* st_size now */
    void (*stat)(struct fs_node *node, struct stat *st); /* fills in more than that */
    void (*looked_up)(struct fs_node *node);             /* the kernel is about to learn attributes by name */
    int (*mkdir)(struct fs_node *dir, const char *name, const struct fuse_ctx *caller, struct fs_node **out);
    int (*rmdir)(struct fs_node *child); /* of a directory: removes itself from its parent */
    void (*open)(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi);
    void (*read)(fuse_req_t req, struct fs_node *node, size_t size, off_t offset, struct fuse_file_info *fi);
    void (*write)(fuse_req_t req, struct fs_node *node, const char *bytes, size_t size, off_t offset,
                  struct fuse_file_info *fi);
    void (*poll)(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi, struct fuse_pollhandle *ph);
    void (*flush)(struct fs_node *node, struct fuse_file_info *fi, pid_t tid); /* answered by the caller */
    void (*release)(struct fs_node *node, struct fuse_file_info *fi);          /* answered by the caller */
    void (*resize)(fuse_req_t req, struct fs_node *node, uint64_t bytes);      /* answers with attributes */
    void (*fallocate)(fuse_req_t req, struct fs_node *node, int mode, off_t offset, off_t length);
    void (*free)(struct fs_node *node); /* the node goes: drop what `object` holds */
};

struct fs_node {
    struct fs *fs;
    const struct fs_kind *kind;
    struct fs_node *parent; /* NULL once cut off */
    struct ut_list children, sibling;
    const struct fs_owner *owner;
    void *object; /* what it shows; the kind knows */
    uint64_t ino;
    uint64_t lookups; /* the kernel's references */
    unsigned opens;
    int gone; /* 0, or the errno that everybody who still holds it gets */
    struct timespec born;
    char name[FS_NAME_BYTES];
};

/* Makes a node below parent. NULL without memory. */
struct fs_node *fs_node_create(struct fs_node *parent, const char *name, const struct fs_kind *kind,
                               const struct fs_owner *owner, void *object);

/* The child of that name, or NULL. */
struct fs_node *fs_node_find(const struct fs_node *dir, const char *name);

/* Cuts the node and all below it from the tree; who holds them gets rc (ENODEV or ESTALE). */
void fs_node_cut(struct fs_node *node, int rc);

/* The kernel, or an open file, gives references up; may free the node. */
void fs_node_forget(struct fs_node *node, uint64_t lookups);
void fs_node_closed(struct fs_node *node);

/* Fills in the attributes of the node. */
void fs_node_stat(struct fs_node *node, struct stat *st);

/* For how many seconds the kernel may take the node's attributes for true. Files: not at all, their size may
 * be another one at any moment. Directories change by requests of the kernel's own, or go; a moment's trust
 * spares it asking twice at each step of a path. */
double fs_node_attr_timeout(const struct fs_node *node);

/* For how many seconds the kernel may take the name for the node's without asking: never beyond the moment at
 * which the daemon itself could remove it. What clients remove, the kernel knows. */
double fs_node_name_timeout(const struct fs_node *node);

/* Answers with the node's attributes. */
void fs_node_reply_attr(fuse_req_t req, struct fs_node *node);

/* Answers an open: the node is open once more. False when the caller has gone meanwhile, so that it is closed
 * again, by `release` if the kind has one. */
bool fs_node_reply_open(fuse_req_t req, struct fs_node *node, struct fuse_file_info *fi);

/* For a node that no kernel has seen: frees it and all below it. At the end of the session. */
void fs_node_destroy(struct fs_node *node);

/* The root of a new tree. NULL without memory. */
struct fs_node *fs_node_create_root(struct fs *fs, const struct fs_kind *kind, const struct fs_owner *owner);

/* The number by which the kernel knows the node. */
fuse_ino_t fs_node_number(const struct fs_node *node);

#endif

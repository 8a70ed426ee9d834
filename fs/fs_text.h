/*
 * Text files: rendered whole when a client looks, and kept for the moment between its look and its read, so
 * that the size it was told and the bytes it gets belong together.
 *
 * A version is made at every LOOKUP (each path walk asks, nothing is cached), and at GETATTR or OPEN when the
 * last one is older than 100 ms; one that takes long to render is kept longer. An open file keeps the version
 * of its open.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_TEXT_H
#define FS_TEXT_H

#include "fs/fs_node.h"
#include "utils/ut_err.h"

/* What a text file shows, and what it takes. The object of the node is one of these, owned by the node. */
struct fs_text {
    void (*render)(void *of, struct ut_text *out);
    /* One write by a client. 0 or -errno. NULL: the file cannot be written. */
    int (*take)(void *of, const char *text, size_t len, struct ut_err *err);
    bool frees; /* a write may give memory back */
    /* The length when it is known without rendering; NULL: render. */
    uint64_t (*length)(void *of);
};

/* Makes a text file of `text` showing `of`, 0444, or 0644 or 0666 when it takes writes (mode). NULL without
 * memory. */
struct fs_node *fs_text_create(struct fs_node *parent, const char *name, const struct fs_text *text,
                               mode_t mode, const struct fs_owner *owner, void *of);

#endif

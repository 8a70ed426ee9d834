/*
 * `window`: a node's landing memory as this node reaches it, as a file.
 *
 * A mapping is the memory itself (passthrough), be it shared memory or a PCI BAR. Reads and writes come here,
 * since a BAR has neither: a worker copies between the memory and the request, through a mapping of its own,
 * so that a peer's memory that goes away meanwhile is no concern of the copy. Without passthrough the file
 * cannot be mapped (ENODEV): a cached copy of memory that others write would only look like it. Nor can a
 * window that begins in the middle of its BAR or file: the kernel shows clients the file from its beginning.
 *
 * Threads: the loop thread; the copies are made by a worker while the request is parked.
 */
#ifndef FS_WINDOW_H
#define FS_WINDOW_H

#include "fs/fs.h"
#include "ntbmem/ntbm_buf.h"

#define FS_WINDOW_ALONE_BYTES (UINT64_C(1) << 20)

struct fs_peer;

/* Alone on the fabric this node has no landing memory that anybody writes into; then memory of its own stands
 * for it, so that the file is as it will be. */
struct fs_window {
    struct fs *fs;
    unsigned node;
    struct fs_peer *peer;  /* NULL: this node's own */
    struct ntbm_buf alone; /* fd -1: not made */
    int backing_id;
};

/* Where a window's memory lies: a part of a file that can be mapped in whole units of align_bytes. */
struct fs_extent {
    int fd;
    uint64_t offset, bytes, align_bytes;
};

/* 0, or -EHOSTDOWN while a peer's memory is not attached. */
int fs_window_find(const struct fs_window *window, struct fs_extent *out);

/* A line of `link`: whether clients can map the window, or why not. None while there is no memory. */
void fs_window_show(const struct fs_window *window, struct ut_text *out);

extern const struct fs_kind fs_window_kind; /* its object is a struct fs_window, which it frees */

#endif

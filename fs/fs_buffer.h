/*
 * `buffer`: a rank's gradient memory as a file.
 *
 * Two modes (fs.passthrough): the file's pages *are* those of the backing file, and reads, writes and
 * mappings never come here; or the kernel caches the file as any other and the pages are kept coherent around
 * each operation (fs_exec.c). Sizes are set here in both.
 *
 * Threads: the loop thread; what allocates or frees pages is done by a worker while the request is parked.
 */
#ifndef FS_BUFFER_H
#define FS_BUFFER_H

#include "fs/fs_rank.h"

/* Allocates the buffer's pages on a worker, for nobody in particular: a rank joined with a size. */
void fs_buffer_reserve(struct fs_rank *rank);

/* The rank's operations begin to use its memory, so whoever cut the buffer off to write it anew has written:
 * what it was kept for that, beyond its length, is free for others. Cheap when nothing was kept. */
void fs_buffer_written(struct fs_rank *rank);

extern const struct fs_kind fs_buffer_kind;

#endif

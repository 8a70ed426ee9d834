/*
 * Which NUMA node the daemon lives on: its landing memory, its buffers and the threads that move data between
 * them belong beside the device they travel through.
 *
 * `numa = auto` is the node of the devices that are watched, when they agree, else of landing memory that is
 * a device (dax:); a number is that node; `none` leaves all to the kernel.
 *
 * Used at start, before there are other threads.
 */
#ifndef FS_NUMA_H
#define FS_NUMA_H

#include "fs/fs.h"

/* Decides fs->numa_node and fs->numa_why, and moves the calling thread there. 0, or -EINVAL with a sentence:
 * the node that was asked for is not one of this machine, or has no CPU that this process may use. */
int fs_numa_place(struct fs *fs, struct ut_err *err);

/* Has the pages of a mapping come from the chosen node, as far as it has any left. Harmless when none is
 * chosen; without effect on memory whose place is fixed. */
void fs_numa_prefer(const struct fs *fs, void *base, size_t bytes);

/* Appends the node and why, as a line "numa 0 (...)". */
void fs_numa_show(const struct fs *fs, struct ut_text *out);

#endif

/*
 * The drain command: what the operator has configured to be run when a node becomes suspect, so that a batch
 * system gives it no more work.
 *
 * It is run once for each time a node becomes suspect, one at a time, by a worker of its own that starts it,
 * waits for its end and collects it; one that takes longer than drain_timeout is killed with all that it
 * started. How it ended is an event. One that still runs when the daemon stops goes on by itself.
 *
 * Threads: the functions here on the loop thread; none of them blocks, except destroy for a moment.
 */
#ifndef FS_DRAIN_H
#define FS_DRAIN_H

#include "fs/fs.h"

struct fs_drain;

/* 0 and *out NULL when no command is configured; -errno. */
int fs_drain_create(struct fs *fs, struct fs_drain **out);
void fs_drain_destroy(struct fs_drain *drain);

/* Has the command run for this node, after those asked for before. reason is one line; device may be empty.
 * Harmless on NULL. */
void fs_drain_node(struct fs_drain *drain, unsigned node, const char *reason, const char *device);

#endif

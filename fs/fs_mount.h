/*
 * The place of the mount: is it fit to be mounted on, is there a mount already, does it answer.
 *
 * A mount whose daemon was killed stays in the mount table and every access gives ENOTCONN: that one is taken
 * away. One whose daemon lives is never touched, and a daemon that is stopped or hangs counts as alive: so
 * whoever looks at a mount does it in a process that can be left behind.
 *
 * Called by main() before there are other threads, and by the process that waits for the daemon; what
 * concerns the daemon's own mount by its loop thread, at the end.
 */
#ifndef FS_MOUNT_H
#define FS_MOUNT_H

#include "fs/fs_options.h"

/* Asks the file system about path, whatever the kernel remembers, for at most timeout_ms: 0 for a directory,
 * -ENOTDIR for anything else, -ETIMEDOUT when no answer came, else the -errno: -ENOTCONN on a dead mount. */
int fs_mount_probe(const char *path, int timeout_ms);

/* Makes settings->mountpoint absolute, without symbolic links, and fit: detaches dead mounts of ours from it.
 * 0; -EBUSY when a live mount of ours is there, -ETIMEDOUT when whatever is there does not answer, -ENOENT,
 * -ENOTDIR, or another -errno; err then holds a sentence that names the path. */
int fs_mount_prepare(struct fs_settings *settings, struct ut_err *err);

/* The number of the mount that path lies on, without asking the file system there. 0 or -errno. */
int fs_mount_find(const char *path, int *out_id);

/* Detaches the mount of that number if it is still at path, and dead since its connection was aborted. True
 * when it was there. Numbers are given again: a daemon that was started meanwhile may have got this one. */
bool fs_mount_take_away(const char *path, int id);

/* Appends the options to mount with, in libfuse's form (for "-o"). */
void fs_mount_options(const struct fs_settings *settings, struct ut_text *out);

#endif

/*
 * The file system itself: mounts, serves until it is told to stop, unmounts.
 */
#ifndef FS_SERVE_H
#define FS_SERVE_H

#include "fs/fs_options.h"

/*
 * Mounts on settings->mountpoint (absolute, a directory, no mount of ours on it) with the options of
 * fs_mount_options(), and serves until SIGTERM, SIGINT, SIGHUP or an unmount. Called once, by main(), before
 * there is any other thread. ready(ctx) is called once, on the loop thread, after the kernel's INIT was
 * answered; it does not block.
 *
 * Returns the exit status of the process: 0 when ended as asked; 1 otherwise, and then one line on standard
 * error has said why.
 */
int fs_serve(const struct fs_settings *settings, void (*ready)(void *ctx), void *ctx);

#endif

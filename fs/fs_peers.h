/*
 * nodes/: a directory for each node of the fabric, with its window, link and stats.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_PEERS_H
#define FS_PEERS_H

#include "fs/fs.h"

/* Makes nodes/ and the directory of each node. 0, -ENOMEM or -errno. */
int fs_peers_init(struct fs *fs);

#endif

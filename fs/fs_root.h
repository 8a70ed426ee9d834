/*
 * The files at the top of the mount: README, version, config, stats, metrics, health, events, topology.
 */
#ifndef FS_ROOT_H
#define FS_ROOT_H

#include "fs/fs.h"

/* Makes the root directory and its files; jobs/ and nodes/ are made by others. 0 or -ENOMEM. */
int fs_root_init(struct fs *fs);

/* What each file shows; fs_metrics.c, fs_health.c. */
void fs_metrics_render(void *of, struct ut_text *out);
void fs_health_render(void *of, struct ut_text *out);

/* The text of README; fs_readme.c. */
extern const char fs_readme[];

#endif

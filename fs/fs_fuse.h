/*
 * libfuse's low-level interface, included in one way everywhere.
 */
#ifndef FS_FUSE_H
#define FS_FUSE_H

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 14)
#include <fuse_lowlevel.h>

/* Parallel direct writes and passthrough: libfuse 3.17, which builds of older ones do without. */
#define FS_HAS_PASSTHROUGH (FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17))

#endif

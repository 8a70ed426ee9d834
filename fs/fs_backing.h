/*
 * Backing files: registering a file with the kernel so that an inode of the mount can be that file's pages
 * (FUSE passthrough, Linux 6.9; <linux/fuse.h>, FUSE_DEV_IOC_BACKING_OPEN). Called here rather than through
 * libfuse, which wants a request at hand, while the first question is asked before there is one.
 */
#ifndef FS_BACKING_H
#define FS_BACKING_H

/* Registers fd with the session's device. The id, above 0; -EPERM without CAP_SYS_ADMIN, -ENOTTY or
 * -EOPNOTSUPP where the kernel has no passthrough, or another -errno. */
int fs_backing_open(int fuse_fd, int fd);

/* Gives the id back. Files opened with it keep working. */
void fs_backing_close(int fuse_fd, int id);

#endif

#include "fs/fs_backing.h"

#include <errno.h>
#include <stdint.h>
#include <sys/ioctl.h>

/* As <linux/fuse.h> has them; Debian 12's copy is older than they are. */
struct backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};

#define BACKING_OPEN _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

_Static_assert(sizeof(struct backing_map) == 16, "struct fuse_backing_map of the kernel");

int fs_backing_open(int fuse_fd, int fd)
{
    struct backing_map map = {.fd = fd};
    int id = ioctl(fuse_fd, BACKING_OPEN, &map);
    return id < 0 ? -errno : id;
}

void fs_backing_close(int fuse_fd, int id)
{
    uint32_t number = (uint32_t)id;
    ioctl(fuse_fd, BACKING_CLOSE, &number);
}

/*
 * Memory that the kernel has set aside: /dev/daxX.Y over reserved (memmap=) or CXL memory. It is contiguous,
 * so an NTB can be pointed at it, and it can only be mapped in whole units of its own alignment, which sysfs
 * names. Stores go through the coherent cache; nothing of it is for ever, so nothing is flushed.
 */
#include "ntbmem/ntbm_mem.h"

#include "utils/ut_num.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *name_fault(const char *name)
{
    const char *last = strrchr(name, '/');
    if (*name != '/' || !last[1])
        return "the name of a DAX device is its path, as /dev/dax0.0";
    return NULL;
}

static int read_number(const char *dir, const char *file, uint64_t *out)
{
    char path[320], word[32] = "";
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t len = read(fd, word, sizeof(word) - 1);
    close(fd);
    if (len <= 0)
        return -EIO;
    word[strcspn(word, "\n")] = '\0';
    return ut_num_u64(word, INT64_MAX, out);
}

int ntbm_dax_limits(const char *sysfs_dir, uint64_t *out_bytes, uint64_t *out_align_bytes)
{
    uint64_t bytes, align_bytes;
    int rc = read_number(sysfs_dir, "size", &bytes);
    if (!rc)
        rc = read_number(sysfs_dir, "align", &align_bytes);
    if (rc)
        return rc;
    if (!align_bytes || (align_bytes & (align_bytes - 1)))
        return -EINVAL;
    *out_bytes = bytes;
    *out_align_bytes = align_bytes;
    return 0;
}

static int open_dax(const char *name, enum ntbm_role role, uint64_t want_bytes, struct ntbm_opened *out,
                    struct ut_err *err)
{
    char dir[256];
    uint64_t node_bytes; /* a device node has no size; sysfs knows it */
    snprintf(dir, sizeof(dir), "/sys/bus/dax/devices/%s", strrchr(name, '/') + 1);
    int fd = open(name, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return ut_err_set(err, -errno, "dax:%s: %s", name, strerror(errno));
    struct ntbm_opened opened = {.fd = fd};
    int rc = ntbm_mem_claim(fd, role, S_IFCHR, name, &node_bytes, err);
    if (!rc) {
        rc = ntbm_dax_limits(dir, &opened.bytes, &opened.align_bytes);
        if (rc)
            ut_err_set(err, rc, "dax:%s: %s does not say its size and alignment", name, dir);
    }
    if (rc)
        close(fd);
    else
        *out = opened;
    return rc;
}

const struct ntbm_kind ntbm_kind_dax = {
    .name = "dax",
    .what = "device",
    .name_fault = name_fault,
    .open = open_dax,
};

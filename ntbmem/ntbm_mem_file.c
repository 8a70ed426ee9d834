/*
 * Memory that is a file: on tmpfs or hugetlbfs of one machine, on a DAX file system, or whatever a hypervisor
 * shares with its guests. A missing file is made for its owner; one that is there is taken as it is, because
 * its length may mean something to others, and it stays.
 */
#include "ntbmem/ntbm_mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static const char *name_fault(const char *name)
{
    return *name == '/' ? NULL : "the path of a file begins with a slash";
}

/* Pages of hugetlbfs are larger than the machine's, and f_bsize says so. */
static uint64_t alignment(int fd)
{
    const long hugetlbfs_magic = 0x958458f6;
    struct statfs fs;
    if (fstatfs(fd, &fs) == 0 && fs.f_type == hugetlbfs_magic)
        return (uint64_t)fs.f_bsize;
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Makes the file with its pages allocated: a store that finds no space would be a signal. */
static int make_file(const char *name, uint64_t want_bytes, int *out_fd, struct ut_err *err)
{
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return ut_err_set(err, -errno, "file:%s: %s", name, strerror(errno));
    int rc = posix_fallocate(fd, 0, (off_t)want_bytes);
    if (rc) {
        close(fd);
        unlink(name);
        return ut_err_set(err, -rc, "file:%s cannot be made %llu bytes long: %s", name,
                          (unsigned long long)want_bytes, strerror(rc));
    }
    *out_fd = fd;
    return 0;
}

static int open_file(const char *name, enum ntbm_role role, uint64_t want_bytes, struct ntbm_opened *out,
                     struct ut_err *err)
{
    int rc = 0, fd = open(name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && role == NTBM_LANDING)
        rc = make_file(name, want_bytes, &fd, err);
    else if (fd < 0)
        rc = ut_err_set(err, -errno, "file:%s: %s", name, strerror(errno));
    if (rc)
        return rc;
    struct ntbm_opened opened = {.fd = fd, .align_bytes = alignment(fd)};
    rc = ntbm_mem_claim(fd, role, S_IFREG, name, &opened.bytes, err);
    if (rc)
        close(fd);
    else
        *out = opened;
    return rc;
}

const struct ntbm_kind ntbm_kind_file = {
    .name = "file",
    .what = "a file",
    .name_fault = name_fault,
    .open = open_file,
};

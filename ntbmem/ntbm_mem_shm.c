/*
 * Memory of this machine's POSIX shared memory: emulated links between daemons on one machine. The owner
 * makes the object, long enough, and keeps one that an earlier daemon left, so that peers need not map it
 * again.
 */
#include "ntbmem/ntbm_mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *name_fault(const char *name)
{
    if (!*name || strchr(name, '/') || *name == '.')
        return "the name of shared memory is a word without slashes that does not begin with a dot";
    return NULL;
}

/* The object's name as shm_open wants it: with a slash. */
static void shm_path(const char *name, char path[256])
{
    snprintf(path, 256, "/%s", name);
}

static void remove_shm(const char *name)
{
    char path[256];
    shm_path(name, path);
    shm_unlink(path);
}

/* Allocates every page, for a store that finds no space would be a signal. A peer whose window is too long
 * now faults, and opens it again. What cannot be made long enough is taken away. */
static int set_length(int fd, const char *name, uint64_t want_bytes, struct ntbm_opened *out,
                      struct ut_err *err)
{
    int rc = posix_fallocate(fd, 0, (off_t)want_bytes);
    if (rc)
        remove_shm(name);
    if (rc)
        return ut_err_set(err, -rc, "shm:%s cannot be made %llu bytes long: %s", name,
                          (unsigned long long)want_bytes, strerror(rc));
    if (want_bytes < out->bytes && ftruncate(fd, (off_t)want_bytes) < 0)
        return ut_err_set(err, -errno, "shm:%s cannot be shortened: %s", name, strerror(errno));
    out->bytes = want_bytes;
    return 0;
}

/* Its owner takes the name away at its end, and then the lock: who has waited for that lock holds memory that
 * no peer finds. */
static bool has_name(int fd)
{
    struct stat st;
    return fstat(fd, &st) < 0 || st.st_nlink;
}

/* As open_shm, or -EAGAIN when an earlier owner's object was opened while that owner ended. */
static int try_open(const char *name, enum ntbm_role role, uint64_t want_bytes, struct ntbm_opened *out,
                    struct ut_err *err)
{
    char path[256];
    shm_path(name, path);
    int fd = shm_open(path, O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && errno == ENOENT && role == NTBM_LANDING) /* O_CREAT hides whose it is: protected_regular */
        fd = shm_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return ut_err_set(err, -errno, "shm:%s: %s", name, strerror(errno));
    struct ntbm_opened opened = {.fd = fd, .align_bytes = (uint64_t)sysconf(_SC_PAGESIZE)};
    int rc = ntbm_mem_claim(fd, role, S_IFREG, path, &opened.bytes, err);
    if (!rc && role == NTBM_LANDING)
        rc = has_name(fd) ? set_length(fd, name, want_bytes, &opened, err) : -EAGAIN;
    if (rc)
        close(fd);
    else
        *out = opened;
    return rc;
}

static int open_shm(const char *name, enum ntbm_role role, uint64_t want_bytes, struct ntbm_opened *out,
                    struct ut_err *err)
{
    int rc;
    do
        rc = try_open(name, role, want_bytes, out, err);
    while (rc == -EAGAIN);
    return rc;
}

const struct ntbm_kind ntbm_kind_shm = {
    .name = "shm",
    .what = "emulated, this machine's RAM",
    .name_fault = name_fault,
    .open = open_shm,
    .remove = remove_shm,
};

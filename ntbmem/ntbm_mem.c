#include "ntbmem/ntbm_mem.h"

#include "utils/ut_num.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct ntbm_kind *const kinds[] = {&ntbm_kind_shm, &ntbm_kind_file, &ntbm_kind_dax,
                                                &ntbm_kind_pci};

const struct ntbm_kind *ntbm_kind_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strlen(kinds[i]->name) == len && !memcmp(kinds[i]->name, name, len))
            return kinds[i];
    return NULL;
}

const char *ntbm_kind_names(void)
{
    return "shm, file, dax and pci";
}

const char *ntbm_mapping_name(enum ntbm_mapping mapping)
{
    static const char *const names[] = {
        [NTBM_CACHED] = "cached", [NTBM_COMBINED] = "write-combining", [NTBM_UNCACHED] = "uncached"};
    return names[mapping];
}

/* Whoever else may write here could write anything into our peers and us. */
static int check_owner(int fd, unsigned type, const char *name, uint64_t *out_bytes, struct ut_err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return ut_err_set(err, -errno, "%s: %s", name, strerror(errno));
    if ((st.st_mode & S_IFMT) != type)
        return ut_err_set(err, -EPERM, "%s is not the sort of file that this kind of memory wants", name);
    if (st.st_uid != geteuid())
        return ut_err_set(err, -EPERM, "%s belongs to user %u, not to user %u who runs this daemon", name,
                          st.st_uid, geteuid());
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return ut_err_set(err, -EPERM, "%s may be written by other users: its mode is %03o, 600 is wanted",
                          name, st.st_mode & 0777);
    *out_bytes = (uint64_t)st.st_size;
    return 0;
}

int ntbm_mem_claim(int fd, enum ntbm_role role, unsigned type, const char *name, uint64_t *out_bytes,
                   struct ut_err *err)
{
    int rc = check_owner(fd, type, name, out_bytes, err);
    if (rc || role == NTBM_WINDOW || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return rc;
    if (errno == EWOULDBLOCK)
        return ut_err_set(err, -EBUSY,
                          "%s is the landing memory of another daemon: is its node number the same?", name);
    return ut_err_set(err, -errno, "%s cannot be locked: %s", name, strerror(errno));
}

/* Fills the part in from the object's size, and refuses what does not fit, in words. */
static int check_part(const struct ntbm_uri *uri, const struct ntbm_opened *opened, uint64_t *out_length,
                      struct ut_err *err)
{
    char text[256], align[24];
    ntbm_uri_show(uri, text, sizeof(text));
    ut_num_show_bytes(opened->align_bytes, align);
    uint64_t length = uri->length_bytes ? uri->length_bytes : opened->bytes;
    if ((uri->offset_bytes | length) & (opened->align_bytes - 1))
        return ut_err_set(err, -EINVAL,
                          "%s: offset %" PRIu64 " and length %" PRIu64 " must both be multiples of %s", text,
                          uri->offset_bytes, length, align);
    if (uri->offset_bytes + length > opened->bytes)
        return ut_err_set(err, -EINVAL, "%s: holds %" PRIu64 " bytes, %" PRIu64 " are needed", text,
                          opened->bytes, uri->offset_bytes + length);
    if (!length) /* its owner is just making it */
        return ut_err_set(err, -ENOENT, "%s: is still empty", text);
    *out_length = length;
    return 0;
}

static int map(const struct ntbm_uri *uri, const struct ntbm_opened *opened, struct ntbm_mem *out,
               struct ut_err *err)
{
    uint64_t length = 0;
    int rc = check_part(uri, opened, &length, err);
    if (rc)
        return rc;
    void *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, opened->fd, (off_t)uri->offset_bytes);
    if (base == MAP_FAILED) {
        int error = errno;
        const char *fault = uri->kind->mmap_fault ? uri->kind->mmap_fault(error) : NULL;
        return ut_err_set(err, -error, "%s:%s cannot be mapped: %s", uri->kind->name, uri->name,
                          fault ? fault : strerror(error));
    }
    *out = (struct ntbm_mem){.uri = *uri,
                             .fd = opened->fd,
                             .base = base,
                             .bytes = length,
                             .mapping = opened->mapping,
                             .align_bytes = opened->align_bytes};
    return 0;
}

int ntbm_mem_open(const struct ntbm_uri *uri, enum ntbm_role role, uint64_t want_bytes, struct ntbm_mem *out,
                  struct ut_err *err)
{
    struct ntbm_opened opened;
    uint64_t whole = uri->length_bytes ? uri->offset_bytes + uri->length_bytes : want_bytes;
    int rc = uri->kind->open(uri->name, role, whole, &opened, err);
    if (rc)
        return rc;
    rc = map(uri, &opened, out, err);
    if (!rc)
        return 0;
    if (role == NTBM_LANDING && uri->kind->remove) /* made just now, and of no use */
        uri->kind->remove(uri->name);
    close(opened.fd);
    return rc;
}

bool ntbm_mem_is_whole(const struct ntbm_mem *mem)
{
    struct stat st;
    return fstat(mem->fd, &st) < 0 || !S_ISREG(st.st_mode) ||
           (uint64_t)st.st_size >= mem->uri.offset_bytes + mem->bytes;
}

int ntbm_mem_restore(const struct ntbm_mem *mem, struct ut_err *err)
{
    int rc = posix_fallocate(mem->fd, (off_t)mem->uri.offset_bytes, (off_t)mem->bytes);
    if (!rc && mmap(mem->base, mem->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, mem->fd,
                    (off_t)mem->uri.offset_bytes) == MAP_FAILED)
        rc = errno;
    return rc ? ut_err_set(err, -rc, "%s:%s cannot be made whole again: %s", mem->uri.kind->name,
                           mem->uri.name, strerror(rc))
              : 0;
}

void ntbm_mem_close(struct ntbm_mem *mem)
{
    if (mem->fd < 0)
        return;
    munmap(mem->base, mem->bytes);
    close(mem->fd);
    mem->fd = -1;
}

void ntbm_mem_remove(struct ntbm_mem *mem)
{
    if (mem->fd >= 0 && mem->uri.kind->remove)
        mem->uri.kind->remove(mem->uri.name);
    ntbm_mem_close(mem);
}

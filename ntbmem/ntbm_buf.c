#include "ntbmem/ntbm_buf.h"

#include "ntbmem/ntbm_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* How often one ntbm_buf_reserve starts over: a client that punches holes in a loop must not keep a worker.
 */
#define RESERVE_TRIES 3

/* Entered at once. Zeroing takes a virtual machine up to some seconds a GiB, and a stopping daemon has less.
 */
#define POPULATE_BYTES ((uint64_t)64 << 20)

struct ntbm_pool {
    int mount_fd; /* root of the detached tmpfs, or -1: buffers are memfds */
    atomic_bool stopped;
    pthread_mutex_t lock; /* guards what is below and the buffers' maps; innermost, held over short calls */
    uint64_t quota_bytes; /* whole pages */
    unsigned refs;
    struct ut_list bufs;
};

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t ntbm_whole_pages(uint64_t bytes)
{
    return (bytes + page_bytes() - 1) & ~(page_bytes() - 1);
}

static int set_option(int fs_fd, const char *key, const char *value)
{
    if (!value)
        return 0;
    return fsconfig(fs_fd, FSCONFIG_SET_STRING, key, value, 0) < 0 ? -errno : 0;
}

static int set_size(int fs_fd, uint64_t bytes)
{
    char size[24];
    snprintf(size, sizeof(size), "%" PRIu64, bytes);
    return set_option(fs_fd, "size", size);
}

static int configure(int fs_fd, const struct ntbm_pool_attr *attr, uint64_t quota_bytes)
{
    int rc = set_size(fs_fd, quota_bytes);
    if (!rc)
        rc = set_option(fs_fd, "huge", attr->huge);
    if (!rc)
        rc = set_option(fs_fd, "mpol", attr->mpol);
    if (rc)
        return rc;
    /* Linux before 6.4 and user namespaces do not know noswap; it is a wish, and failing it does no harm. */
    fsconfig(fs_fd, FSCONFIG_SET_FLAG, "noswap", NULL, 0);
    return fsconfig(fs_fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0 ? -errno : 0;
}

static int mount_detached(const struct ntbm_pool_attr *attr, uint64_t quota_bytes, int *out_fd)
{
    int fs_fd = fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (fs_fd < 0)
        return -errno;
    int rc = configure(fs_fd, attr, quota_bytes);
    int fd = -1;
    if (!rc) {
        fd = fsmount(fs_fd, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
        rc = fd < 0 ? -errno : 0;
    }
    close(fs_fd);
    if (!rc)
        *out_fd = fd;
    return rc;
}

static bool is_not_permitted(int rc)
{
    return rc == -EPERM || rc == -EACCES || rc == -ENOSYS;
}

static bool is_absurd(uint64_t quota_bytes)
{
    return !quota_bytes || quota_bytes > INT64_MAX / 2;
}

static int create_pool(const struct ntbm_pool_attr *attr, bool may_mount, struct ntbm_pool **out)
{
    if (is_absurd(attr->quota_bytes))
        return -EINVAL;
    struct ntbm_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return -ENOMEM;
    pool->quota_bytes = ntbm_whole_pages(attr->quota_bytes);
    pool->mount_fd = -1;
    pool->refs = 1;
    ut_list_init(&pool->bufs);
    int rc = may_mount ? mount_detached(attr, pool->quota_bytes, &pool->mount_fd) : 0;
    if (rc && !is_not_permitted(rc)) {
        free(pool);
        return rc;
    }
    pthread_mutex_init(&pool->lock, NULL);
    *out = pool;
    return 0;
}

int ntbm_pool_create(const struct ntbm_pool_attr *attr, struct ntbm_pool **out)
{
    return create_pool(attr, true, out);
}

int ntbm_pool_create_memfd(const struct ntbm_pool_attr *attr, struct ntbm_pool **out)
{
    return create_pool(attr, false, out);
}

bool ntbm_pool_is_tmpfs(const struct ntbm_pool *pool)
{
    return pool->mount_fd >= 0;
}

void ntbm_pool_stop(struct ntbm_pool *pool)
{
    pool->stopped = true;
}

void ntbm_pool_put(struct ntbm_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    bool last = --pool->refs == 0;
    pthread_mutex_unlock(&pool->lock);
    if (!last)
        return;
    if (pool->mount_fd >= 0)
        close(pool->mount_fd);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static int open_file(const struct ntbm_pool *pool)
{
    int fd = pool->mount_fd >= 0 ? openat(pool->mount_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                                 : memfd_create("fabricfs-buffer", MFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int ntbm_buf_create(struct ntbm_pool *pool, struct ntbm_buf *out)
{
    int fd = open_file(pool);
    if (fd < 0)
        return fd;
    *out = (struct ntbm_buf){.pool = pool, .fd = fd};
    pthread_mutex_lock(&pool->lock);
    pool->refs++;
    ut_list_init(&out->in_pool);
    ut_list_append(&pool->bufs, &out->in_pool);
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

static uint64_t map_bytes(unsigned power)
{
    return UINT64_C(1) << (20 + power);
}

int ntbm_buf_map(struct ntbm_buf *buf, uint64_t bytes, void **out)
{
    unsigned power = 0;
    while (power < NTBM_BUF_MAPS && map_bytes(power) < bytes)
        power++;
    if (power == NTBM_BUF_MAPS)
        return -ENOMEM;
    pthread_mutex_lock(&buf->pool->lock);
    void *map = buf->maps[power];
    if (!map)
        map = mmap(NULL, map_bytes(power), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, buf->fd, 0);
    int rc = map == MAP_FAILED ? -errno : 0;
    if (!rc)
        *out = buf->maps[power] = map;
    pthread_mutex_unlock(&buf->pool->lock);
    return rc;
}

int64_t ntbm_buf_bytes(const struct ntbm_buf *buf)
{
    struct stat st;
    return fstat(buf->fd, &st) < 0 ? -errno : st.st_size;
}

bool ntbm_buf_is_reserved(const struct ntbm_buf *buf)
{
    struct stat st;
    return fstat(buf->fd, &st) == 0 && (uint64_t)st.st_blocks * 512 >= ntbm_whole_pages((uint64_t)st.st_size);
}

/* Lengths of all buffers but one, in whole pages; UINT64_MAX when the sum is beyond counting. Lock held. */
static uint64_t others_bytes(const struct ntbm_pool *pool, const struct ntbm_buf *except)
{
    uint64_t sum = 0;
    UT_LIST_EACH(&pool->bufs, struct ntbm_buf, in_pool, buf)
    {
        int64_t bytes = buf == except ? 0 : ntbm_buf_bytes(buf);
        if (bytes > 0 && __builtin_add_overflow(sum, ntbm_whole_pages((uint64_t)bytes), &sum))
            return UINT64_MAX;
    }
    return sum;
}

static int grow(struct ntbm_buf *buf, uint64_t bytes)
{
    struct ntbm_pool *pool = buf->pool;
    int rc = 0;
    pthread_mutex_lock(&pool->lock);
    uint64_t others = others_bytes(pool, buf);
    if (bytes > pool->quota_bytes || others > pool->quota_bytes ||
        ntbm_whole_pages(bytes) > pool->quota_bytes - others)
        rc = -ENOSPC;
    else if (ftruncate(buf->fd, (off_t)bytes) < 0)
        rc = -errno;
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

int ntbm_buf_resize(struct ntbm_buf *buf, uint64_t bytes)
{
    int64_t now = ntbm_buf_bytes(buf);
    if (now < 0)
        return (int)now;
    if (bytes > (uint64_t)now)
        return grow(buf, bytes);
    /* Shortening cannot break the quota, and frees pages for long: no lock. */
    return ftruncate(buf->fd, (off_t)bytes) < 0 ? -errno : 0;
}

struct touch_arg {
    char *first;
    uint64_t bytes;
};

/* Adds nothing to one byte of each page: allocates it, and loses no store that a client makes meanwhile. */
static void touch(void *arg)
{
    const struct touch_arg *range = arg;
    for (uint64_t at = 0; at < range->bytes; at += page_bytes())
        __atomic_fetch_or(range->first + at, 0, __ATOMIC_RELAXED);
}

static int populate_step(void *first, uint64_t bytes)
{
    if (madvise(first, bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL)
        return -errno;
    return ntbm_guard_run(touch, &(struct touch_arg){first, bytes}); /* Linux before 5.14 */
}

static int populate(const struct ntbm_buf *buf, char *map, uint64_t bytes)
{
    int rc = 0;
    for (uint64_t at = 0; !rc && at < bytes; at += POPULATE_BYTES) {
        uint64_t left = bytes - at;
        rc = buf->pool->stopped ? -ESHUTDOWN
                                : populate_step(map + at, left < POPULATE_BYTES ? left : POPULATE_BYTES);
    }
    return rc;
}

static int allocate(int fd, uint64_t bytes)
{
    int rc;
    do /* keeping the size: a file that was shortened meanwhile must not grow back */
        rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? -errno : 0;
}

int ntbm_buf_reserve(struct ntbm_buf *buf)
{
    void *map;
    int rc = 0;
    for (int i = 0; i < RESERVE_TRIES; i++) {
        int64_t bytes = ntbm_buf_bytes(buf);
        if (bytes <= 0)
            return (int)bytes;
        if ((uint64_t)bytes > ntbm_pool_quota_bytes(buf->pool))
            return -ENOSPC;
        rc = allocate(buf->fd, (uint64_t)bytes);
        if (!rc)
            rc = ntbm_buf_map(buf, (uint64_t)bytes, &map);
        if (rc)
            return rc;
        /* EFAULT here means that pages went between the two calls, by a hole or a shorter file. Allocating
         * again tells whether the quota can still replace them. */
        rc = populate(buf, map, (uint64_t)bytes);
        if (rc != -EFAULT)
            return rc;
    }
    return rc;
}

uint64_t ntbm_pool_used_bytes(struct ntbm_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint64_t bytes = others_bytes(pool, NULL);
    pthread_mutex_unlock(&pool->lock);
    return bytes;
}

uint64_t ntbm_pool_quota_bytes(struct ntbm_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint64_t bytes = pool->quota_bytes;
    pthread_mutex_unlock(&pool->lock);
    return bytes;
}

static uint64_t allocated_bytes(struct ntbm_pool *pool)
{
    uint64_t sum = 0;
    pthread_mutex_lock(&pool->lock);
    UT_LIST_EACH(&pool->bufs, struct ntbm_buf, in_pool, buf)
    {
        struct stat st;
        if (fstat(buf->fd, &st) == 0)
            sum += (uint64_t)st.st_blocks * 512;
    }
    pthread_mutex_unlock(&pool->lock);
    return sum;
}

uint64_t ntbm_pool_held_bytes(struct ntbm_pool *pool)
{
    struct statfs st;
    if (pool->mount_fd < 0 || fstatfs(pool->mount_fd, &st) < 0)
        return allocated_bytes(pool);
    return (uint64_t)(st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize;
}

static int reconfigure(int mount_fd, uint64_t quota_bytes)
{
    int fs_fd = fspick(mount_fd, "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC);
    if (fs_fd < 0)
        return -errno;
    int rc = set_size(fs_fd, quota_bytes);
    if (!rc && fsconfig(fs_fd, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0)
        rc = -errno;
    close(fs_fd);
    return rc;
}

int ntbm_pool_set_quota(struct ntbm_pool *pool, uint64_t bytes)
{
    int rc = is_absurd(bytes) ? -EINVAL : 0;
    if (!rc && pool->mount_fd >= 0)
        rc = reconfigure(pool->mount_fd, ntbm_whole_pages(bytes));
    else if (!rc && allocated_bytes(pool) > ntbm_whole_pages(bytes))
        rc = -EINVAL;
    if (rc)
        return rc;
    pthread_mutex_lock(&pool->lock);
    pool->quota_bytes = ntbm_whole_pages(bytes);
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

void ntbm_buf_fini(struct ntbm_buf *buf)
{
    struct ntbm_pool *pool = buf->pool;
    pthread_mutex_lock(&pool->lock);
    ut_list_remove(&buf->in_pool);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < NTBM_BUF_MAPS; i++) {
        if (buf->maps[i])
            munmap(buf->maps[i], map_bytes(i));
    }
    close(buf->fd);
    buf->fd = -1;
    ntbm_pool_put(pool);
}

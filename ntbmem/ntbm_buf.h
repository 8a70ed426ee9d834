/*
 * Gradient memory of one job: a pool with a quota the kernel enforces, and the ranks' buffers in it.
 *
 * A pool is a detached tmpfs (fsopen/fsmount: no path anybody sees, size= is the quota) where the process
 * may mount, else memfds with the quota kept by us. A buffer is one unlinked file of the pool, mapped
 * shared into the daemon: a page inside the file's size is the clients' page, one outside raises SIGBUS
 * (ntbm_guard.h). The mapping covers a power of two; a longer buffer gets another one, and those it had stay
 * as long as it does. So resizing never moves memory that a worker is using, and what is mapped is a small
 * multiple of what is used, however large the quota.
 *
 * What always holds:
 *  1. Lengths are counted in whole pages, as the kernel counts them. ntbm_buf_resize never takes their sum
 *     above the quota. A client of a tmpfs pool can: it lengthens the file itself by writing far behind its
 *     end. Then reserving fails, and the kernel still gives out no page above the quota.
 *  2. An access to the mapping may fault at any time, however well the pages were reserved: punching a hole
 *     needs nobody's leave. So clients' memory is touched under a guard only.
 *
 * Threads: all functions may be called from the loop thread and do not block for long, except those marked
 * (worker), which may take 0.1 s a GiB. A buffer must not be used by two threads at once, except that its
 * mapping may be, and that any number of threads may reserve, while ntbm_buf_resize and ntbm_buf_bytes run.
 */
#ifndef NTBM_BUF_H
#define NTBM_BUF_H

#include "utils/ut_list.h"

#include <stdbool.h>
#include <stdint.h>

struct ntbm_pool;

struct ntbm_pool_attr {
    uint64_t quota_bytes; /* rounded up to pages */
    const char *huge;     /* tmpfs huge= value, or NULL for the kernel's default; memfds ignore it */
    const char *mpol;     /* tmpfs mpol= value, or NULL; memfds ignore it */
};

/* Sizes of mappings: 1 MiB and its doubles. */
#define NTBM_BUF_MAPS 32u

/* Must not be moved or copied while created: the pool links to it. */
struct ntbm_buf {
    struct ntbm_pool *pool;    /* holds a reference */
    int fd;                    /* the backing file, O_RDWR; -1 when not created */
    struct ut_list in_pool;    /* the pool's list, under its lock */
    void *maps[NTBM_BUF_MAPS]; /* under the pool's lock: NULL, or the mapping of the first 2^i MiB */
};

/* Rounded up to whole pages, as lengths and quotas are counted. */
uint64_t ntbm_whole_pages(uint64_t bytes);

/* Makes a pool. The caller owns one reference. 0, -EINVAL (quota 0 or absurd, huge or mpol the kernel does
 * not know), -ENOMEM or -errno of the kernel. Not being allowed to mount is no error: memfds do then. */
int ntbm_pool_create(const struct ntbm_pool_attr *attr, struct ntbm_pool **out);

/* The same, but with memfds even where mounting is allowed; for tests of that mode. */
int ntbm_pool_create_memfd(const struct ntbm_pool_attr *attr, struct ntbm_pool **out);

/* True when the pool is a detached tmpfs, so that its files can back FUSE passthrough. */
bool ntbm_pool_is_tmpfs(const struct ntbm_pool *pool);

/* Ends the reservations that run, within a step of them, and refuses those to come: -ESHUTDOWN. Not undone.
 */
void ntbm_pool_stop(struct ntbm_pool *pool);

/* Gives up the caller's reference; the pool goes when its last buffer has gone. */
void ntbm_pool_put(struct ntbm_pool *pool);

/* Makes an empty buffer in the pool. 0, -ENOMEM, -EMFILE/-ENFILE or -errno; then fd is untouched. */
int ntbm_buf_create(struct ntbm_pool *pool, struct ntbm_buf *out);

/* A mapping of at least the first `bytes` of the file, where the page of each offset stays until
 * ntbm_buf_fini. The file may be shorter (invariant 2). Ask for what is reserved only: address space is
 * finite, and a length costs a client nothing. 0, or -ENOMEM. */
int ntbm_buf_map(struct ntbm_buf *buf, uint64_t bytes, void **out);

/* The buffer's length in bytes, by fstat: clients lengthen the file without telling us, beyond the quota too
 * (invariant 1). -errno on failure. */
int64_t ntbm_buf_bytes(const struct ntbm_buf *buf);

/* True when as many pages are allocated as the length needs, by fstat's block count: one cheap call, so that
 * a trigger reserves again only after somebody has lengthened the file or punched holes. Pages that a client
 * allocated behind the end hide holes from it; the guard is what catches those (invariant 2). */
bool ntbm_buf_is_reserved(const struct ntbm_buf *buf);

/* Sets the length without allocating; (worker) when that shortens it, because it frees pages. -ENOSPC when
 * the lengths of all buffers of the pool, taken by fstat, would exceed its quota; then nothing has changed.
 */
int ntbm_buf_resize(struct ntbm_buf *buf, uint64_t bytes);

/* (worker) Allocates every page of the file as it is long now and enters them into the daemon's page
 * tables, so that no later access faults. -ENOSPC when the quota does not hold them, -ENOMEM, -EFAULT when
 * the file was shortened or punched again and again meanwhile, -ESHUTDOWN after ntbm_pool_stop. On failure
 * some pages may be allocated. */
int ntbm_buf_reserve(struct ntbm_buf *buf);

/* Sum of the buffers' lengths (in whole pages) and the quota of the pool, bytes. */
uint64_t ntbm_pool_used_bytes(struct ntbm_pool *pool);
uint64_t ntbm_pool_quota_bytes(struct ntbm_pool *pool);

/* Bytes of all pages allocated in the pool. Those of a buffer that is no more count as long as a client maps
 * or has open its file; in a pool of memfds they do not, and nobody but us has files of those. */
uint64_t ntbm_pool_held_bytes(struct ntbm_pool *pool);

/* Sets another quota, rounded up to pages; it is in force when this returns. 0; -EINVAL (0, absurd, or more
 * pages are allocated), -ENOMEM or -errno of the kernel: the quota is as before. */
int ntbm_pool_set_quota(struct ntbm_pool *pool, uint64_t bytes);

/* (worker) Unmaps and closes; the pages go when no client maps them any more. Sets fd to -1. */
void ntbm_buf_fini(struct ntbm_buf *buf);

#endif

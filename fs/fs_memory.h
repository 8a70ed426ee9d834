/*
 * The limits of memory: `memory` of the daemon, `memory_user`, `memory` of a job.
 *
 * Each job's buffers lie in a pool (ntbm_buf.h), on a tmpfs with a quota that the kernel keeps whatever
 * clients do. What always holds: the quotas of all pools together are not above `memory`, those of one user's
 * pools not above `memory_user`, none above its job's `memory`. So clients cannot use more in any way.
 *
 * A pool *needs* the pages that are in use, by whoever, and those that its buffers were promised: a length
 * that was set through the daemon, or one that a client has set itself within the quota. What nobody needs is
 * free. In passthrough mode a client lengthens a file by writing to it, and the daemon hears nothing; so what
 * is free is lent, in equal shares, to the pools of which a buffer is open for writing, and taken back when
 * it is needed elsewhere. A pool keeps what it was lent as long as nobody else needs it. What a client cuts
 * off by O_TRUNC, to write the buffer anew, stays promised to it until it closes or the rank asks for
 * something.
 *
 * A pool that its job has left is kept, and counts, as long as clients map or hold open pages of it.
 *
 * Threads: the loop thread only. A call looks at the buffers of its own job (fstat); where a quota has to
 * grow, and when a buffer is opened for writing, at those of all jobs, a few times at most. It sets a pool's
 * quota in some microseconds; pages are allocated and freed by workers.
 */
#ifndef FS_MEMORY_H
#define FS_MEMORY_H

#include "fs/fs_rank.h"

struct fs_pool;

/* Makes the job's pool when it has none. 0, -ENOMEM or -errno of the kernel. */
int fs_memory_begin(struct fs_job *job);

/* The job's last rank has gone: who joins next may find another limit. */
void fs_memory_leave(struct fs_job *job);

/* Makes an empty buffer in the job's pool, which it has, on the heap. 0, -ENOMEM, -EMFILE, -ENFILE or -errno.
 */
int fs_memory_create(struct fs_job *job, struct ntbm_buf **out);

/* Promises the rank's buffer the pages of its first `bytes`. 0, or -ENOSPC above a limit: nothing has
 * changed. */
int fs_memory_promise(struct fs_rank *rank, uint64_t bytes);

/* Sets the quotas by what all pools need now, and lends what is free: a buffer has been opened for writing.
 */
void fs_memory_lend(struct fs *fs);

/* The job has another owner, whose limit counts from now on for what it asks for. */
void fs_memory_owner_changed(struct fs_job *job);

/* Bytes in use or promised: of all pools, of a job's. */
uint64_t fs_memory_used_bytes(struct fs *fs);
uint64_t fs_memory_job_bytes(const struct fs_job *job);

/* Ends the reservations that run on workers (ntbm_pool_stop). */
void fs_memory_stop(struct fs *fs);

/* Forgets all pools. No job has one any more. */
void fs_memory_fini(struct fs *fs);

#endif

/*
 * Carrying an operation out: on the loop thread when it is small, else on the workers; over the ring when
 * ranks of other nodes take part (coll_net.h).
 *
 * Where the kernel caches the buffers (no passthrough), an operation is framed by two invalidations, made on
 * a worker since they wait for requests that the loop thread serves:
 *   1. the kernel sends all dirty pages of the ranges as writes, so that our memory is what clients stored;
 *   2. the data is reduced; pages that the kernel writes back meanwhile are older than the result and
 * dropped;
 *   3. the kernel forgets the pages it holds, so that clients see the result.
 * After each of the two the loop thread reads the queue of requests to its end, where writes may be that the
 * kernel had begun before and does not wait for (Linux before 6.16). It keeps them out of that queue only
 * while a client's fsync waits for earlier ones; closing a buffer does not (noflush, fs_buffer.c).
 *
 * A large operation whose ranks do not all wait for its result gives way to whatever else the processors are
 * for: who does not wait computes, and who waits leaves a processor free. Until all wait, or a moment has
 * passed.
 *
 * Threads: all of it on the loop thread.
 */
#ifndef FS_EXEC_H
#define FS_EXEC_H

#include "fs/fs_rank.h"

/* coll_host.run: carries the operation out and calls coll_op_finish. */
void fs_exec_run(void *ctx, struct coll_operation *op);

/* Whether an operation goes on only when all requests that are queued now have been served. */
bool fs_exec_waits_for_writes(const struct fs *fs);

/* They have been: those operations go on. */
void fs_exec_writes_are_read(struct fs *fs);

/* Hands to the workers what has been begun since; whenever the loop thread has nothing more to answer. */
void fs_exec_submit(struct fs *fs);

/* A rank has begun to wait. */
void fs_exec_rank_waits(struct fs *fs);

/* When it is time, operations give way no longer. Sets the next time. */
void fs_exec_tick(struct fs *fs, uint64_t now);

/* coll_host.abort: another node has failed the operation. */
void fs_exec_abort(struct fs *fs, struct coll_operation *op, const struct coll_why *why);

/* Whether what the kernel writes back at this offset of the rank's buffer is to be dropped. Lowers *stop to
 * where the answer changes. */
bool fs_exec_is_dropping(const struct fs_rank *rank, uint64_t at, uint64_t *stop);

/* Frees what was kept for reuse. No operation may be running. */
void fs_exec_fini(struct fs *fs);

#endif

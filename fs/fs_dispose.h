/*
 * Buffers on their way back: a worker frees the pages, which may take 0.1 s a GiB, and whoever has removed a
 * rank is answered when they are free, so that what he asks for next finds them. He waits for those of that
 * job: until he is answered the directory is locked, and other users' jobs are in it.
 *
 * A job is named by the address of its struct fs_owner, which all its nodes have. It is compared, not
 * followed: the job may be gone by then.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_DISPOSE_H
#define FS_DISPOSE_H

#include "fs/fs.h"
#include "ntbmem/ntbm_buf.h"

struct fs_disposal;

/* A buffer of the job is to be given back as soon as nobody uses it. NULL without memory: then nobody is told
 * to wait. */
struct fs_disposal *fs_dispose_plan(struct fs *fs, const struct fs_owner *job);

/* Gives the job's buffer back, and the memory of *buf itself; `planned` may be NULL. */
void fs_dispose(struct fs *fs, struct fs_disposal *planned, const struct fs_owner *job, struct ntbm_buf *buf);

/* Answers a request that succeeded, when all buffers of the job that are planned to be given back by now are
 * free: with the bytes written, or, when that is 0, with nothing but success. */
void fs_dispose_answer(struct fs *fs, fuse_req_t req, const struct fs_owner *job, size_t written);

#endif

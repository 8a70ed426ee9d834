/*
 * jobs/J/ranks/R/: a rank's directory, with its buffer, its triggers and its status.
 *
 * It outlives the rank as long as clients hold a file of it, or an operation uses its memory: then `coll` is
 * NULL.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_RANK_H
#define FS_RANK_H

#include "fs/fs_job.h"
#include "ntbmem/ntbm_buf.h"

/* One trigger file. */
struct fs_trigger {
    struct fs_rank *rank;
    enum coll_kind kind;
    unsigned parked; /* blocking writes that wait: they hold the inode's lock */
};

struct fs_rank {
    struct fs *fs;
    struct fs_job *job;             /* NULL when the rank is gone */
    const struct fs_owner *job_tag; /* of its job, for fs_dispose.h; not to be followed */
    struct coll_rank *coll;         /* likewise */
    struct fs_node *dir, *buffer;
    struct fs_trigger triggers[COLL_KIND_COUNT];
    struct ntbm_buf *buf;         /* NULL when given back */
    struct fs_disposal *disposal; /* planned; NULL: not yet */
    uint64_t promised_bytes;      /* pages that the buffer has or shall get (fs_memory.h) */
    uint64_t kept_bytes;          /* of these, promised though the length is less (fs_buffer_written) */
    unsigned rewriters;           /* descriptors whose open cut the buffer off, to write it anew */
    unsigned tasks;               /* of workers that change the buffer's pages */
    unsigned writers;             /* descriptors that can lengthen the buffer without the daemon */
    int backing_id;               /* of the buffer's passthrough; 0: none */
    unsigned refs;                /* nodes that point here, and uses of its memory */
    unsigned queued;              /* operations queued without waiting, until their line is read */
    unsigned running;             /* operations that use the buffer's memory now */
    struct ut_list link;          /* in job->ranks */
    struct ut_list promises;      /* struct fs_promise.in_rank */
    struct ut_list handles;       /* struct fs_handle.link: open triggers */
    struct ut_list runs;          /* struct fs_member.link: ranges under operation */
};

/* Joins: makes the rank, its directory and its buffer. 0 or -errno, as mkdir answers it. */
int fs_rank_create(struct fs_job *job, unsigned number, pid_t pid, struct fs_rank **out);

/* The rank is gone: its directory is cut, and who still holds it gets rc (ENODEV, or ESTALE when it was
 * dropped). */
void fs_rank_gone(struct fs_rank *rank, int rc);

/* rmdir. 0, or -EBUSY while an operation of the rank is not over. */
int fs_rank_leave(struct fs_rank *rank, uint64_t now);

/* The process that took part has ended. */
void fs_rank_lost(struct fs_rank *rank, pid_t pid, unsigned promises, uint64_t now);

/* An operation, or a worker, begins to use the rank's memory, and no longer does; meanwhile the rank stays.
 */
void fs_rank_run_begins(struct fs_rank *rank);
void fs_rank_run_over(struct fs_rank *rank);

/* Gives up a reference; the last one frees the rank. */
void fs_rank_put(struct fs_rank *rank);

#endif

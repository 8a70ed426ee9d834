/*
 * jobs/: a directory for each job, with its files and its ranks/.
 *
 * A job here is a job of reduce/ (coll_job.h) together with what makes it files: owner and mode, the pool its
 * buffers come from, the nodes. It is freed when it is removed; nodes that clients still hold say ENODEV.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_JOB_H
#define FS_JOB_H

#include "fs/fs.h"

struct fs_job {
    struct fs *fs;
    struct ut_list link; /* in fs->jobs */
    struct coll_job *coll;
    struct fs_owner owner;
    struct fs_node *dir, *ranks_dir;
    struct fs_pool *pool; /* made when the first rank joins (fs_memory.h) */
    struct ut_list ranks; /* struct fs_rank.link */
    uint64_t seen_epoch;  /* of what fs_jobs_settle has looked at */
    unsigned seen_lost;
};

/* Makes jobs/ below the root. 0 or -ENOMEM. */
int fs_jobs_init(struct fs *fs);

/* The owner of the job whose directory this is. */
struct fs_owner *fs_job_owner(struct fs_node *dir);

/* Ends what is over: timeouts, jobs that nobody takes part in. */
void fs_jobs_tick(struct fs *fs, uint64_t now);

/* Makes the tree what other nodes have made of the jobs: ranks they dropped go, who polls looks again. */
void fs_jobs_settle(struct fs *fs);

/* The owner of the job whose directory this is has changed. */
void fs_job_owner_changed(struct fs_node *dir);

/* Wakes everybody who polls a trigger of the job: a rank was lost, or is back. */
void fs_job_wake(struct fs_job *job);

/* Removes the job and all its ranks; who waits gets `result`. No operation may be running. */
void fs_job_remove(struct fs_job *job, int result, uint64_t now);

#endif

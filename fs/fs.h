/*
 * The daemon as a whole: what its parts share.
 *
 * Who owns what:
 *
 *   thread     runs                                       owns
 *   loop       every FUSE request, jobs, timers, signals  all of struct fs, the tree, the jobs
 *   workers    reductions, reserving and freeing memory   nothing; each work carries what it needs
 *   resizer    the same, of buffers that the kernel caches   likewise
 *   watcher    looks at PCI devices (fs_watch.h)          their watches, while a look is out
 *   drainer    waits for the drain command (fs_drain.h)   that command
 *
 * A worker tells the loop thread that it is done with fs_loop_post. Locks: that of the posts and that of the
 * worker pool's queue, both leaves. A buffer's memory is shared with clients and touched under ntbm_guard
 * only.
 */
#ifndef FS_H
#define FS_H

#include "fs/fs_awake.h"
#include "fs/fs_events.h"
#include "fs/fs_log.h"
#include "fs/fs_loop.h"
#include "fs/fs_node.h"
#include "fs/fs_options.h"
#include "reduce/coll_job.h"
#include "reduce/red_kernel.h"
#include "reduce/red_pool.h"

struct fs {
    const struct fs_settings *settings;
    struct fuse_session *session;
    struct fs_loop loop;
    struct fs_source fuse, signals;
    struct fuse_buf request; /* the one being read; libfuse's memory */
    struct fs_owner root_owner;
    struct fs_node *root, *jobs_dir;
    struct ut_list gone_nodes; /* struct fs_node.sibling: cut off, and held by the kernel */
    uint64_t last_ino;
    unsigned running; /* uses of buffers by workers and operations; none is left when the daemon ends */
    bool mounted;     /* INIT was answered */
    bool unmounted;   /* by somebody else: no request will come any more */
    int mount_id;     /* in the mount table; 0: not known */
    void (*ready)(void *ctx);
    void *ready_ctx;

    struct fs_fabric *fabric; /* NULL: this node is alone */
    struct fs_watch *watch;   /* of the devices that lead to other nodes */

    int numa_node;     /* of memory and threads; -1: wherever the kernel likes */
    char numa_why[96]; /* why that one */
    struct red_pool *workers;
    struct red_pool *resizer; /* one thread, for buffers' pages where the kernel caches them: fs_buffer.c */
    const struct red_table *table;
    struct coll_host host;
    uint64_t wait_limit_ns; /* the kernel aborts the mount if a request waits longer; 0: it never does */

    uint64_t ram_bytes;  /* that this process may use, as it was at start */
    bool passthrough;    /* buffers are the clients' own pages; else kept coherent by invalidation */
    char buffer_why[96]; /* why it is so */

    struct ut_list jobs;                        /* struct fs_job.link */
    struct ut_list users, pools;                /* struct fs_user, fs_pool: fs_memory.c */
    struct ut_list disposals, disposal_answers; /* fs_dispose.c */
    uint64_t disposal_count;                    /* ever begun */
    struct ut_list processes;                   /* struct fs_process.link, fs_process.h */
    struct ut_list interrupted;                 /* struct fs_wait.interrupted, fs_trigger.c */
    struct ut_list queued_waits;                /* struct fs_wait.link: operations queued without waiting */
    struct fs_wait *free_waits;                 /* kept for reuse */
    struct fs_run *free_runs;                   /* likewise, fs_exec.c */
    unsigned parked;                            /* reads and writes of triggers that wait, fs_trigger.c */
    struct ut_list works;                       /* struct red_work.link: for the workers, fs_exec.c */
    struct fs_awake awake;                      /* while operations follow one another closely */
    uint64_t hurry_ns;                          /* when works that give way shall cease to; 0: never */
    struct ut_list unread_runs;                 /* struct fs_run.link: wait for writes in the queue */
    struct ut_list giving_runs; /* struct fs_run.link: begun before all ranks waited, not hurried since */
    struct fs_events events;
    struct fs_log log;
    uint64_t started_ns;
    uint64_t requests; /* FUSE requests ever read */
};

/* The operations of the session; userdata is struct fs. */
extern const struct fuse_lowlevel_ops fs_ops;

#endif

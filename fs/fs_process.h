/*
 * Client processes that have promised to take part: a process that opens a trigger read-write is watched
 * through a pidfd, and when it ends, however it ends and whoever holds copies of its descriptors, the ranks
 * it took part as are lost.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_PROCESS_H
#define FS_PROCESS_H

#include "fs/fs.h"

struct fs_process;
struct fs_rank;

/* One descriptor's promise. Ended by the process closing it, its end, or the rank's. */
struct fs_promise {
    struct ut_list in_process, in_rank;
    struct fs_process *process;
    struct fs_rank *rank;
    bool closed;                /* the process closed its descriptor itself: its end is no loss */
    struct fs_promise **holder; /* where the open file points at it, set to NULL when the promise ends before
                                   the file is closed; NULL itself when the file was closed first */
};

/* The process of a thread, by /proc. -ESRCH when it is gone, another -errno when that cannot be found out. */
pid_t fs_process_of(pid_t tid);

/* True when SIGKILL is pending for the thread (as it is for every deadly signal), or it is gone. False when
 * that cannot be found out. */
bool fs_process_is_dying(pid_t tid);

/* Makes the promise of the process that `tid` belongs to, for the rank, and counts it there. 0; -ESRCH when
 * the process is gone; -ESTALE when the rank cannot take it; -ENOMEM, -EMFILE. */
int fs_promise_make(struct fs_rank *rank, pid_t tid, struct fs_promise **holder, uint64_t now);

/* A thread closes a descriptor of the open file, or its process is ended and closes it for it. */
void fs_promise_flush(struct fs_promise *promise, pid_t tid);

/* The open file is closed. While its process lives the promise ends; in a process that ends it stays until
 * the end is seen. */
void fs_promise_close(struct fs_promise *promise, uint64_t now);

/* The rank is going: nobody is to hear of the promise any more. */
void fs_promise_void(struct fs_promise *promise);

#endif

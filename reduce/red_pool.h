/*
 * The workers: threads that carry out what is too long for the loop thread. Each piece of work is a number of
 * blocks that any worker may take; whoever does the last one calls finish. Works begin in the order they are
 * submitted; a work of one block leaves the other workers free for the next.
 *
 * Threads: submit from any thread, never blocks on work. block() and finish() run on workers, where every
 * signal is blocked except those a thread raises by itself (SIGBUS, SIGSEGV, SIGFPE, SIGILL). The pool never
 * has more threads than there are cores for it; when it has as many, each keeps to a core of its own. Idle
 * workers sleep; before that they yield for a moment, where work came as soon the last time and did not
 * give way.
 *
 * A work may give way: at its blocks a worker runs only where, and as long as, nobody else in its scheduling
 * group wants to (SCHED_IDLE). For results that nobody waits for yet; on a busy machine it takes any time, so
 * whoever submits it hurries it in the end. Where the process may not come back from that (no CAP_SYS_NICE),
 * it is like any other work.
 */
#ifndef RED_POOL_H
#define RED_POOL_H

#include "utils/ut_list.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct red_work {
    void (*block)(struct red_work *work, unsigned idx); /* idx < block_count; concurrently on many workers */
    void (*finish)(struct red_work *work);              /* once, after the last block; may free the work */
    unsigned block_count;                               /* at least 1 */
    bool gives_way;                                     /* until somebody hurries */
    /* private to the pool from submit to finish */
    struct ut_list link;
    atomic_uint next_idx;
    int home;         /* the CPU of the thread that shares it; -1 */
    unsigned hurries; /* there had been so many when it was submitted */
    atomic_uint left; /* blocks not yet done, and the part of who shares it */
};

struct red_pool;

/* Starts `threads` workers (0, or more than there are: one for each core the process may use), pinned to the
 * CPUs of NUMA node numa_node among them with libnuma (-1: not pinned). 0; -EINVAL when the process may use
 * no CPU of that node, or there is no such node; -ENOMEM, -EAGAIN. */
int red_pool_create(unsigned threads, int numa_node, struct red_pool **out);

/* How many workers there are. */
unsigned red_pool_threads(const struct red_pool *pool);

/* Queues the work, which the caller keeps alive until finish. */
void red_pool_submit(struct red_pool *pool, struct red_work *work);

/* The same, and the calling thread takes blocks of this work too, even before works that came earlier, until
 * none is left to take. So a work that is short, but worth dividing, does not wait for a worker to wake. True
 * when all blocks are done, which it waits for some ten microseconds: then finish() is not called, and the
 * work is the caller's again. False: finish() runs on the worker that ends the last block. */
bool red_pool_share(struct red_pool *pool, struct red_work *work);

/* Somebody waits: no work that has been submitted gives way any more. A work that does not give way hurries
 * those before it by itself. Any thread. */
void red_pool_hurry(struct red_pool *pool);

/* Carries out all that is queued, then ends the workers and frees the pool. Not on a worker. */
void red_pool_destroy(struct red_pool *pool);

/* The same, but gives up on workers that are still at it after so many nanoseconds. False then: the pool and
 * those workers stay, and it may be called again. */
bool red_pool_destroy_within(struct red_pool *pool, uint64_t patience_ns);

#endif

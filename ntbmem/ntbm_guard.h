/*
 * Access to memory that a client can take away under us: a buffer that shrinks or loses pages while a
 * worker reads it raises SIGBUS in the daemon. Inside a guard that signal ends the access instead, and the
 * operation fails with EFAULT; outside one it is our own fault and stays fatal.
 *
 * The exception is this node's landing memory, which is looked at everywhere, and may be a file that somebody
 * shortens. It is covered: when it is gone, zeros lie there from then on, which no message and no slot
 * consists of, and everybody asks before calling what came from there good.
 *
 * The guarded function may be left at any instruction, so it must hold no lock, own nothing, and call nothing
 * that does (no malloc, no stdio). Threads: any; a guard belongs to the thread that entered it and does not
 * nest.
 */
#ifndef NTBM_GUARD_H
#define NTBM_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* Installs the SIGBUS handler of the process. Once, before any other thread. 0 or -errno. */
int ntbm_guard_init(void);

/* Runs fn(arg). 0, or -EFAULT when it touched memory that is gone (fn was left where it stood). */
int ntbm_guard_run(void (*fn)(void *arg), void *arg);

/* Covers that memory (whole pages, mapped by the caller) in place of what was covered before; NULL: none. */
void ntbm_guard_cover(void *base, size_t bytes);

/* True when some of the covered memory has gone since. Any thread; what a thread read before it asks was
 * there. */
bool ntbm_guard_is_gone(void);

#endif
